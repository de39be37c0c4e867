"""The image files of a split, as torchvision's ImageFolder would find them and Pillow decodes them."""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from headrace_doctor.measure.tree import is_folder, refusal, who_may

Progress = Callable[[int, int], None]  # called with (number done, number in all), now and then
# Extensions of images that ImageFolder ignores.
OTHER_IMAGES = (".jfif", ".jpe", ".gif", ".heic", ".heif", ".avif", ".jp2", ".jxl")
HEAD = 64  # first bytes of a file that identify what it is
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "JPEG2000")
# Formats by the extensions that imply them, in lower case.
IMPLIED = {
    **dict.fromkeys((".jpg", ".jpeg"), "JPEG"),
    **dict.fromkeys((".ppm", ".pgm"), "PPM"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **{f".{name.lower()}": name for name in ("PNG", "BMP", "WEBP")},
}
CHUNK = 64  # images that a thread takes at a time
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
        name: "train", "val", "test", or "" if the folder's name does not say.
        path: of the folder.
        classes: names of the class folders, in ImageFolder's order; none if the images lie in `path` itself.
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
        name: of the split, or "" if the folder's name does not say.
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

    def refused(error: OSError) -> None:
        path = str(error.filename)
        part.closed.append((os.path.relpath(path, root), refusal(path, error)))

    for place, folders, names in os.walk(start, followlinks=True, onerror=refused):
        here, below = os.path.realpath(place), list(folders)
        folders.clear()
        for name in below if deep else ():
            path = os.path.join(place, name)
            if os.path.islink(path) and f"{here}/".startswith(f"{os.path.realpath(path)}/"):
                part.loops.append(os.path.relpath(path, root))
            else:
                folders.append(name)
        yield place, names


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
    """The format of an image that starts with `head`, by Pillow's plugins, or "" if it is none."""
    Image.init()
    plugins = {name: Image.OPEN[name][1] for name in FORMATS if name in Image.OPEN}
    return next((name for name, accept in plugins.items() if accept is not None and accept(head)), "")


def looks_like(data: bytes) -> str:
    """What a file seems to be that is not an image."""
    head = data[:HEAD].lstrip().lower()
    text = data[:HEAD].isascii() and data[:HEAD].decode("ascii").isprintable()
    rest = "nothing but zero bytes" if not data.strip(b"\0") else "text" if text else "unknown data"
    return next((what for start, what in LIKENESSES if head.startswith(start)), rest)


def decode_all(splits: list[Split], *, workers: int = 1, progress: Progress | None = None) -> None:
    """Fills in what reading and decoding shows about the images of `splits`.

    A file that fails only gets its state; nothing is raised for it.

    Args:
        splits: as listed; images whose state is known are left as they are.
        workers: number of threads.
        progress: called with (images done, images in all), now and then. Default: not at all.
    """
    chunks = [(split, rows) for split in splits for rows in _chunks(split.images)]
    total = sum(len(rows) for _, rows in chunks)
    done = 0
    # Pillow warns of unusual files; states have what matters of it. Filters hold for the whole process, so
    # they are set before threads start.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pool = ThreadPoolExecutor(workers)
        try:
            looks = pool.map(lambda chunk: _decode(*chunk), chunks)
            for (_, rows), _ in zip(chunks, looks, strict=True):
                done += len(rows)
                if progress is not None:
                    progress(done, total)
        finally:
            pool.shutdown(cancel_futures=True)


def _chunks(images: Images) -> Iterator[npt.NDArray[np.int64]]:
    """Numbers of files that are present, a part at a time."""
    unseen = np.flatnonzero(images.states == State.UNSEEN)
    for first in range(0, len(unseen), CHUNK):
        yield unseen[first : first + CHUNK]


def _decode(split: Split, rows: npt.NDArray[np.int64]) -> None:
    images = split.images
    for row in rows.tolist():
        path = os.path.join(split.path, images.names[row])
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.read()
        except OSError as error:
            images.states[row], images.reasons[row] = State.UNREADABLE, refusal(path, error)
            continue
        images.states[row], reason, format_ = _by_pillow(data)
        if reason:
            images.reasons[row] = reason
        implied = IMPLIED.get(os.path.splitext(path)[1].lower())
        if format_ and implied not in (None, format_):
            images.misnamed[row] = format_


def _by_pillow(data: bytes) -> tuple[State, str, str]:
    """(state, reason, format) of what torchvision's loader would make of a file."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            # Pillow opens JPEGs of phones that hold further images behind the first as MPO.
            format_ = "JPEG" if image.format == "MPO" else image.format or ""
            image.convert("RGB")
        return State.GOOD, "", format_
    except UnidentifiedImageError:
        known = image_format(data[:HEAD].ljust(HEAD, b"\xff"))
        if known:
            return State.CUT, f"ends within the header of a {known}", ""
        return (State.ALIEN if data else State.EMPTY), looks_like(data), ""
    except Image.DecompressionBombError as error:
        return State.HUGE, str(error), ""
    except Exception as error:  # Pillow raises anything for a bad file: SyntaxError, struct.error, …
        state = State.CUT if "truncated" in str(error).lower() else State.DAMAGED
        return state, f"{type(error).__name__}: {error}", ""
