"""Findings on classes: empty ones, differences between splits, balance, ImageNet's wnids."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.doctor.naming import below, in_a_row, listed, paths_of, plural, removal, some
from headrace.doctor.records import Finding
from headrace.measure.images import Split
from headrace.measure.tree import is_debris

UNBALANCED = 5  # ratio of the largest class to the smallest above which it is noted
SMALLEST = 5  # number of smallest classes that are named
# ImageNet (ILSVRC2012): https://image-net.org/challenges/LSVRC/2012/ and Russakovsky et al., "ImageNet Large
# Scale Visual Recognition Challenge", table 2.
WNID = re.compile(r"n\d{8}")
CLASSES = 1000
# By split: images; fewest and most of a class; archive, and its checksum.
OFFICIAL = {
    "train": (1_281_167, 732, 1300, "ILSVRC2012_img_train.tar", "1d675b47d978889d74fa0da5fadfb00e"),
    "val": (50_000, 50, 50, "ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622"),
}
NEARLY = 0.9  # share of all images below which the rest was left out on purpose
ENOUGH = 10  # class folders named like a wnid from which on the data set is taken for ImageNet


def classes(subject: str, splits: Sequence[Split]) -> tuple[Finding, ...]:
    """The findings on class folders."""
    splits = [split for split in splits if split.classes]
    found = [one for make in (_single, _empty, _debris, _loose, _different) for one in make(subject, splits)]
    return (*found, *(_balance(subject, split) for split in splits if len(split.images)))


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


def _balance(subject: str, split: Split) -> Finding:
    """Of classes that have images."""
    name = f"balance of {below(subject, split)}".rstrip("/") if below(subject, split) else "balance"
    counts = {split.classes[i]: n for i, n in enumerate(split.counts().tolist()) if n}
    order = sorted(counts, key=lambda one: (counts[one], one))
    low, high, median = counts[order[0]], counts[order[-1]], float(np.median(list(counts.values())))
    details = {"classes": len(counts), "min": low, "median": median, "max": high, "counts": counts}
    value = f"{sum(counts.values()):,} images in {plural(len(counts), 'class')}: {low:,} to {high:,} each"
    value += f", median {median:,.0f}"
    if high / low <= UNBALANCED:
        return Finding(name, value, "good", details=details)
    worst = in_a_row([f"{one} ({counts[one]:,})" for one in order[:SMALLEST]])
    value += f"; the largest is {high / low:,.0f} times the smallest. Smallest: {worst}; largest:"
    remedy = (
        "To draw all classes equally often: sampler=headrace.order.Weighted.balanced(dataset.targets); or"
        " weight the loss."
    )
    return Finding(name, f"{value} {order[-1]} ({high:,})", "note", remedy, details)


def imagenet(subject: str, splits: Sequence[Split], known: Sequence[str] = ()) -> tuple[Finding, ...]:
    """The findings on wnids and counts; none where class folders aren't named by wnids.

    Args:
        known: the wnids, if a devkit next to the data has them; empty: unknown.
    """
    return tuple(
        finding
        for split in splits
        if _is_imagenet(split)
        for finding in (_wnids(subject, split, known), *_counts(split))
    )


def _is_imagenet(split: Split) -> bool:
    wnids = sum(WNID.fullmatch(name) is not None for name in split.classes)
    return wnids >= ENOUGH and 2 * wnids > len(split.classes)


def _wnids(subject: str, split: Split, known: Sequence[str]) -> Finding:
    title = f"wnids of {below(subject, split).rstrip('/') or 'all classes'}"
    real = [name for name in split.classes if not is_debris(name)]
    odd = [name for name in real if WNID.fullmatch(name) is None]
    unknown = sorted(set(real) - set(odd) - set(known)) if known else []
    absent = sorted(set(known) - set(real))
    wrong = [("class folder", "not named by a wnid (n and 8 digits)", odd)]
    wrong += [("wnid", "that the devkit doesn't have", unknown)]
    parts = [f"{plural(len(names), noun)} {what}: {in_a_row(names)}" for noun, what, names in wrong if names]
    if parts:
        remedy = "Rename or remove them: an additional folder shifts the labels of all that follow."
        details = {"odd": odd, "unknown": unknown, "absent": absent}
        return Finding(title, "\n".join(parts), "bad", remedy, details)
    count = len(real)
    if NEARLY * CLASSES <= count < CLASSES:
        value = f"{count:,} class folders, {CLASSES - count:,} fewer than ImageNet has"
        value += f": {in_a_row(absent)}" if absent else ""
        remedy = "Unpack the missing classes' tar files again, from ILSVRC2012_img_train.tar."
        return Finding(title, value, "bad", remedy, {"classes": count, "absent": absent})
    if count == CLASSES:
        how = "all of them the devkit's" if known else "all of the form n########"
        return Finding(title, f"{count:,} class folders, {how}", "good", details={"classes": count})
    part = "a part of ImageNet's 1,000" if count < CLASSES else "more than ILSVRC2012's 1,000"
    value = f"{plural(count, 'class folder')}, {part}: counts aren't checked"
    return Finding(title, value, "note", details={"classes": count})


def _counts(split: Split) -> Iterator[Finding]:
    if sum(WNID.fullmatch(name) is not None for name in split.classes) != CLASSES:
        return
    counts, total = split.counts(), len(split.images)
    name = split.name or min(OFFICIAL, key=lambda name: abs(OFFICIAL[name][0] - total))
    if name not in OFFICIAL:
        return
    expected, fewest, most, archive, checksum = OFFICIAL[name]
    title = f"ImageNet's {name}"
    if total < NEARLY * expected or (not split.name and total > expected / NEARLY):
        value = f"{total:,} images; the whole has {expected:,}: another set, or a part of it"
        yield Finding(title, value, "note", details={"images": total})
        return
    wrong = {
        split.classes[i]: int(counts[i])
        for i in np.flatnonzero((counts < fewest) | (counts > most)).tolist()
        if WNID.fullmatch(split.classes[i])
    }
    span = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    if total == expected and not wrong:
        yield Finding(title, f"{total:,} images, {span} in each class: complete", "good")
        return
    value = f"{total:,} images, {abs(total - expected):,} {'too few' if total < expected else 'too many'}"
    if total == expected:
        value = f"{total:,} images, as there should be, but not where they should be"
    if wrong:
        lines = [f"{wnid}: {count:,}" for wnid, count in wrong.items()]
        value += "\n" + listed("class", f"with another number than {span}", lines)
    again = f"Unpack {'those classes' if name == 'train' else 'it'} again"
    remedy = f"{again}. The archive itself: md5sum {archive} gives {checksum}."
    yield Finding(title, value, "bad", remedy, {"images": total, "expected": expected, "classes": wrong})
