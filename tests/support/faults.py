"""Tests' rules for faults.c."""

from __future__ import annotations

from pathlib import Path


class Faults:
    """Rules, each ``KIND NUMBER TEXT`` as faults.c has them.

    Args:
        path: of the file in which the preloaded library looks for them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, *rules: str) -> None:
        """Sets the rules, in place of those before."""
        beside = self.path.with_suffix(".new")
        beside.write_text("".join(f"{rule}\n" for rule in rules))
        beside.replace(self.path)  # whoever reads it now sees all of them, or none
