"""Which kind of source a path or object is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.errors import PackError
from headrace.packs.changes import Changes
from headrace.packs.inputs.folder import FolderInput
from headrace.packs.records import Input


def open_input(src: Any, changes: Changes) -> Input:
    """The input for `src`; see `headrace.pack`.

    Raises:
        ConfigError: it needs options that weren't given.
        PackError: it isn't there, can't be read, or is of no kind that can be packed.
    """
    path = Path(src)
    if not path.exists():
        raise PackError(f"{path} doesn't exist.")
    return FolderInput(path)
