"""Relative links of the project's pages lead to files and headings that exist, as GitHub resolves them."""

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
