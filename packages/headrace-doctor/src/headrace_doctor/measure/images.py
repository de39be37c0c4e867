"""Finds the images of a dataset as torchvision's ImageFolder would, and those that are bad."""

from __future__ import annotations

import io
import os
import pwd
import stat
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Literal

from PIL import Image, UnidentifiedImageError

Progress = Callable[[int, int], None]  # called with (number done, number in all), now and then
# What torchvision's ImageFolder takes for images, in any letter case.
IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# What a split's folder is called, in lower case.
SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip", ".rar", ".7z")
PACK_INDEX = "index.arrow"
DEPTH, BREADTH = 4, 64  # levels searched for images below the given folder, and folders searched on each
PEEKED = 1000  # entries of a folder examined to see whether it holds an image
# Folders that tools leave behind: ImageFolder takes each of them for a class.
DEBRIS = ("__MACOSX", "@eaDir", "lost+found", "System Volume Information", "$RECYCLE.BIN", "__pycache__")
# Extensions of images that ImageFolder ignores, and formats by the extensions that imply them.
OTHER_IMAGES = (".jfif", ".jpe", ".gif", ".heic", ".heif", ".avif", ".jp2", ".jxl")
IMPLIED = {
    **dict.fromkeys((".jpg", ".jpeg"), "JPEG"),
    **dict.fromkeys((".ppm", ".pgm"), "PPM"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **{f".{name.lower()}": name for name in ("PNG", "BMP", "WEBP")},
}
FORMATS = ("JPEG", "PNG", "GIF", "TIFF", "JPEG2000", "BMP", "WEBP", "AVIF")  # recognized by their first bytes
HEAD = 64  # first bytes of a file that tell what it is
# Beginnings of files that lie in place of images, in lower case.
LIKENESSES = (
    (b"version https://git-lfs", "a Git LFS pointer: run git lfs pull"),
    (b"<!doctype html", "an HTML page, as servers send for missing files"),
    (b"<html", "an HTML page, as servers send for missing files"),
    (b"<svg", "SVG"),
    (b"pk\x03\x04", "a zip file"),
    (b"%pdf", "PDF"),
    (b"\0\x05\x16\x07", "a resource fork of macOS, as its tar and zip leave next to each file"),
)
SNIFFED = 1000  # files without an image's extension whose first bytes are read, at most, per class
CHUNK = 64  # images that a thread decodes at a time
Kind = Literal[
    "missing",  # no such path
    "file",  # not a folder
    "unreadable",  # not listable by this user
    "empty",
    "pack",  # made by headrace pack
    "splits",  # train, val, …: in `inside`
    "classes",  # class folders, as ImageFolder expects
    "images",  # images, and no folders that hold any
    "above",  # the images lie further down: in `inside`
    "archives",  # archives, and no images
    "nothing",  # other files
]


@dataclass(frozen=True)
class Place:
    """A folder, as far as names describe it.

    Attributes:
        path: of the folder.
        kind: see `Kind`.
        inside: (split or "", place) to examine instead of this one.
        folders, images: numbers of direct entries.
        archives, entries: names of direct entries, sorted.
        why: the system's message if it cannot be listed.
    """

    path: str
    kind: Kind
    inside: tuple[tuple[str, Place], ...] = ()
    folders: int = 0
    images: int = 0
    archives: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    why: str = ""

    def leaves(self, split: str = "") -> list[tuple[str, Place]]:
        """(split, place) of all places that hold, or could hold, images."""
        if self.inside:
            return [leaf for name, place in self.inside for leaf in place.leaves(name or split)]
        return [(split, self)]


class Trouble(Enum):
    """A thing that can be the matter with a file or folder."""

    LINK = "a link whose target is missing"
    UNREADABLE = "not readable by this user, or by the storage"
    CIRCLE = "a link to a folder above it"
    IGNORED = "an image whose extension ImageFolder ignores"
    EMPTY = "0 bytes"
    ALIEN = "not an image"
    CUT = "truncated"
    DAMAGED = "Pillow raises for other reasons"
    HUGE = "more pixels than Pillow accepts"
    MISNAMED = "of another format than its name says"


Troubles = list[tuple[Trouble, str, str]]  # (what it is, path relative to the split, reason)


@dataclass
class Split:
    """One folder of class folders, or of images.

    Attributes:
        name: "train", "val", "test", or "" if the folder's name does not say.
        path: of the folder.
        classes: number of images by class folder, in ImageFolder's order; empty if the images lie in `path`.
        images: files that ImageFolder takes for samples and that can be opened, in its order.
        troubles: what is the matter with others, and with images that were decoded.
    """

    name: str
    path: str
    classes: dict[str, int]
    images: list[str] = field(default_factory=list)
    troubles: Troubles = field(default_factory=list)


def look_at(path: str, depth: int = DEPTH) -> Place:
    """Describes what lies at `path`, by names alone.

    Args:
        path: of a folder or file, which may be missing or closed: the result says so, nothing is raised.
        depth: levels to descend if there are no images.
    """
    try:
        folders, files = listed(path)
    except (FileNotFoundError, NotADirectoryError):
        return Place(path, "file" if os.path.exists(path) else "missing")
    except OSError as error:
        return Place(path, "unreadable", why=refusal(path, error))
    images = sum(map(is_image, files))
    archives = tuple(name for name in files if name.lower().endswith(ARCHIVES))
    real = [name for name in folders if not is_debris(name)]
    kind, inside = _kind(path, real, files, images, archives, depth)
    return Place(path, kind, inside, len(folders), images, archives, tuple(sorted(folders + files)))


def _kind(
    path: str, folders: list[str], files: list[str], images: int, archives: tuple[str, ...], depth: int
) -> tuple[Kind, tuple[tuple[str, Place], ...]]:
    if PACK_INDEX in files:
        return "pack", ()
    if not folders and not images and not archives:
        return ("empty" if all(map(is_debris, files)) else "nothing"), ()
    splits = [(split_of(name), os.path.join(path, name)) for name in folders if split_of(name)]
    if len(splits) > 1 or any(_peek(folder)[0] for _, folder in splits):
        return "splits", tuple((split, look_at(folder, depth)) for split, folder in splits)
    if any(_has_image(os.path.join(path, name)) for name in folders):
        return "classes", ()
    if depth > 0 and not images:
        below = [look_at(os.path.join(path, name), depth - 1) for name in folders[:BREADTH]]
        hits = [one for one in below if one.kind in ("splits", "classes", "above", "pack")]
        if len(hits) > 1 and all(one.kind == "classes" for one in hits):
            return "classes", ()  # each with folders of its own: ImageFolder takes all that is in them
        full = [one for one in hits if one.kind != "classes" or _holds_any(one.path)]
        if full:
            return "above", tuple(("", one) for one in full)
    return ("images" if images else "archives" if archives else "classes"), ()


def _holds_any(path: str) -> bool:
    """Returns whether any class folder of a place holds an image."""
    return any(_has_image(folder) for folder, _ in islice(walk(path, []), 1, BREADTH))


def _has_image(path: str) -> bool:
    return any(map(is_image, _peek(path)[1]))


def _peek(path: str) -> tuple[list[str], list[str]]:
    try:
        return listed(path, PEEKED)
    except OSError:
        return [], []  # reported when its files are listed


def listed(path: str, most: int | None = None) -> tuple[list[str], list[str]]:
    """Names of a folder's folders, links to folders included, and of its other entries, sorted.

    Raises:
        OSError: the folder cannot be listed.
    """
    names: tuple[list[str], list[str]] = [], []
    with os.scandir(path) as entries:
        for entry in islice(entries, most):
            try:
                folder = entry.is_dir()
            except OSError:
                folder = False  # a link that cannot be followed
            names[not folder].append(entry.name)
    return sorted(names[0]), sorted(names[1])


def walk(root: str, troubles: Troubles, below: str = "") -> Iterator[tuple[str, list[str]]]:
    """(folder, names of its files) of `root` or a folder `below` it, and of all folders in that, following
    links except into a circle.

    Args:
        root: the folder that paths in `troubles` are relative to.
        troubles: gets the folders that cannot be listed, and the circles.
        below: path relative to `root`.
    """
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [(os.path.join(root, below), frozenset())]
    while waiting:
        folder, above = waiting.pop()
        try:
            info = os.stat(folder)
            here = info.st_dev, info.st_ino
            if here in above:
                troubles.append((Trouble.CIRCLE, os.path.relpath(folder, root), ""))
                continue
            folders, files = listed(folder)
        except OSError as error:
            troubles.append((Trouble.UNREADABLE, os.path.relpath(folder, root), refusal(folder, error)))
            continue
        waiting += [(os.path.join(folder, name), above | {here}) for name in reversed(folders)]
        yield folder, files


def is_image(name: str) -> bool:
    """Returns whether ImageFolder takes a file of this name for an image."""
    return name.lower().endswith(IMG_EXTENSIONS)


def is_debris(name: str) -> bool:
    """Returns whether a folder of this name was left by a tool and is not a class."""
    return name.startswith(".") or name in DEBRIS


def split_of(name: str) -> str:
    """The split that a folder of this name holds, or "" if it is none."""
    return next((split for split, known in SPLITS.items() if name.lower() in known), "")


def list_split(
    name: str, path: str, *, flat: bool = False, workers: int = 1, progress: Progress | None = None
) -> Split:
    """Lists the files below `path`; only those without an image's extension are opened.

    Args:
        name: of the split, or "" if the folder's name does not say.
        path: of the split's folder.
        flat: whether the images lie in `path` itself, without classes.
        workers: number of threads, each with one class folder at a time.
        progress: called with (folders listed, folders in all). Default: not at all.

    Raises:
        OSError: `path` itself cannot be listed.
    """
    folders, files = listed(path)
    classes = [""] if flat else folders
    split = Split(name, path, {})
    with ThreadPoolExecutor(workers) as pool:
        parts = pool.map(lambda folder: _list_class(path, folder), classes)
        for number, (folder, (images, count, troubles)) in enumerate(zip(classes, parts, strict=True), 1):
            split.images += images
            split.troubles += troubles
            if not flat:
                split.classes[folder] = count
            if progress is not None:
                progress(number, len(classes))
    lost = [] if flat else [file for file in files if not os.path.exists(os.path.join(path, file))]
    split.troubles += [(Trouble.LINK, name, _target(os.path.join(path, name))) for name in lost]
    return split


def _list_class(root: str, folder: str) -> tuple[list[str], int, Troubles]:
    """(images that can be opened, number of all images, troubles) of a class folder."""
    troubles: Troubles = []
    images: list[str] = []
    count = sniffed = 0
    places = walk(root, troubles, folder) if folder else islice(walk(root, []), 1)
    for place, names in sorted(places):
        for name in names:
            path = os.path.join(place, name)
            below = os.path.relpath(path, root)
            if is_image(name):
                count += 1
                trouble = _trouble_before_opening(path)
                if trouble is None:
                    images.append(below)
                else:
                    troubles.append((trouble[0], below, trouble[1]))
            else:
                sniffed += 1
                if name.lower().endswith(OTHER_IMAGES) or (sniffed <= SNIFFED and _starts_as_image(path)):
                    troubles.append((Trouble.IGNORED, below, ""))
    return images, count, troubles


def _trouble_before_opening(path: str) -> tuple[Trouble, str] | None:
    try:
        info = os.stat(path)
    except OSError as error:
        if os.path.islink(path):
            return Trouble.LINK, _target(path)
        return Trouble.UNREADABLE, refusal(path, error)
    if not stat.S_ISREG(info.st_mode):
        return Trouble.ALIEN, "a pipe, socket or device, not a file"
    if info.st_size == 0:
        return Trouble.EMPTY, ""
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        return Trouble.UNREADABLE, _who_may(info)
    return None


def _target(link: str) -> str:
    return f"→ {os.readlink(link)}"


def _starts_as_image(path: str) -> bool:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb", buffering=0) as file:
            head = file.read(HEAD)
        return image_format(head) != "" and not (head.isascii() and b"\0" not in head)  # text that begins so
    except OSError:
        return False  # ImageFolder ignores it in any case


def image_format(head: bytes) -> str:
    """The format of an image that starts with `head` by Pillow's own tests, or "" if it is none."""
    Image.init()
    tests = {name: Image.OPEN[name][1] for name in FORMATS if name in Image.OPEN}
    return next((name for name, accept in tests.items() if accept and accept(head[:16])), "")


def looks_like(data: bytes) -> str:
    """Names what a file seems to be that is not an image."""
    head = data[:HEAD].lstrip().lower()
    text = data[:HEAD].isascii() and data[:HEAD].decode("ascii").isprintable()
    rest = "nothing but zero bytes" if not data.strip(b"\0") else "text" if text else "unknown data"
    return next((what for start, what in LIKENESSES if head.startswith(start)), rest)


def decode_all(splits: list[Split], *, workers: int, progress: Progress | None = None) -> None:
    """Adds the troubles that reading and decoding show, by Pillow, as torchvision's datasets do.

    Args:
        splits: as listed. Images with a trouble leave `images`, but for misnamed ones.
        workers: number of threads.
        progress: called with (images done, images in all), now and then. Default: not at all.
    """
    starts = [(split, start) for split in splits for start in range(0, len(split.images), CHUNK)]
    chunks = [(split, split.images[start : start + CHUNK]) for split, start in starts]
    total, done = sum(len(split.images) for split in splits), 0
    # Pillow warns of unusual files. Filters hold for the whole process, so they are set before threads start.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pool = ThreadPoolExecutor(workers)
        try:
            for (split, names), troubles in zip(chunks, pool.map(_decoded, chunks), strict=True):
                split.troubles += troubles
                done += len(names)
                if progress is not None:
                    progress(done, total)
        finally:
            pool.shutdown(cancel_futures=True)
    for split in splits:
        bad = {name for trouble, name, _ in split.troubles if trouble is not Trouble.MISNAMED}
        split.images = [name for name in split.images if name not in bad]


def _decoded(chunk: tuple[Split, list[str]]) -> Troubles:
    split, names = chunk
    found = ((name, _by_pillow(os.path.join(split.path, name))) for name in names)
    return [(trouble[0], name, trouble[1]) for name, trouble in found if trouble is not None]


def _by_pillow(path: str) -> tuple[Trouble, str] | None:
    """The trouble that torchvision's loader would have with a file, or None."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.read()
    except OSError as error:
        return Trouble.UNREADABLE, refusal(path, error)
    try:
        with Image.open(io.BytesIO(data)) as image:
            # Pillow opens JPEGs of phones that hold further images behind the first as MPO.
            format_ = "JPEG" if image.format == "MPO" else image.format or ""
            image.convert("RGB")
    except UnidentifiedImageError:
        known = image_format(data)
        if known:
            return Trouble.CUT, f"ends within the header of a {known}"
        return Trouble.ALIEN, looks_like(data)
    except Image.DecompressionBombError as error:
        return Trouble.HUGE, str(error)
    except Exception as error:  # Pillow raises anything for a bad file: SyntaxError, struct.error, …
        trouble = Trouble.CUT if "truncated" in str(error).lower() else Trouble.DAMAGED
        return trouble, f"{type(error).__name__}: {error}"
    implied = IMPLIED.get(os.path.splitext(path)[1].lower())
    return None if implied in (None, format_) else (Trouble.MISNAMED, f"is {format_}")


def refusal(path: str, error: OSError) -> str:
    """The system's message for `path`, and its permissions.

    For example ``Permission denied: drwx------ of ann (uid 1000), group 1000; this process is bob
    (uid 1001)``.
    """
    reason = error.strerror or str(error)
    try:
        return f"{reason}: {_who_may(os.stat(path))}"
    except OSError:
        return reason  # its parent is closed, too, or it is gone


def _who_may(info: os.stat_result) -> str:
    """Mode and owner of a file, and who this process is."""
    me = _user(os.geteuid())
    return f"{stat.filemode(info.st_mode)} of {_user(info.st_uid)}, group {info.st_gid}; this process is {me}"


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
