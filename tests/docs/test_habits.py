"""Changelog fragments have valid names and types, and pre-commit runs what `make lint` runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PACKAGES = sorted((ROOT / "packages").iterdir())
FRAGMENTS = sorted(
    path for package in PACKAGES for path in (package / "changes").iterdir() if path.name != "README.md"
)


def types(package: Path) -> list[str]:
    project = (package / "pyproject.toml").read_text(encoding="utf-8")
    return re.findall(r'\{ directory = "(\w+)", name = "\w+", showcontent = true \}', project)


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_has_a_topic_a_type_and_a_text(path: Path) -> None:
    assert re.fullmatch(rf"\+[a-z0-9_-]+\.({'|'.join(types(path.parents[1]))})\.md", path.name)
    text = path.read_text(encoding="utf-8")
    assert text.strip()
    assert not text.lstrip().startswith(("-", "*", "#")), "towncrier makes it an item of a list"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_every_type_is_described(package: Path) -> None:
    readme = ROOT / "packages" / "headrace" / "changes" / "README.md"
    rows = re.findall(r"^\| `(\w+)` \|", readme.read_text(), re.MULTILINE)
    assert rows == types(package)


def test_the_changelog_has_the_place_where_releases_are_inserted() -> None:
    assert (ROOT / "CHANGELOG.md").read_text().count("\n<!-- towncrier release notes start -->\n") == 1


def test_pre_commit_runs_the_tools_of_make_lint() -> None:
    recipe = re.search(r"^lint: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    tools = {
        match[1]
        for line in recipe[1].splitlines()
        if (match := re.match(r"\t(?:@if command -v |\$\(BIN\)/(?:python )?)([\w./-]+)", line))
    }
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    entries = [hook["entry"] for hook in hooks]
    assert {"ruff", "mypy", "tests/test_words.py", "towncrier", "actionlint", "clang-format"} == tools
    assert all(any(tool in entry for entry in entries) for tool in tools)
