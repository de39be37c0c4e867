"""Whether what looks like ImageNet (ILSVRC2012) is all there.

Numbers: https://image-net.org/challenges/LSVRC/2012/ and Russakovsky et al., "ImageNet Large Scale Visual
Recognition Challenge", table 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.doctor.naming import below, in_a_row, listed, plural
from headrace.doctor.records import Finding
from headrace.measure.pictures import Split
from headrace.measure.tree import is_debris

WNID = re.compile(r"n\d{8}")
CLASSES = 1000

# (pictures, fewest and most of a class) by split.
OFFICIAL = {"train": (1_281_167, 732, 1300), "val": (50_000, 50, 50)}

# Fewer pictures than this share of them were left out on purpose.
NEARLY = 0.9

# So many class folders with a wnid for a name are no coincidence.
ENOUGH = 10


def imagenet(subject: str, splits: Sequence[Split], known: Sequence[str] = ()) -> tuple[Finding, ...]:
    """The findings on wnids and counts; none where class folders aren't named by wnids.

    Args:
        known: the wnids, where a devkit beside the data tells them; empty: not known.
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
    if odd or unknown:
        parts = []
        if odd:
            parts.append(
                f"{plural(len(odd), 'class folder')} not named by a wnid (n and 8 digits): {in_a_row(odd)}"
            )
        if unknown:
            parts.append(f"{plural(len(unknown), 'wnid')} that the devkit doesn't have: {in_a_row(unknown)}")
        return Finding(
            title,
            "\n".join(parts),
            "bad",
            "Rename or remove them: a folder more shifts the labels of all that come after it.",
            {"odd": odd, "unknown": unknown, "absent": absent},
        )
    count = len(real)
    if NEARLY * CLASSES <= count < CLASSES:
        named = f": {in_a_row(absent)}" if absent else ""
        return Finding(
            title,
            f"{count:,} class folders, {CLASSES - count:,} fewer than ImageNet has{named}",
            "bad",
            "Unpack the missing classes' tar files again, from ILSVRC2012_img_train.tar.",
            {"classes": count, "absent": absent},
        )
    if count == CLASSES:
        how = "all of them the devkit's" if known else "all of the form n########"
        return Finding(title, f"{count:,} class folders, {how}", "good", details={"classes": count})
    part = "a part of ImageNet's 1,000" if count < CLASSES else "more than ILSVRC2012's 1,000"
    return Finding(
        title,
        f"{plural(count, 'class folder')}, {part}: counts aren't checked",
        "note",
        details={"classes": count},
    )


def _counts(split: Split) -> Iterator[Finding]:
    if sum(WNID.fullmatch(name) is not None for name in split.classes) != CLASSES:
        return
    counts, total = split.counts(), len(split.pictures)
    name = split.name or min(OFFICIAL, key=lambda name: abs(OFFICIAL[name][0] - total))
    if name not in OFFICIAL:
        return
    expected, fewest, most = OFFICIAL[name]
    title = f"ImageNet's {name}"
    if total < NEARLY * expected or (not split.name and total > expected / NEARLY):
        yield Finding(
            title,
            f"{total:,} pictures; the whole has {expected:,}: another set, or a part of it",
            "note",
            details={"pictures": total},
        )
        return
    wrong = {
        split.classes[i]: int(counts[i])
        for i in np.flatnonzero((counts < fewest) | (counts > most)).tolist()
        if WNID.fullmatch(split.classes[i])
    }
    span = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    if total == expected and not wrong:
        yield Finding(title, f"{total:,} pictures, {span} in each class: complete", "good")
        return
    value = f"{total:,} pictures, {abs(total - expected):,} {'too few' if total < expected else 'too many'}"
    if total == expected:
        value = f"{total:,} pictures, as there should be, but not where they should be"
    if wrong:
        lines = [f"{wnid}: {count:,}" for wnid, count in wrong.items()]
        value += "\n" + listed("class", f"with another number than {span}", lines)
    yield Finding(
        title,
        value,
        "bad",
        "Unpack those classes again. The archive itself: md5sum ILSVRC2012_img_train.tar gives"
        " 1d675b47d978889d74fa0da5fadfb00e."
        if name == "train"
        else "Unpack it again. The archive itself: md5sum ILSVRC2012_img_val.tar gives"
        " 29b22e2961454d5413ddabcf34fc5622.",
        {"pictures": total, "expected": expected, "classes": wrong},
    )
