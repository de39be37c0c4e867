"""Where the images lie in a tree of folders, by names alone: files are not opened."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import islice
from typing import Literal

# Of the files that ImageFolder takes for images, in lower case.
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
REMEMBERED = 12  # entries of a folder kept for messages
# Folders that tools leave behind: ImageFolder takes each of them for a class.
DEBRIS = ("__MACOSX", "@eaDir", "lost+found", "System Volume Information", "$RECYCLE.BIN", "__pycache__")
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
        archives: names of direct entries.
        entries: some of its names, sorted.
        why: the system's message if it cannot be listed; the target of a broken link.
        nearest: the closest existing parent of a missing folder; `entries` are then its entries.
        similar: names there that resemble the missing one.
        mount: whether a file system is mounted here.
        siblings: number of other folders in its parent that hold images, if it holds only images.
    """

    path: str
    kind: Kind
    inside: tuple[tuple[str, Place], ...] = ()
    folders: int = 0
    images: int = 0
    archives: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    why: str = ""
    nearest: str = ""
    similar: tuple[str, ...] = ()
    mount: bool = False
    siblings: int = 0

    def leaves(self, split: str = "") -> list[tuple[str, Place]]:
        """(split, place) of all places that hold, or could hold, images."""
        if self.inside:
            return [leaf for name, place in self.inside for leaf in place.leaves(name or split)]
        return [(split, self)]


def look_at(path: str, extensions: Sequence[str], depth: int = DEPTH) -> Place:
    """What lies at `path`.

    Args:
        path: of a folder or file, which may be missing or closed: the result says so, nothing is raised.
        extensions: those of images, in lower case, with the dot.
        depth: levels to descend where there are no images.
    """
    try:
        place, folders = _listed(path, tuple(extensions))
    except FileNotFoundError:
        return Place(path, "missing")
    except NotADirectoryError:
        return Place(path, "file" if os.path.exists(path) else "missing")
    except OSError as error:
        return Place(path, "unreadable", why=refusal(path, error))
    kind, inside = _judge(place, folders, extensions, depth)
    return replace(place, kind=kind, inside=inside)


def with_surroundings(place: Place, extensions: Sequence[str]) -> Place:
    """`place` with its surroundings, which explain why it is not what was expected."""
    path = os.path.abspath(place.path)
    if place.kind == "missing":
        nearest = os.path.dirname(path)
        while not os.path.isdir(nearest):
            path, nearest = nearest, os.path.dirname(nearest)
        names = sorted(entry.name for entry in _peek(nearest))
        lower = {name.lower(): name for name in names}
        close = get_close_matches(os.path.basename(path).lower(), lower, n=3, cutoff=0.7)
        return replace(
            place,
            why=os.readlink(place.path) if os.path.islink(place.path) else "",
            nearest=nearest,
            similar=tuple(lower[name] for name in close),
            entries=tuple(names[:REMEMBERED]),
        )
    if place.kind == "images":
        beside = [entry.path for entry in _peek(os.path.dirname(path)) if is_folder(entry)][:BREADTH]
        count = sum(_has_image(folder, tuple(extensions)) for folder in beside if folder != path)
        return replace(place, siblings=count)
    return replace(place, mount=os.path.ismount(path))


def is_debris(name: str) -> bool:
    """Whether a folder of this name was left by a tool and is not a class."""
    return name.startswith(".") or name in DEBRIS


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether the entry is a folder or a link to one, as ImageFolder sees it."""
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link that cannot be followed


def split_of(name: str) -> str:
    """The split that a folder of this name holds, or "" if none."""
    return next((split for split, known in SPLITS.items() if name.lower() in known), "")


def _listed(path: str, extensions: tuple[str, ...]) -> tuple[Place, list[str]]:
    """The place, whose kind is not known yet, and the names of its folders."""
    folders: list[str] = []
    archives: list[str] = []
    names: list[str] = []
    images = 0
    with os.scandir(path) as entries:
        for entry in entries:
            if len(names) < REMEMBERED or entry.name == PACK_INDEX:
                names.append(entry.name)
            if is_folder(entry):
                folders.append(entry.name)
            elif entry.name.lower().endswith(extensions):
                images += 1
            elif entry.name.lower().endswith(ARCHIVES):
                archives.append(entry.name)
    found = tuple(sorted(archives)), tuple(sorted(names))
    return Place(path, "nothing", (), len(folders), images, *found), sorted(folders)


def _judge(
    place: Place, folders: Sequence[str], extensions: Sequence[str], depth: int
) -> tuple[Kind, tuple[tuple[str, Place], ...]]:
    path = place.path
    if PACK_INDEX in place.entries:
        return "pack", ()
    folders = [name for name in folders if not is_debris(name)]
    if not folders and not place.images and not place.archives:
        return ("empty" if all(map(is_debris, place.entries)) else "nothing"), ()
    splits = [(split_of(name), os.path.join(path, name)) for name in folders if split_of(name)]
    if len(splits) > 1 or any(_has_folders(folder) for _, folder in splits):
        return "splits", tuple((split, look_at(folder, extensions, depth)) for split, folder in splits)
    if any(_has_image(os.path.join(path, name), tuple(extensions)) for name in folders):
        return "classes", ()
    if depth > 0 and not place.images:
        below = [look_at(os.path.join(path, name), extensions, depth - 1) for name in folders[:BREADTH]]
        hits = [one for one in below if one.kind in ("splits", "classes", "above", "pack")]
        if len(hits) > 1 and all(one.kind == "classes" for one in hits):
            return "classes", ()  # each with folders of its own: ImageFolder takes all that is in them
        full = [one for one in hits if one.kind != "classes" or _holds_any(one, extensions)]
        if full:
            return "above", tuple(("", one) for one in full)
    return ("images" if place.images else "archives" if place.archives else "classes"), ()


def _holds_any(place: Place, extensions: Sequence[str]) -> bool:
    """Whether any class folder of a place holds an image."""
    for folder, _, names in islice(os.walk(place.path), BREADTH):
        if folder != place.path and any(name.lower().endswith(tuple(extensions)) for name in names):
            return True
    return False


def _has_folders(path: str) -> bool:
    return any(is_folder(entry) for entry in _peek(path))


def _has_image(path: str, extensions: tuple[str, ...]) -> bool:
    return any(entry.name.lower().endswith(extensions) for entry in _peek(path))


def _peek(path: str) -> Iterable[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(islice(entries, PEEKED))
    except OSError:
        return ()  # reported when its files are listed


def refusal(path: str, error: OSError) -> str:
    """The system's message for `path`, and its permissions.

    For example ``Permission denied: drwx------ of ann (uid 1000), group 1000; this process is bob
    (uid 1001)``.
    """
    reason = error.strerror or str(error)
    try:
        return f"{reason}: {who_may(os.stat(path))}"
    except OSError:
        return reason  # its parent is closed, too, or it is gone


def who_may(info: os.stat_result) -> str:
    """Mode and owner of a file, and who this process is."""
    return (
        f"{stat.filemode(info.st_mode)} of {_user(info.st_uid)}, group {info.st_gid}; this process is"
        f" {_user(os.geteuid())}"
    )


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
