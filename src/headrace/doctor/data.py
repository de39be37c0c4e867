"""What is the matter with a data set: findings on a folder of pictures, or on a pack of them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.doctor.data_classes import classes
from headrace.doctor.data_duplicates import duplicates
from headrace.doctor.data_files import files, pictures
from headrace.doctor.data_imagenet import imagenet
from headrace.doctor.data_layout import layout
from headrace.doctor.data_sizes import sizes
from headrace.doctor.naming import listed
from headrace.doctor.records import Checkup, Finding
from headrace.measure.pictures import Split
from headrace.measure.tree import Place


def judge_folder(
    place: Place, splits: Sequence[Split], *, decoded: bool, known_wnids: Sequence[str] = ()
) -> Checkup:
    """The checkup of a folder.

    Args:
        place: the folder that was given.
        splits: that were listed: those below `place` that hold class folders or pictures.
        decoded: their pictures were read and decoded.
        known_wnids: of ImageNet's classes, where a devkit tells them.
    """
    return _checkup(place.path, ("Folder", layout(place)), splits, decoded=decoded, known=known_wnids)


def judge_pack(
    path: str, split: Split, problems: Sequence[str], notes: Sequence[str], *, decoded: bool
) -> Checkup:
    """The checkup of a pack.

    Args:
        path: of its folder.
        split: its samples.
        problems: that verifying it found, a line each.
        notes: what verifying it couldn't check.
        decoded: its pictures were decoded.
    """
    found = [
        Finding(
            "records",
            listed("record", "not as packed", problems),
            "bad",
            "Copy the pack again, or make it again: headrace pack. headrace verify names all.",
            {"problems": list(problems)},
        )
        if problems
        else Finding("records", f"all {len(split.pictures):,} are as they were packed", "good")
    ]
    found += [Finding("not checked", note, "note") for note in notes]
    return _checkup(path, ("Pack", tuple(found)), [split], decoded=decoded)


def _checkup(
    subject: str,
    first: tuple[str, tuple[Finding, ...]],
    splits: Sequence[Split],
    *,
    decoded: bool,
    known: Sequence[str] = (),
) -> Checkup:
    sections = [first]
    if splits:
        sections += [
            ("Classes", (*classes(subject, splits), *imagenet(subject, splits, known))),
            ("Files", files(subject, splits, decoded=decoded)),
            ("Pictures", (*pictures(subject, splits), *sizes(subject, splits))),
        ]
        if decoded:
            sections.append(("Duplicates", duplicates(subject, splits)))
    return Checkup(subject, tuple(section for section in sections if section[1]))
