"""The image files of a split, as torchvision's ImageFolder would find them, and what is known of each."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from headrace_doctor.measure.tree import is_folder, refusal, who_may

Progress = Callable[[int, int], None]  # called with (number done, number in all), now and then
# Extensions of images that ImageFolder ignores.
OTHER_IMAGES = (".jfif", ".jpe", ".gif", ".heic", ".heif", ".avif", ".jp2", ".jxl")
# First bytes of a file that identify what it is, and the signatures of image formats.
HEAD = 64
SIGNATURES = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"\0\0\0\x0cjP  ", "JPEG2000"),
    (b"\xffO\xffQ", "JPEG2000"),
)
HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"mif1", b"msf1")
# Beginnings of files that lie in place of images, in lower case.
LIKENESSES = (
    (b"version https://git-lfs", "a Git LFS pointer: run git lfs pull"),
    (b"<!doctype html", "an HTML page, as servers send for missing files"),
    (b"<html", "an HTML page, as servers send for missing files"),
    (b"<?xml", "XML"),
    (b"<svg", "SVG"),
    (b"\x1f\x8b", "gzip"),
    (b"pk\x03\x04", "a zip file"),
    (b"%pdf", "PDF"),
    (b"bplist", "a property list of macOS"),
    (b"\0\x05\x16\x07", "a resource fork of macOS, as its tar and zip leave next to each file"),
)
SNIFFED = 1000  # files without an image's extension whose first bytes are read, at most, per class


class State(IntEnum):
    """What is known of a file."""

    UNSEEN = 0  # present, not opened yet
    GOOD = 1  # decoded completely
    LINK = 2  # a link whose target is missing
    UNREADABLE = 3  # by this user, or by the storage
    EMPTY = 4  # 0 bytes
    ALIEN = 5  # not an image
    CUT = 6  # truncated
    DAMAGED = 7  # Pillow raises for other reasons
    HUGE = 8  # more pixels than Pillow accepts


@dataclass(eq=False)
class Images:
    """The n image files of a split, in ImageFolder's order.

    Attributes:
        names: paths relative to the split's folder, [n].
        labels: int32 [n]; -1 if the images lie in no class folder.
        states: uint8 [n] of `State`.
        reasons: details on single files, by number.
        misnamed: number → format, of those whose name stands for another format.
    """

    names: list[str]
    labels: npt.NDArray[np.int32]
    states: npt.NDArray[np.uint8]
    reasons: dict[int, str] = field(default_factory=dict)
    misnamed: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def extensions(self) -> Counter[str]:
        """Number of files by extension, in its original letter case, with the dot."""
        return Counter(os.path.splitext(name)[1] for name in self.names)


@dataclass(eq=False)
class Split:
    """One folder of class folders, or of images.

    Attributes:
        name: "train", "val", "test"; empty: the folder's name does not say.
        path: of the folder.
        classes: names of the class folders, in ImageFolder's order; empty: the images lie in `path` itself.
        images: the files that ImageFolder takes for samples.
        ignored: files below `path` whose extension ImageFolder ignores.
        ignored_images: those of them that are images by extension or content.
        loose: images next to the class folders, which ImageFolder ignores.
        closed: (folder below `path`, reason) that cannot be listed.
        loops: folders below `path` that are links to a folder above them.
        lost_folders: links in `path` whose target is missing.
    """

    name: str
    path: str
    classes: tuple[str, ...]
    images: Images
    ignored: list[str] = field(default_factory=list)
    ignored_images: list[str] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    closed: list[tuple[str, str]] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    lost_folders: list[str] = field(default_factory=list)

    def counts(self) -> npt.NDArray[np.int64]:
        """Number of images of each class, [classes]."""
        labels = self.images.labels
        known = labels[(labels >= 0) & (labels < len(self.classes))]
        return np.bincount(known, minlength=len(self.classes))


@dataclass
class _Class:
    """What one class folder holds: its images as (name, state, reason), and attributes of `Split`."""

    images: list[tuple[str, State, str]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    ignored_images: list[str] = field(default_factory=list)
    closed: list[tuple[str, str]] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)


def list_split(
    name: str,
    path: str,
    extensions: Sequence[str],
    *,
    flat: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> Split:
    """Lists the files below `path`; only those without an image's extension are opened.

    Args:
        name: of the split; "": the folder's name does not say.
        path: of the split's folder.
        extensions: those that ImageFolder takes, in lower case, with the dot.
        flat: whether the images lie in `path` itself, without classes.
        workers: number of threads, each with one class folder at a time.
        progress: called with (folders listed, folders in all). Default: not at all.

    Raises:
        OSError: `path` itself cannot be listed.
    """
    taken = tuple(extensions)
    with os.scandir(path) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    classes = () if flat else tuple(entry.name for entry in entries if is_folder(entry))
    folders = [""] if flat else list(classes)
    names: list[str] = []
    labels: list[int] = []
    states: list[int] = []
    no_images = Images([], np.zeros(0, np.int32), np.zeros(0, np.uint8))
    split = Split(name, path, classes, no_images)
    reasons: dict[int, str] = {}
    with ThreadPoolExecutor(workers) as pool:
        for number, part in enumerate(pool.map(lambda folder: _list_class(path, folder, taken), folders)):
            for image, state, reason in part.images:
                if reason:
                    reasons[len(names)] = reason
                names.append(image)
                labels.append(-1 if flat else number)
                states.append(state)
            for attribute in ("ignored", "ignored_images", "closed", "loops"):
                getattr(split, attribute).extend(getattr(part, attribute))
            if progress is not None:
                progress(number + 1, len(folders))
    split.images = Images(names, np.array(labels, np.int32), np.array(states, np.uint8), reasons)
    if not flat:
        split.loose = [e.name for e in entries if not is_folder(e) and e.name.lower().endswith(taken)]
        lost = (entry.name for entry in entries if entry.is_symlink() and not os.path.exists(entry.path))
        split.lost_folders = [name for name in lost if not os.path.splitext(name)[1]]
    return split


def _list_class(root: str, folder: str, extensions: tuple[str, ...]) -> _Class:
    part = _Class()
    start = os.path.join(root, folder) if folder else root
    for place, names in sorted(_walk(root, start, part, deep=bool(folder))):
        below = os.path.relpath(place, root)
        for name in sorted(names):
            path = name if below == "." else f"{below}/{name}"
            if name.lower().endswith(extensions):
                part.images.append((path, *_examined(os.path.join(root, path))))
            else:
                part.ignored.append(path)
    part.ignored_images = [
        path
        for i, path in enumerate(part.ignored)
        if path.lower().endswith(OTHER_IMAGES) or (i < SNIFFED and _starts_as_image(os.path.join(root, path)))
    ]
    return part


def _walk(root: str, start: str, part: _Class, *, deep: bool) -> Iterator[tuple[str, list[str]]]:
    """(folder, names of its files) from `start` downwards, following links except into a cycle."""
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [(start, frozenset())]
    while waiting:
        place, above = waiting.pop()
        try:
            info = os.stat(place)
            if (info.st_dev, info.st_ino) in above:
                part.loops.append(os.path.relpath(place, root))
                continue
            with os.scandir(place) as found:
                entries = [(entry, is_folder(entry)) for entry in found]
        except OSError as error:
            part.closed.append((os.path.relpath(place, root), refusal(place, error)))
            continue
        here = above | {(info.st_dev, info.st_ino)}
        if deep:
            waiting += [(entry.path, here) for entry, folder in entries if folder]
        yield place, [entry.name for entry, folder in entries if not folder]


def _examined(path: str) -> tuple[State, str]:
    """(state, reason) of a file that has not been opened."""
    try:
        info = os.stat(path)
    except OSError as error:
        if os.path.islink(path):
            return State.LINK, f"→ {os.readlink(path)}: {error.strerror}"
        return State.UNREADABLE, refusal(path, error)
    if not stat.S_ISREG(info.st_mode):
        return State.ALIEN, "a pipe, socket or device, not a file"
    if info.st_size == 0:
        return State.EMPTY, ""
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        return State.UNREADABLE, who_may(info)
    return State.UNSEEN, ""


def _starts_as_image(path: str) -> bool:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb", buffering=0) as file:
            return image_format(file.read(HEAD)) != ""
    except OSError:
        return False  # ImageFolder ignores it in any case


def image_format(head: bytes) -> str:
    """The format of an image that starts with `head` (16 bytes or more), or "" if it is none."""
    if head[4:8] == b"ftyp":
        brand = head[8:12]
        return "AVIF" if brand in (b"avif", b"avis") else "HEIF" if brand in HEIF_BRANDS else ""
    if head[:4] == b"RIFF":
        return "WEBP" if head[8:12] == b"WEBP" else ""
    if head[:2] == b"BM":
        return "BMP" if head[6:10] == bytes(4) else ""
    return next((name for start, name in SIGNATURES if head.startswith(start)), "")


def looks_like(data: bytes) -> str:
    """What a file seems to be that is not an image."""
    head = data[:HEAD].lstrip().lower()
    text = data[:HEAD].isascii() and data[:HEAD].decode("ascii").isprintable()
    rest = "nothing but zero bytes" if not data.strip(b"\0") else "text" if text else "unknown data"
    return next((what for start, what in LIKENESSES if head.startswith(start)), rest)
