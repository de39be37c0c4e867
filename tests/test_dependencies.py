"""Headrace needs torch, torchvision, NumPy and Pillow; all else is an extra."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.jpegs import image_folder
from support.python import run_python

# Everything that an extra brings.
OPTIONAL = (
    *("jinja2", "lmdb", "msgpack", "obstore", "prometheus_client", "psutil", "py_spy", "pyarrow"),
    *("ray", "rich", "scipy", "tensorboard", "timm", "typer"),
)

BLOCK = f"""
import sys

class Absent:
    "An import of what isn't installed fails."
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
for name in [name for name in sys.modules if name.partition(".")[0] in {OPTIONAL!r}]:
    del sys.modules[name]  # torch has imported it, where it is installed
"""


SKIPPED = re.compile(r'(?:importorskip|integration)\(\s*"(\w+)')
DISTRIBUTIONS = {"cv2": "opencv_python_headless", "yaml": "pyyaml"}  # where the name to import is another one


def run_without_extras(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_python(BLOCK + code, *arguments, fresh=True)


EPOCHS = """
import torch
from torch.utils.data import TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder
import headrace

if __name__ == "__main__":
    steps = [transforms.CenterCrop(32), transforms.ToTensor()]
    native = ImageFolder(sys.argv[1], transforms.Compose(steps))
    python = ImageFolder(sys.argv[1], transforms.Compose([*steps, abs]))
    rows = TensorDataset(torch.arange(12))
    for dataset, workers in ((native, "auto"), (python, 1), (python, 0), (rows, "auto")):
        loader = headrace.DataLoader(dataset, batch_size=4, shuffle=True, num_workers=workers)
        assert sum(len(batch[0]) for batch in loader) == 12
        assert loader.explain().startswith("plan: ")
        assert loader.stats().epochs[-1].samples == 12
        print(loader.stats())
"""


def test_epochs_explain_and_stats_need_no_extra(tmp_path: Path) -> None:
    done = run_without_extras(EPOCHS, str(image_folder(tmp_path, 12, side=40)))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("from headrace.export import MetricsServer; MetricsServer({}, 0)", "metrics"),
        ("import headrace; headrace.pack('.', 'nowhere')", "packs"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(code: str, extra: str) -> None:
    done = run_without_extras(code)
    assert done.returncode == 1
    assert f"pip install 'headrace[{extra}]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("verb", ["--help", "train"])
def test_the_command_without_its_extra_prints_one_line(verb: str) -> None:
    done = run_without_extras(
        f"from headrace.__main__ import main; sys.argv = ['headrace', {verb!r}]; main()"
    )
    assert done.returncode == 2
    assert done.stderr == "The headrace command needs typer and rich: pip install 'headrace[cli]'\n"


def test_importing_headrace_imports_nothing_but_torch_at_most() -> None:
    command = [sys.executable, "-c", "import sys, headrace; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    heavy = {"numpy", "PIL", "torchvision", "torch", *OPTIONAL}
    assert heavy.isdisjoint(done.stdout.split())


def test_an_extra_brings_whatever_tests_are_skipped_without() -> None:
    root = Path(__file__).parents[1]
    extras = set()
    for path in (root / "pyproject.toml", *root.glob("packages/*/pyproject.toml")):
        text = path.read_text(encoding="utf-8")
        for heading in ("[project.optional-dependencies]", "[dependency-groups]"):
            table = text.partition(heading)[2].partition("\n[tool.")[0]
            extras |= {name.replace("-", "_").lower() for name in re.findall(r'"([\w-]+)', table)}
    places = (*root.glob("tests/**/*.py"), *root.glob("packages/*/tests/**/*.py"))
    files = [path.read_text(encoding="utf-8") for path in places]
    skipped = {DISTRIBUTIONS.get(name, name) for file in files for name in SKIPPED.findall(file)}
    assert "torchdata" in skipped
    assert skipped - extras == set()


def test_the_locked_versions_are_of_all_that_is_listed() -> None:
    tools = Path(__file__).parents[1] / "tools"
    code = f"import sys; sys.path.append({str(tools)!r}); import lock; print(*lock.names(), sep='\\n')"
    listed = set(run_python(code).stdout.split())
    locked = {line.partition("==")[0] for line in (tools / "constraints.txt").read_text().splitlines()[1:]}
    assert {"albumentations", "pytest"} <= listed
    assert listed <= locked
