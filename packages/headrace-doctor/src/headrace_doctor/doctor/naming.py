"""How findings name files: some of them for people, all of them for programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from headrace_doctor.doctor.records import Finding, Judgement
from headrace_doctor.measure.images import Split

NAMED = 10  # files that a finding names; its details name all
REASON = 120  # characters of a reason printed after a name


def below(subject: str, split: Split) -> str:
    """The split's folder relative to the given one: "train/"; empty: the same."""
    path = os.path.relpath(split.path, subject)
    return "" if path == "." else f"{path}/"


def paths_of(subject: str, splits: Sequence[Split], attribute: str) -> list[str]:
    """The names in an attribute of all splits, relative to the given folder."""
    return [below(subject, split) + name for split in splits for name in getattr(split, attribute)]


def listed(noun: str, what: str, names: Sequence[str]) -> str:
    r"""How many there are, and the first of them, one per line: ``12 files of 0 bytes\na.jpg\n…``."""
    lines = [f"{plural(len(names), noun)} {what}", *names[:NAMED]]
    if len(names) > NAMED:
        lines.append(f"and {len(names) - NAMED:,} more")
    return "\n".join(lines)


def shortened(text: str) -> str:
    """One line of at most REASON characters."""
    line = " ".join(text.split())
    return line if len(line) <= REASON else line[: REASON - 1] + "…"


def in_a_row(names: Sequence[str], most: int = NAMED) -> str:
    """``a, b, c and 7 more``."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def plural(count: int, noun: str) -> str:
    """``1 class``, ``1,000 classes``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith(('s', 'x')) else 's'}"


def some(
    name: str,
    noun: str,
    what: str,
    names: Sequence[str] | dict[str, str],
    judgement: Judgement,
    remedy: str = "",
    details: dict[str, Any] | None = None,
) -> list[Finding]:
    """One finding that names the files; none if there are no `names`.

    Args:
        name: title of the finding.
        noun: what is counted, in the singular: "file".
        what: what is the matter with them: "of 0 bytes".
        names: of the files; a dict has the reason of each, which may be empty.
        judgement: of the finding.
        remedy: what to do about it. Default: nothing is suggested.
        details: of the finding, for programs. Default: {"files": names}.

    Returns:
        A list of one finding, or of none.
    """
    if not names:
        return []
    if isinstance(names, dict):
        lines = [f"{path}: {shortened(why)}" if why else path for path, why in names.items()]
    else:
        lines = names = list(names)
    return [Finding(name, listed(noun, what, lines), judgement, remedy, details or {"files": names})]


def removal(subject: str, paths: Sequence[str], command: str = "rm") -> str:
    """The remedy that removes the first few of them."""
    return f"Remove them: {command} " + " ".join(repr(os.path.join(subject, path)) for path in paths[:3])
