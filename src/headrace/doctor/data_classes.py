"""Whether classes are what they should be: none empty, the same in all splits, of like sizes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.doctor.naming import below, in_a_row, listed, plural
from headrace.doctor.records import Finding
from headrace.measure.pictures import Split
from headrace.measure.tree import is_debris

# The largest class is so many times the smallest: more is worth a word, and a remedy.
UNBALANCED = 5

# Classes that are named, of the smallest.
SMALLEST = 5


def classes(subject: str, splits: Sequence[Split]) -> tuple[Finding, ...]:
    """The findings on class folders."""
    sorted_ones = [split for split in splits if split.classes]
    return (
        *_single(subject, sorted_ones),
        *_empty(subject, sorted_ones),
        *_debris(subject, sorted_ones),
        *_loose(subject, sorted_ones),
        *_different(subject, sorted_ones),
        *(_balance(subject, split) for split in sorted_ones if len(split.pictures)),
    )


def _single(subject: str, splits: Sequence[Split]) -> Iterator[Finding]:
    for split in splits:
        real = [name for name in split.classes if not is_debris(name)]
        if len(real) == 1:
            yield Finding(
                "a single class",
                f"{below(subject, split)}{real[0]}: every picture gets the same label",
                "note",
                f"If that folder holds the classes, give {os.path.join(split.path, real[0])}.",
                {"folder": below(subject, split) + real[0]},
            )


def _empty(subject: str, splits: Sequence[Split]) -> Iterator[Finding]:
    found = [
        below(subject, split) + split.classes[label]
        for split in splits
        for label in np.flatnonzero(split.counts() == 0).tolist()
        if not is_debris(split.classes[label])
        # What can't be listed may hold pictures; it has a finding of its own.
        and split.classes[label] not in {name for name, _ in split.closed}
    ]
    if not found:
        yield Finding("empty classes", "none", "good")
        return
    yield Finding(
        "empty classes",
        listed("class folder", "without a picture: ImageFolder raises FileNotFoundError", found),
        "bad",
        "Fill or remove them; if they shall stay, and keep their labels: ImageFolder(…, allow_empty=True).",
        {"folders": found},
    )


def _debris(subject: str, splits: Sequence[Split]) -> Iterator[Finding]:
    found = [below(subject, split) + name for split in splits for name in split.classes if is_debris(name)]
    if found:
        paths = " ".join(repr(os.path.join(subject, path)) for path in found[:3])
        yield Finding(
            "folders of tools",
            listed("folder", "left behind by tools: a class, for ImageFolder", found),
            "bad",
            f"Remove them: rm -r {paths}",
            {"folders": found},
        )


def _loose(subject: str, splits: Sequence[Split]) -> Iterator[Finding]:
    found = [below(subject, split) + name for split in splits for name in split.loose]
    if found:
        yield Finding(
            "loose pictures",
            listed("picture", "beside the class folders, not seen by ImageFolder", found),
            "note",
            "Move them into their classes' folders.",
            {"files": found},
        )
    lost = [below(subject, split) + name for split in splits for name in split.lost_folders]
    if lost:
        yield Finding(
            "lost classes",
            listed("link", "to folders that aren't there, passed over by ImageFolder", lost),
            "bad",
            "Mount what they point to, or make them anew. In a container, links are followed inside of it.",
            {"links": lost},
        )


def _different(subject: str, splits: Sequence[Split]) -> Iterator[Finding]:
    """Labels count the folders' names in their order: one name more in a split, and its labels shift."""
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
        alone = len(theirs) == 1 and not ours & theirs
        yield Finding(
            f"classes of {name}",
            "\n".join(parts) + effect,
            "bad",
            f"All pictures of {name} lie in one folder, {other.classes[0]}: sort them into classes' folders."
            if alone
            else f"Add the missing class folders to {below(subject, other) or name} (empty ones need"
            " allow_empty=True), or remove the odd ones.",
            {"only_train": sorted(ours - theirs), f"only_{name}": sorted(theirs - ours), "shifted": shifted},
        )


def _balance(subject: str, split: Split) -> Finding:
    counts = split.counts()
    full = np.flatnonzero(counts)
    name = f"balance of {below(subject, split).rstrip('/')}" if below(subject, split) else "balance"
    return balance(name, [split.classes[i] for i in full.tolist()], [int(counts[i]) for i in full])


def balance(name: str, names: Sequence[str], counts: Sequence[int]) -> Finding:
    """Of classes that have pictures: `counts` of them, by `names`."""
    order = sorted(range(len(counts)), key=lambda i: (counts[i], names[i]))
    low, high = counts[order[0]], counts[order[-1]]
    ratio = high / low
    details = {
        "classes": len(counts),
        "min": low,
        "median": float(np.median(counts)),
        "max": high,
        "counts": dict(zip(names, counts, strict=True)),
    }
    value = (
        f"{sum(counts):,} pictures in {plural(len(counts), 'class')}: {low:,} to {high:,} each, median"
        f" {np.median(counts):,.0f}"
    )
    if ratio <= UNBALANCED:
        return Finding(name, value, "good", details=details)
    worst = in_a_row([f"{names[i]} ({counts[i]:,})" for i in order[:SMALLEST]])
    return Finding(
        name,
        f"{value}; the largest is {ratio:,.0f} times the smallest. Smallest: {worst}; largest:"
        f" {names[order[-1]]} ({high:,})",
        "note",
        "To draw all classes alike: sampler=headrace.order.Weighted.balanced(dataset.targets); or weigh the"
        " loss.",
        details,
    )
