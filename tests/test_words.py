"""The project's prose uses the terms of the field; docs/glossary.md lists the words that it no longer uses.

A table of patterns rather than codespell: most retired wordings are phrases, or words that are wrong in one
meaning only ("figure" of a number), and codespell's dictionaries hold single words.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "benchmarks/**/*.md",
        "packages/*/native/**/*.md",
        "packages/*/changes/*.md",
        ".github/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
PACKAGES = sorted(ROOT.glob("packages/*/src"))

# Wrong wherever they occur, with what is written instead.
RETIRED = {
    r"pictures?": "image",
    r"anew": "again",
    r"in vain": "unsuccessfully",
    r"in hand": "in progress, current",
    r"mend(s|ed|ing)?": "fix",
    r"own decoder|decoder of our own": "built-in decoder",
    r"(is|was|are|were|be) told": "is reported, receives",
    r"begun": "started",
    r"as ever": "as before",
    r"can't be obeyed|is obeyed|are obeyed": "is invalid; takes effect",
    r"beside the (training )?step": "overlapped with the step",
    r"a (batch|picture|sample|second|image|step)'s worth": "one",
    r"book-?keeping": "index, records",
    r"goes on (with|at|from)|go on (with|at|from)|going on": "resumes, continues",
}
# In prose only: code has other uses of these words.
RETIRED_IN_PROSE = {
    r"as (it|they) (is|are)(?= ?[,.;:|)]|$)": "unchanged",
    r"figures?": "measurement, statistic (of a drawing: chart)",
    r"(un)?said": "specified",
    r"(tells|telling) (us|of|what|who|how|which)": "reports",
    r"what it gave": "results",
    r"tried:": "alternatives considered",
    r"colou?red pictures?|colour": "color",
    r"behaviour": "behavior",
}
# In docstrings: their first sentence says what the thing does or is.
FORMS = {
    r"\A(?-i:What|Whether|Of|That|Where|Which|How|As|Who)": "a sentence or a noun: Returns …, The …",
    r"(?<=; )(?-i:None):": "…, or None if …",
}
NOT_PROSE = re.compile(
    r"<!-- table:.*?<!-- end of table -->|^```.*?^```|^    \S.*?$|`[^`\n]*`|\]\([^)]*\)|https?://\S+",
    re.MULTILINE | re.DOTALL,
)


def retired(text: str, *tables: dict[str, str], first: int = 1) -> list[str]:
    """Complaints of the form "line 7: 'anew': write again"; `first` is the line that the text begins in."""
    matches = []
    for table in tables:
        for pattern, better in table.items():
            for match in re.finditer(
                rf"(?<![\w-])(?:{pattern})(?![\w-])", text, re.IGNORECASE | re.MULTILINE
            ):
                line = text.count("\n", 0, match.start()) + first
                matches.append(f"line {line}: {match[0]!r}: write {better}")
    return matches


def prose(page: str) -> str:
    """The prose of a page. The list of retired words itself is exempt."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if page == "docs/glossary.md":
        text = text[: text.index("## Retired words")]
    return blank(text)


def retired_in_docstrings(source: str) -> list[str]:
    """Complaints about the docstrings of a module and all in it, and the help texts of its options."""
    matches = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if docstring := ast.get_docstring(node):
                first = node.body[0].lineno
                matches += retired(blank(docstring), RETIRED, first=first) + retired(
                    docstring, FORMS, first=first
                )
        elif isinstance(node, ast.keyword) and node.arg == "help" and isinstance(node.value, ast.Constant):
            matches += retired(blank(str(node.value.value)), RETIRED, first=node.value.lineno)
    return matches


def blank(text: str) -> str:
    """The text without code, targets of links and generated tables, on the same lines."""
    return NOT_PROSE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def complaints() -> list[str]:
    """The complaints about pages, and about docstrings and help texts of the packages."""
    of_pages = [f"{page}: {one}" for page in PAGES for one in retired(prose(page), RETIRED, RETIRED_IN_PROSE)]
    return of_pages + [
        f"{path.relative_to(ROOT).as_posix()}: {one}"
        for package in PACKAGES
        for path in sorted(package.rglob("*.py"))
        for one in retired_in_docstrings(path.read_text(encoding="utf-8"))
    ]


def test_no_retired_words_are_used() -> None:
    assert complaints() == []


def test_retired_words_are_found() -> None:
    text = "Two pictures.\n\nThey are copied as they are, anew.\n"
    assert retired(text, RETIRED, RETIRED_IN_PROSE) == [
        "line 1: 'pictures': write image",
        "line 3: 'anew': write again",
        "line 3: 'as they are': write unchanged",
    ]
    assert retired(blank("`picture` ![x](picture.png)\n```\nanew\n```\n"), RETIRED) == []


def test_docstrings_that_begin_with_a_clause_are_found() -> None:
    source = '''
def size(value: str) -> int | None:
    """What a value takes.

    Returns:
        Bytes; None: unknown.
    """

def whole() -> bool:
    """Howard's method. What follows is a second sentence, or None."""
'''
    assert retired_in_docstrings(source) == [
        "line 3: 'What': write a sentence or a noun: Returns …, The …",
        "line 6: 'None:': write …, or None if …",
    ]


if __name__ == "__main__":  # for `make lint`, without the package
    sys.exit("\n".join(complaints()) or 0)
