"""The Python code of the documentation runs.

The blocks of a page run one after the other, in one namespace and in a folder with some images. A block that
can't run here follows a comment in its page, `<!-- not executed: REASON -->`; it is compiled all the same.
So is one after `<!-- executed with PACKAGE -->`, if that isn't installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
import headrace.export
import headrace.order
import headrace_doctor
from support.jpegs import image_folder

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "packages/headrace/native/**/*.md")
    for path in ROOT.glob(pattern)
)
TUTORIAL = "docs/tutorial.md"
BLOCK = re.compile(
    r"^(?P<indent> *)(?:<!-- (?:not executed: (?P<reason>[^>]+)|executed with (?P<package>\w+)) -->\s*)?"
    r"```python\n(?P<code>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


def blocks(page: str) -> list[tuple[int, str, str | None]]:
    """(line, code, why it isn't executed or None) of each Python block."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
        package = match["package"]
        missing = package is not None and importlib.util.find_spec(package) is None
        found.append((line, code, f"{package} isn't installed" if missing else match["reason"]))
    return found


def namespace() -> dict[str, Any]:
    """Names that pages use without defining them: what a training script has by then."""
    image_folder(Path("imagenet/train"), 24, side=64)
    image_folder(Path("imagenet/val"), 9, side=64)
    Path("imagenet/train/class0/00000.jpg").rename("photo.jpg")
    transform = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    train, val = ImageFolder("imagenet/train", transform), ImageFolder("imagenet/val", transform)
    loader = headrace.DataLoader(train, batch_size=8)
    for _ in loader:
        pass
    return {
        "__name__": "page",
        "Image": Image,
        "ImageFolder": ImageFolder,
        "Path": Path,
        "dataset": train,
        "headrace": headrace,
        "loader": loader,
        "torch": torch,
        "torchvision": torchvision,
        "train": train,
        "training_step": lambda batch: None,
        "transform": transform,
        "transforms": transforms,
        "val": val,
    }


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page) and page != TUTORIAL])
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names: dict[str, Any] = {}
    for line, code, reason in blocks(page):
        compiled = compile("\n" * (line - 1) + code, str(ROOT / page), "exec")
        if reason is not None:
            continue
        names = names or namespace()
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compiled, names)


def test_the_tutorial_needs_no_names_but_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "tutorial"}
    for line, code, reason in blocks(TUTORIAL):
        assert reason is None
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile("\n" * (line - 1) + code, TUTORIAL, "exec"), names)


def test_a_failing_block_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nassert False\n```\n\n- a list\n\n  ```python\n  if True:\n      1\n  ```\n")
    assert [code for _, code, _ in blocks(str(page))] == ["assert False\n", "if True:\n    1\n"]
    with pytest.raises(AssertionError):
        test_the_code_of_a_page_runs(str(page), tmp_path, monkeypatch)


REFERENCE = ROOT / "docs" / "reference"


def test_the_reference_has_every_public_name() -> None:
    listed = set(re.findall(r"^::: (\S+)$", (REFERENCE / "api.md").read_text(), re.MULTILINE))
    public = {f"headrace.{name}" for name in headrace.__all__}
    public |= {f"headrace_doctor.{name}" for name in headrace_doctor.__all__}
    for module in ("cache", "deferred", "export", "order", "ray_data", "testing"):
        source = ROOT / "packages" / "headrace" / "src" / "headrace" / module
        text = (
            source.with_suffix(".py") if source.with_suffix(".py").exists() else source / "__init__.py"
        ).read_text()
        names = re.search(r"^__all__ = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
        assert names is not None
        public |= {f"headrace.{module}.{name}" for name in re.findall(r'"(\w+)"', names[1])}
    assert listed == public | {"headrace.records.LoaderStats"}


def test_the_reference_has_every_command() -> None:
    text = (REFERENCE / "cli.md").read_text()
    init = (ROOT / "packages" / "headrace" / "src" / "headrace" / "cli" / "__init__.py").read_text()
    verbs = re.findall(r"^from headrace\.cli\.(\w+) import \1$", init, re.MULTILINE)
    verbs += [entry.name for entry in metadata.entry_points(group="headrace.verbs")]
    for verb in verbs:
        assert f"| `headrace {verb}" in text, verb
