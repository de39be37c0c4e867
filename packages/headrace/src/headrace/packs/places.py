"""Folders of files to read, on a disk or in an object store."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

from torchvision.datasets.folder import find_classes

from headrace.errors import PackError, RemoteError, printable
from headrace.sources.reading import read_part
from headrace.sources.stores.store import FileInfo, Store


class DiskFolder:
    """A folder on a disk; if its path is empty, names are paths. Several threads may read at once."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.url = os.fspath(root)

    def at(self, name: str) -> str:
        """The path of a file."""
        return os.path.join(self.url, name)

    def classes(self) -> list[str]:
        """Names of the class folders, in order. Raises PackError if there are none."""
        try:
            return list(find_classes(self.url)[0])
        except FileNotFoundError:
            raise _no_classes(self.url) from None
        except OSError as error:
            raise PackError(f"{printable(self.url)} can't be listed: {error.strerror}.") from error

    def walk(self, below: str = "") -> Iterator[tuple[str, list[str]]]:
        """Yields (folder, names of the files in it) of `below` and all that is in it, in ImageFolder's
        order."""
        for place, _, names in sorted(os.walk(self.at(below), followlinks=True)):
            yield os.path.relpath(place, self.url), sorted(names)

    def find(self, names: Sequence[str]) -> list[FileInfo]:
        """Examines files. Raises PackError if one can't be read or isn't a regular file."""
        return [self._stat(name) for name in names]

    def list(self) -> Iterator[FileInfo]:
        """Yields the regular files of the folder and those of all folders in it; none if there is no such
        folder."""
        for place, names in self.walk():
            for name in names:
                with suppress(PackError):  # removed meanwhile, or not a file
                    yield self._stat(os.path.normpath(f"{place}/{name}"))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Reads bytes `start` to `stop` - 1 of a file, or those of them that it has. Raises OSError, which
        names it."""
        return read_part(self.at(name), start, None if stop is None else stop - start)

    def _stat(self, name: str) -> FileInfo:
        path = self.at(name)
        try:
            info = os.stat(path)
        except OSError as error:
            raise PackError(f"{printable(path)} can't be read: {error.strerror}.") from error
        if not stat.S_ISREG(info.st_mode):
            raise PackError(f"{printable(path)} is a pipe, socket, device or folder.")
        return FileInfo(name, info.st_size, "", info.st_mtime_ns)


class StoreFolder(Store):
    """A folder of an object store, used as `DiskFolder`; listed once, when a listing is first needed."""

    def classes(self) -> list[str]:
        names = {name.partition("/")[0] for name in self._files if "/" in name}
        if not names:
            raise _no_classes(self.url)
        return sorted(names)

    def walk(self, below: str = "") -> Iterator[tuple[str, list[str]]]:
        for place, names in sorted(self._by_class[below].items()):
            yield place, sorted(names)

    def find(self, names: Sequence[str]) -> list[FileInfo]:
        return [self._files[name] for name in names]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        try:
            return super().read(name, start, stop)
        except RemoteError as error:
            raise PackError(str(error)) from error

    def list(self) -> Iterator[FileInfo]:
        return iter(self._files.values())

    @cached_property
    def _files(self) -> dict[str, FileInfo]:
        return {each.name: each for each in super().list() if not each.name.endswith("/")}

    @cached_property
    def _by_class(self) -> Mapping[str, Mapping[str, Sequence[str]]]:
        """Names of files, by folder, by class folder."""
        names: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for name in self._files:
            place, _, base = name.rpartition("/")
            names[place.partition("/")[0]][place].append(base)
        return names


Folder = DiskFolder | StoreFolder


def _no_classes(root: str) -> PackError:
    return PackError(
        f"{printable(root)} has no class folders: give the folder that ImageFolder gets, a folder of .tar"
        " shards, an LMDB, or an ILSVRC2012 tar file."
    )
