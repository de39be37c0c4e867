"""Relative links of the project's pages lead to files and headings that exist, as GitHub resolves them, and
so do the paths that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", ".github/*.md", "docs/**/*.md", "benchmarks/**/*.md", "packages/*/native/**/*.md")
    for path in ROOT.glob(pattern)
)
# Their text is moved to CHANGELOG.md, so links are relative to its folder.
FRAGMENTS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("packages/*/changes/+*.md"))
LINK = re.compile(r"\]\((?!https?:|mailto:)([^()\s]*?)(?:#([^()\s]+))?\)")
# A path of the project in backticks; names with capitals, as NAME.cpp, stand for others.
NAMED = re.compile(r"`((?:tests|native|tools|benchmarks|examples|deploy|packages)/[a-z0-9_./-]+\w)`")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings: letters, digits, hyphens, and spaces as hyphens, in lower case."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *FRAGMENTS])
def test_links_lead_somewhere(page: str) -> None:
    place = ROOT / ("CHANGELOG.md" if page in FRAGMENTS else page)
    for target, anchor in LINK.findall(FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))):
        there = (place.parent / target).resolve() if target else place
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_named_files_exist(page: str) -> None:
    named = NAMED.findall((ROOT / page).read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("package", ["headrace", "headrace-doctor"])
def test_the_readme_of_a_package_stands_alone(package: str) -> None:
    """Package indexes show it, without the repository's other files."""
    text = (ROOT / "packages" / package / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {package}\n")
    assert LINK.findall(FENCE.sub("", text)) == []
