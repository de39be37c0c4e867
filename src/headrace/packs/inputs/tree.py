"""Where the class folders of an ImageFolder tree lie: on a disk, or in a store."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from torchvision.datasets.folder import find_classes

from headrace.errors import PackError, RemoteError, printable
from headrace.packs.inputs.files import as_text, extension_of, file_record, read_record
from headrace.packs.records import Record, Sample
from headrace.remote.store import Found, Store


class Tree(Protocol):
    """Class folders with files. `read` is called by several threads at once."""

    def classes(self) -> list[str]:
        """Names of the class folders, in order. Raises PackError where there are none."""

    def walk(self, folder: str) -> Iterator[tuple[str, list[str]]]:
        """(folder, names of the files in it) of a class folder and all below it, in ImageFolder's order."""

    def record(self, key: str, label: int, paths: Sequence[str]) -> Record:
        """Of an image and the fields beside it. Raises PackError."""

    def read(self, record: Record) -> Sample:
        """What `record` described. Raises PackError where it can't be read or has changed."""


class DiskTree:
    """A folder of class folders."""

    def __init__(self, root: str) -> None:
        self._root = root

    def classes(self) -> list[str]:
        """See `Tree`."""
        try:
            names: list[str] = find_classes(self._root)[0]
            return names
        except FileNotFoundError:
            raise no_classes(self._root) from None
        except OSError as error:
            raise PackError(f"{printable(self._root)} can't be listed: {error.strerror}.") from error

    def walk(self, folder: str) -> Iterator[tuple[str, list[str]]]:
        """See `Tree`."""
        for place, _, names in sorted(os.walk(os.path.join(self._root, folder), followlinks=True)):
            yield os.path.relpath(place, self._root), sorted(names)

    def record(self, key: str, label: int, paths: Sequence[str]) -> Record:
        """See `Tree`."""
        return file_record(self._root, key, label, paths)

    def read(self, record: Record) -> Sample:
        """See `Tree`."""
        return read_record(self._root, record)


class StoreTree:
    """The objects below a URL, listed once.

    Attributes:
        beside: names of those that are in no class folder.

    Raises:
        RemoteError: they can't be listed.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        self._store = Store(url, options)
        self.beside: list[str] = []
        self._found: dict[str, Found] = {}
        # Names of files by folder by class folder.
        self._names: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for each in self._store.list():
            place, _, base = each.name.rpartition("/")
            if not place:
                self.beside.append(base)
            elif base:
                self._found[each.name] = each
                self._names[place.split("/", 1)[0]][place].append(base)

    def __reduce__(self) -> tuple[Any, ...]:
        # Who reads has records, and needs no listing.
        return _unlisted, (self._store,)

    def classes(self) -> list[str]:
        """See `Tree`."""
        if not self._names:
            raise no_classes(self._store.url)
        return sorted(self._names)

    def walk(self, folder: str) -> Iterator[tuple[str, list[str]]]:
        """See `Tree`."""
        for place, names in sorted(self._names[folder].items()):
            yield place, sorted(names)

    def record(self, key: str, label: int, paths: Sequence[str]) -> Record:
        """See `Tree`."""
        found = [self._found[path] for path in paths]
        versions = "\0".join(each.version for each in found).encode()
        stamp = int.from_bytes(hashlib.sha256(versions).digest()[:8], "big")
        return Record(as_text(key), sum(each.size for each in found), stamp, (label, *paths))

    def read(self, record: Record) -> Sample:
        """See `Tree`."""
        label, image, *others = record.place
        try:
            data, *fields = (self._store.read(name) for name in (image, *others))
        except RemoteError as error:
            raise PackError(str(error)) from error
        if len(data) + sum(map(len, fields)) != record.size:
            raise PackError(f"{self._store.at(image)} has changed while it was packed: run it again.")
        named = tuple(
            (as_text(extension_of(name)), field) for name, field in zip(others, fields, strict=True)
        )
        return Sample(record.key, as_text(extension_of(image)), data, label, named)


def _unlisted(store: Store) -> StoreTree:
    tree = StoreTree.__new__(StoreTree)
    tree._store = store
    return tree


def no_classes(root: str) -> PackError:
    """The error for a folder without class folders."""
    return PackError(
        f"{printable(root)} has no class folders: give the folder that ImageFolder gets, a folder of .tar"
        " shards, an LMDB, or an ILSVRC2012 tar file."
    )
