"""Lists the files of a split as torchvision's ImageFolder does, and goes on where that would stop."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from headrace._arrow import pa
from headrace.measure.pictures import Pictures, Split, State
from headrace.measure.tree import is_folder, refusal, who_may

Progress = Callable[[int, int], None]

# Bytes that tell most formats of images.
HEAD = 16

# Extensions of images that ImageFolder doesn't take.
OTHER_PICTURES = (".jfif", ".jpe", ".gif", ".heic", ".heif", ".avif", ".jp2", ".jxl")

# Further files beside the images whose beginnings are read, at most a class.
SNIFFED = 1000


@dataclass
class _Class:
    """What one class folder holds; its images as (name, size, state)."""

    found: list[tuple[bytes, int, int]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    closed: list[tuple[str, str]] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)

    def pictures(self, label: int) -> Pictures:
        """In flat arrays: the list of all tuples of a large data set would take a gigabyte."""
        names, sizes, states = zip(*self.found, strict=True) if self.found else ((), (), ())
        return Pictures(
            pa.array(names, pa.large_binary()),
            np.full(len(names), label, np.int32),
            np.array(sizes, np.int64),
            np.array(states, np.uint8),
            reasons=self.reasons,
        )


def list_split(
    name: str,
    path: str,
    extensions: Sequence[str],
    *,
    flat: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> Split:
    """The files below `path`; none of them is opened but those whose extension isn't an image's.

    Args:
        name: of the split.
        extensions: that ImageFolder takes, in lower case, with the dot.
        flat: images lie in `path` itself, and it has no classes.
        workers: threads, each with one class folder at a time.
        progress: called with (folders listed, folders in all).

    Raises:
        OSError: `path` itself can't be listed.
    """
    taken = tuple(extensions)
    with os.scandir(path) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    classes = () if flat else tuple(entry.name for entry in entries if is_folder(entry))
    folders = [""] if flat else list(classes)
    split = Split(name, path, classes, Pictures.joined([]))
    parts: list[Pictures] = []
    with ThreadPoolExecutor(workers) as pool:
        for part in pool.map(lambda folder: _list_class(path, folder, taken), folders):
            split.passed_over += part.passed_over
            split.images_passed_over += part.images
            split.closed += part.closed
            split.loops += part.loops
            parts.append(part.pictures(-1 if flat else len(parts)))
            if progress is not None:
                progress(len(parts), len(folders))
    split.pictures = Pictures.joined(parts)
    if not flat:
        split.loose = [e.name for e in entries if not is_folder(e) and e.name.lower().endswith(taken)]
        split.lost_folders = [
            e.name
            for e in entries
            if e.is_symlink() and not os.path.exists(e.path) and not os.path.splitext(e.name)[1]
        ]
    return split


def _list_class(root: str, folder: str, extensions: tuple[str, ...]) -> _Class:
    part = _Class()
    start = os.path.join(root, folder) if folder else root
    for place, names in sorted(_walk(root, start, part, deep=bool(folder))):
        below = os.path.relpath(place, root)
        for name in sorted(names):
            path = name if below == "." else f"{below}/{name}"
            if name.lower().endswith(extensions):
                _add(part, root, path)
            else:
                part.passed_over.append(path)
    part.images = [
        path
        for i, path in enumerate(part.passed_over)
        if path.lower().endswith(OTHER_PICTURES)
        or (i < SNIFFED and _begins_as_picture(os.path.join(root, path)))
    ]
    return part


def _walk(root: str, start: str, part: _Class, *, deep: bool) -> Iterator[tuple[str, list[str]]]:
    """(folder, names of its files) from `start` down, through links but not round a loop of them."""
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [(start, frozenset())]
    while waiting:
        place, above = waiting.pop()
        try:
            info = os.stat(place)
            if (info.st_dev, info.st_ino) in above:
                part.loops.append(os.path.relpath(place, root))
                continue
            with os.scandir(place) as found:
                entries = list(found)
        except OSError as error:
            part.closed.append((os.path.relpath(place, root), refusal(place, error)))
            continue
        here = above | {(info.st_dev, info.st_ino)}
        folders = [entry for entry in entries if is_folder(entry)]
        if deep:
            waiting += [(entry.path, here) for entry in folders]
        names = {entry.name for entry in folders}
        yield place, [entry.name for entry in entries if entry.name not in names]


def _add(part: _Class, root: str, name: str) -> None:
    path = os.path.join(root, name)
    size, state, reason = 0, State.UNSEEN, ""
    try:
        info = os.stat(path)
        size = info.st_size
        if not stat.S_ISREG(info.st_mode):
            state, reason = State.ALIEN, "a pipe, socket or device, not a file"
        elif size == 0:
            state = State.EMPTY
        elif not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            state, reason = State.UNREADABLE, who_may(info)
    except OSError as error:
        lost = os.path.islink(path)
        state = State.LINK if lost else State.UNREADABLE
        reason = f"→ {os.readlink(path)}: {error.strerror}" if lost else refusal(path, error)
    if reason:
        part.reasons[len(part.found)] = reason
    part.found.append((os.fsencode(name), size, int(state)))


def _begins_as_picture(path: str) -> bool:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb", buffering=0) as file:
            return picture_format(file.read(HEAD)) != ""
    except OSError:
        return False  # no image for ImageFolder in any case


def picture_format(head: bytes) -> str:
    """The format of an image that begins with `head` (16 bytes or more); empty: it doesn't look like one."""
    if head[4:8] == b"ftyp":
        brand = head[8:12]
        return "AVIF" if brand in (b"avif", b"avis") else "HEIF" if brand in HEIF_BRANDS else ""
    if head[:4] == b"RIFF":
        return "WEBP" if head[8:12] == b"WEBP" else ""
    if head[:2] == b"BM":
        return "BMP" if head[6:10] == bytes(4) else ""
    return next((name for start, name in STARTS if head.startswith(start)), "")


HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"mif1", b"msf1")

STARTS = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\0\0\0\x0cjP  ", "JPEG2000"),
    (b"\xffO\xffQ", "JPEG2000"),
)
