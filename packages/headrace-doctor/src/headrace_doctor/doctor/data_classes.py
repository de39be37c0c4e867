"""Findings on class folders: empty ones, folders of tools, differences between splits."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from headrace_doctor.doctor.naming import below, in_a_row, paths_of, plural, removal, some
from headrace_doctor.doctor.records import Finding
from headrace_doctor.measure.images import Split
from headrace_doctor.measure.tree import is_debris


def classes(subject: str, splits: Sequence[Split]) -> tuple[Finding, ...]:
    """The findings on class folders."""
    splits = [split for split in splits if split.classes]
    makers = (_single, _empty, _debris, _loose, _different)
    return tuple(one for make in makers for one in make(subject, splits))


def _single(subject: str, splits: Sequence[Split]) -> Iterator[Finding]:
    for split in splits:
        real = [name for name in split.classes if not is_debris(name)]
        if len(real) == 1:
            folder = below(subject, split) + real[0]
            value = f"{folder}: every image gets the same label"
            remedy = f"If that folder holds the classes, use {os.path.join(split.path, real[0])}."
            yield Finding("a single class", value, "note", remedy, {"folder": folder})


def _empty(subject: str, splits: Sequence[Split]) -> list[Finding]:
    found = [
        below(subject, split) + split.classes[label]
        for split in splits
        for label in np.flatnonzero(split.counts() == 0).tolist()
        if not is_debris(split.classes[label])
        # One that can't be listed may hold images; it has a finding of its own.
        and split.classes[label] not in {name for name, _ in split.closed}
    ]
    what = "without an image: ImageFolder raises FileNotFoundError"
    remedy = "Fill or remove them; to keep them, and their labels: ImageFolder(…, allow_empty=True)."
    empty = some("empty classes", "class folder", what, found, "bad", remedy, {"folders": found})
    return empty or [Finding("empty classes", "none", "good")]


def _debris(subject: str, splits: Sequence[Split]) -> list[Finding]:
    found = [below(subject, split) + name for split in splits for name in split.classes if is_debris(name)]
    what, remedy = "left behind by tools: a class, for ImageFolder", removal(subject, found, "rm -r")
    return some("folders of tools", "folder", what, found, "bad", remedy, {"folders": found})


def _loose(subject: str, splits: Sequence[Split]) -> list[Finding]:
    images, links = paths_of(subject, splits, "loose"), paths_of(subject, splits, "lost_folders")
    what = "next to the class folders, ignored by ImageFolder"
    found = some("loose images", "image", what, images, "note", "Move them into their classes' folders.")
    what = "to folders that don't exist, ignored by ImageFolder"
    remedy = "Mount what they point to, or recreate them. In a container, links are followed inside of it."
    return found + some("lost classes", "link", what, links, "bad", remedy)


def _different(subject: str, splits: Sequence[Split]) -> Iterator[Finding]:
    """Labels number the folders' names in sorted order: an additional one shifts those after it."""
    by_name = {split.name: split for split in splits if split.name}
    train = by_name.get("train")
    for name in ("val", "test"):
        other = by_name.get(name)
        if train is None or other is None:
            continue
        ours, theirs = set(train.classes), set(other.classes)
        if ours == theirs:
            yield Finding(f"classes of {name}", f"the same {len(ours):,} as those of train", "good")
            continue
        parts = [
            f"{plural(len(more), 'class')} only in {where}: {in_a_row(sorted(more))}"
            for where, more in (("train", ours - theirs), (name, theirs - ours))
            if more
        ]
        shifted = sum(train.classes.index(each) != other.classes.index(each) for each in ours & theirs)
        effect = f"\nanother label in {name}: {plural(shifted, 'class')} of both" if shifted else ""
        remedy = (
            f"Add the missing class folders to {below(subject, other) or name} (empty ones need"
            " allow_empty=True), or remove the odd ones."
        )
        if len(theirs) == 1 and not ours & theirs:
            one = f"All images of {name} lie in one folder, {other.classes[0]}"
            remedy = f"{one}: sort them into classes' folders."
        only = {"only_train": sorted(ours - theirs), f"only_{name}": sorted(theirs - ours)}
        details = {**only, "shifted": shifted}
        yield Finding(f"classes of {name}", "\n".join(parts) + effect, "bad", remedy, details)
