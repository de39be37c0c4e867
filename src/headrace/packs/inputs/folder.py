"""An ImageFolder tree: the samples, order and labels that torchvision gives it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes

from headrace.errors import PackError, printable
from headrace.packs.records import Record, Sample

# Kinds of left-out files that a note names.
NAMED = 5


class FolderInput:
    """The images below `root`, and files beside them that differ in nothing but the extension.

    Args:
        root: a folder of class folders, as ImageFolder gets it.

    Raises:
        PackError: it has no class folders.
    """

    kind = "ImageFolder"

    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)
        try:
            self._folders, self._labels = find_classes(self._root)
        except FileNotFoundError:
            raise PackError(
                f"{printable(self._root)} has no class folders: give the folder that ImageFolder gets, a"
                " folder of .tar shards, an LMDB, or an ILSVRC2012 tar file."
            ) from None
        except OSError as error:
            raise PackError(f"{printable(self._root)} can't be listed: {error.strerror}.") from error
        self.classes = tuple(_text(name) for name in self._folders)
        self._left_out: Counter[str] = Counter()

    def records(self) -> list[Record]:
        """See `Input`."""
        self._left_out.clear()
        return [record for name in self._folders for record in self._of_class(name)]

    def read(self, record: Record) -> Sample:
        """See `Input`."""
        label, image, others = record.place
        data = self._read(image)
        fields = tuple((_extension(name), self._read(name)) for name in others)
        if len(data) + sum(len(field) for _, field in fields) != record.size:
            raise PackError(
                f"{printable(self._path(image))} has changed while it was packed: run headrace pack again."
            )
        return Sample(record.key, _text(_extension(image)), data, label, fields)

    def notes(self) -> list[str]:
        """See `Input`."""
        if not self._left_out:
            return []
        kinds = [f"{printable(kind)} ({count:,})" for kind, count in self._left_out.most_common(NAMED)]
        rest = ["others"] if len(self._left_out) > NAMED else []
        total = sum(self._left_out.values())
        return [f"{total:,} files that ImageFolder ignores were left out: {', '.join(kinds + rest)}"]

    def _of_class(self, folder: str) -> Iterator[Record]:
        # ImageFolder sorts folders by their paths, and names within each.
        for place, _, names in sorted(os.walk(os.path.join(self._root, folder), followlinks=True)):
            below = os.path.relpath(place, self._root)
            yield from self._of_folder(below, sorted(names), self._labels[folder])

    def _of_folder(self, below: str, names: list[str], label: int) -> Iterator[Record]:
        images = [name for name in names if name.lower().endswith(IMG_EXTENSIONS)]
        stems = Counter(_stem(name) for name in images)
        beside: dict[str, list[str]] = {}
        for name in names:
            if name.lower().endswith(IMG_EXTENSIONS):
                continue
            # The label is ImageFolder's: a second one would contradict it.
            if stems[_stem(name)] == 1 and _extension(name) not in ("", "cls"):
                beside.setdefault(_stem(name), []).append(name)
            else:
                self._left_out[_extension(name) or "no extension"] += 1
        for name in images:
            # Files that differ in nothing but the extension keep it, so that their keys differ.
            stem = _stem(name) if stems[_stem(name)] == 1 else name
            others = beside.get(_stem(name), ())
            paths = (f"{below}/{name}", *(f"{below}/{other}" for other in others))
            size, stamp = self._stat(paths)
            yield Record(_text(f"{below}/{stem}"), size, stamp, (label, paths[0], paths[1:]))

    def _stat(self, paths: tuple[str, ...]) -> tuple[int, int]:
        """Bytes of all, and the latest time of modification."""
        infos = []
        for path in paths:
            try:
                infos.append(os.stat(self._path(path)))
            except OSError as error:
                raise PackError(f"{printable(self._path(path))} can't be read: {error.strerror}.") from error
        return sum(info.st_size for info in infos), max(info.st_mtime_ns for info in infos)

    def _read(self, path: str) -> bytes:
        try:
            with open(self._path(path), "rb", buffering=0) as file:
                return file.readall()
        except OSError as error:
            raise PackError(f"{printable(self._path(path))} can't be read: {error.strerror}.") from error

    def _path(self, below: str) -> str:
        return os.path.join(self._root, below)


def _stem(name: str) -> str:
    """`name` without its extension; all of it where nothing would be left."""
    return name.rpartition(".")[0] or name


def _extension(name: str) -> str:
    _, dot, extension = name.rpartition(".")
    return extension if dot else ""


def _text(name: str) -> str:
    """A file's name as text; bytes that aren't UTF-8 become ``\\xNN``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
