"""Headrace over the unchanged files with an index of entry points beside them (`headrace index`)."""

import os

import headrace_folder
from headrace_folder import PACKAGES

from headrace.packs.index import build_entry_index

__all__ = ["ABOUT", "PACKAGES", "loader", "prepare"]

ABOUT = "bit for bit Pillow's antialiased bilinear; the same files, and an index of entry points"


def prepare(folder, work):
    # Links: the folder itself stays without an index, for the rows that must not have one.
    target = work / "entries"
    if not target.exists():
        partial = target.with_suffix(".partial")
        for source in sorted(folder.glob("*/*.jpg")):
            path = partial / source.relative_to(folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            os.link(source, path)
        partial.rename(target)
    summary = build_entry_index(target)
    return [*sorted(target.glob("*/*.jpg")), summary.path]


def loader(folder, work, dtype, threads, **settings):
    return headrace_folder.loader(work / "entries", work, dtype, threads, **settings)
