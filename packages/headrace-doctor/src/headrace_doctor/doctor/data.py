"""Findings on a data set: its layout, and the files that can't be read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from headrace_doctor.doctor.data_classes import classes
from headrace_doctor.doctor.data_layout import AS_USER, layout
from headrace_doctor.doctor.naming import below, in_a_row, paths_of, plural, removal, some
from headrace_doctor.doctor.records import Checkup, Finding, Judgement
from headrace_doctor.measure.images import Split, State
from headrace_doctor.measure.tree import Place

BOMB = "of more pixels than Pillow accepts: it raises DecompressionBombError"
AGAIN = "Copy or download them again, or remove them."
MOUNT = "Mount what they point to (in a container, links are followed inside of it), or copy with cp -rL."
REPLACE = "Replace or remove them."
SHRINK = (
    "Make them smaller (headrace pack --max-side N), or raise PIL.Image.MAX_IMAGE_PIXELS if you trust their"
    " source."
)
ACCESS = f"As their owner: chmod -R a+rX {{path}}. In a container: {AS_USER}."
# (state, title, noun, what of it, judgement, remedy) of the files that need attention.
TROUBLES: tuple[tuple[State, str, str, str, Judgement, str], ...] = (
    (State.LINK, "broken links", "link", "whose target doesn't exist", "bad", MOUNT),
    (State.UNREADABLE, "unreadable files", "file", "not readable by this user", "bad", ACCESS),
    (State.EMPTY, "empty files", "file", "of 0 bytes", "bad", AGAIN),
    (State.CUT, "cut short", "image", "truncated: Pillow raises an error", "bad", AGAIN),
    (State.DAMAGED, "damaged", "image", "that can't be decoded: Pillow raises an error", "bad", AGAIN),
    (State.ALIEN, "not images", "file", "of another kind with an image's extension", "bad", REPLACE),
    (State.HUGE, "too large for Pillow", "image", BOMB, "bad", SHRINK),
)


def judge_folder(place: Place, splits: Sequence[Split], *, decoded: bool) -> Checkup:
    """The checkup of a folder.

    Args:
        place: the given folder.
        splits: the splits below `place` that hold class folders or images, as listed.
        decoded: whether their images were read and decoded.
    """
    subject = place.path
    sections = [("Folder", layout(place))]
    if splits:
        sections += [
            ("Classes", classes(subject, splits)),
            ("Files", files(subject, splits, decoded=decoded)),
        ]
    return Checkup(subject, tuple(section for section in sections if section[1]))


def files(subject: str, splits: Sequence[Split], *, decoded: bool) -> tuple[Finding, ...]:
    """Findings on single files."""
    closed = {below(subject, split) + name: why for split in splits for name, why in split.closed}
    images, loops = (paths_of(subject, splits, name) for name in ("ignored_images", "loops"))
    others = sorted(set(paths_of(subject, splits, "ignored")) - set(images))
    found = list(_spellings(splits))
    what = f"with extensions that ImageFolder doesn't take ({_extensions_of(images)})"
    remedy = "Rename those that are JPEG or PNG inside (.jfif → .jpg); convert the others (HEIC, GIF, AVIF)."
    found += some("images passed over", "image", what, images, "bad", remedy)
    if others:
        value = f"{plural(len(others), 'file')} that ImageFolder passes over: {_extensions_of(others)}"
        found.append(Finding("other files", value, "note", details={"files": others}))
    what, remedy = "not listable by this user: empty, for ImageFolder", ACCESS.format(path=subject)
    found += some("closed folders", "folder", what, closed, "bad", remedy, {"folders": closed})
    what = "back to a folder above: ImageFolder follows them, and takes each image up to 40 times"
    remedy = removal(subject, loops)
    found += some("links in a circle", "link", what, loops, "bad", remedy, {"links": loops})
    what = "of another format than the extension says"
    remedy = "Pillow and Headrace go by the content; readers that go by the name fail. Rename them for those."
    misnamed = {
        below(subject, split) + split.images.names[row]: f"is {format_}"
        for split in splits
        for row, format_ in sorted(split.images.misnamed.items())
    }
    found += some("misnamed", "image", what, misnamed, "note", remedy)
    return (*found, *_troubles(subject, splits, decoded=decoded))


def _extensions_of(names: Iterable[str]) -> str:
    count = Counter(os.path.splitext(name)[1] or "no extension" for name in names)
    return in_a_row([f"{name} {n:,}" for name, n in count.most_common()])


def _spellings(splits: Sequence[Split]) -> Iterator[Finding]:
    spelt: Counter[str] = sum((split.images.extensions() for split in splits), Counter())
    kinds = ", ".join(f"{extension} {count:,}" for extension, count in spelt.most_common())
    details = {"extensions": dict(spelt)}
    if len(spelt) > len({extension.lower() for extension in spelt}):
        value = f"{kinds}: in different letter case, all of which ImageFolder takes"
        remedy = "A pattern such as glob('*.jpg') finds only one spelling."
        yield Finding("extensions", value, "note", remedy, details)
    elif spelt:
        yield Finding("extensions", kinds, "good", details=details)


def _troubles(subject: str, splits: Sequence[Split], *, decoded: bool) -> Iterator[Finding]:
    for state, title, noun, what, judgement, remedy in TROUBLES:
        found = _in_state(subject, splits, state)
        yield from some(title, noun, what, found, judgement, remedy.format(path=subject), {"files": found})
    states = np.concatenate([split.images.states for split in splits])
    if len(states) and (states == State.GOOD).all():
        yield Finding("every image", f"{len(states):,} read and decoded to the last pixel", "good")
    unseen = _in_state(subject, splits, State.UNSEEN)
    if unseen and not decoded:
        value = f"{plural(len(unseen), 'image')}, because of --quick"
        yield Finding("not decoded", value, "unknown", "Run it without --quick.")


def _in_state(subject: str, splits: Iterable[Split], state: State) -> dict[str, str]:
    """Reason by path of the images in a state; the reason may be empty."""
    return {
        below(subject, split) + split.images.names[row]: split.images.reasons.get(row, "")
        for split in splits
        for row in np.flatnonzero(split.images.states == state).tolist()
    }
