"""Hooks of the documentation site (mkdocs.yml).

Pages link to files outside of docs/ by relative paths, so that the links work on GitHub. In the site

- Markdown files of the repository that are in the navigation are pages below project/;
- linked images are copied to project/;
- other files and folders are links to the repository, if REPOSITORY_URL names it, and plain text otherwise.

A link to a file that doesn't exist is an error. The command-line reference is filled in from `--help`.
"""

import logging
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "project/"
LINK = re.compile(r"(?P<bang>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"^(```.*?^```[ ]*$)", re.MULTILINE | re.DOTALL)
COMMANDS = (
    ["run"],
    ["explain"],
    ["doctor"],
    ["doctor", "run"],
    ["doctor", "data"],
    ["top"],
    ["tune"],
    ["index"],
    ["pack"],
    ["verify"],
    ["info"],
    ["train"],
)
log = logging.getLogger("mkdocs.hooks.headrace")


def on_files(files: Files, config: Any) -> Files:
    """Adds the repository's own pages and images to the site."""
    pages = [page for page in _nav_pages(config.nav) if page.startswith(PROJECT)]
    images = sorted(
        path.relative_to(ROOT).as_posix() for path in (ROOT / "benchmarks" / "results").glob("*.png")
    )
    for name in [*(page.removeprefix(PROJECT) for page in pages), *images]:
        files.append(File.generated(config, PROJECT + name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: Any, files: Files) -> str:
    """Rewrites the links of a page that leave its folder tree."""
    if page.file.src_uri == "reference/cli.md":
        markdown = markdown.replace("<!-- cli reference -->", _command_line())
    parts = FENCE.split(markdown)
    for i in range(0, len(parts), 2):  # the parts between fenced blocks
        parts[i] = LINK.sub(lambda match: _link(match, page, config, files), parts[i])
    return "".join(parts)


def _link(match: re.Match[str], page: Page, config: Any, files: Files) -> str:
    target, _, anchor = match["target"].partition("#")
    if not target or "://" in target or target.startswith("mailto:"):
        return match[0]
    own = page.file.src_uri
    place = own.removeprefix(PROJECT) if own.startswith(PROJECT) else f"docs/{own}"
    name = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
    if not (ROOT / name).exists():
        log.warning("%s links to %s, which doesn't exist", place, target)
        return match[0]
    inside = name.removeprefix("docs/") if name.startswith("docs/") else PROJECT + name
    if files.get_file_from_path(inside) is not None:
        there = posixpath.relpath(inside, posixpath.dirname(own) or ".")
        return f"{match['bang']}[{match['text']}]({there}{'#' + anchor if anchor else ''})"
    if config.repo_url:
        kind = "tree" if (ROOT / name).is_dir() else "blob"
        return f"[{match['text']}]({config.repo_url.rstrip('/')}/{kind}/main/{name})"
    return f"{match['text']} (`{name}`)" if match["text"].strip("`") != name else f"`{name}`"


def _nav_pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in _nav_pages(part)]


def _command_line() -> str:
    source = os.pathsep.join(map(str, ROOT.glob("packages/*/src")))
    env = {**os.environ, "PYTHONPATH": source, "COLUMNS": "96", "TYPER_USE_RICH": "0"}
    sections = []
    for command in COMMANDS:
        done = subprocess.run(
            [sys.executable, "-m", "headrace", *command, "--help"],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout.replace("python -m headrace", "headrace").strip()
        sections.append(f"## headrace {' '.join(command)}\n\n```text\n{text}\n```\n")
    return "\n".join(sections)
