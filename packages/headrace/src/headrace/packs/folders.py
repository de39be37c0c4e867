"""ImageFolder trees as a source of packs: the samples, order and labels that torchvision gives them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes

from headrace.errors import PackError, RemoteError, printable
from headrace.packs.records import Input, Record, Records, Sample
from headrace.remote.store import Found, Store

# Kinds of left-out files that a note names.
NAMED = 5


class FolderInput(Input):
    """The images of `tree`, and files in the same folder that differ in nothing but the extension.

    Raises:
        PackError: it has no class folders.
    """

    kind = "ImageFolder"

    def __init__(self, tree: DiskTree | StoreTree) -> None:
        self._tree = tree
        self._folders = tree.classes()
        self.classes = tuple(as_text(name) for name in self._folders)
        self._left_out: Counter[str] = Counter()

    def records(self) -> Records:
        self._left_out.clear()
        return Records(
            record
            for label, folder in enumerate(self._folders)
            for below, names in self._tree.walk(folder)
            for record in self._of_folder(below, names, label)
        )

    def read(self, record: Record) -> Sample:
        return self._tree.read(record)

    def notes(self) -> list[str]:
        if not self._left_out:
            return []
        kinds = [f"{printable(kind)} ({count:,})" for kind, count in self._left_out.most_common(NAMED)]
        rest = ["others"] if len(self._left_out) > NAMED else []
        total = sum(self._left_out.values())
        return [f"{total:,} files that ImageFolder ignores were left out: {', '.join(kinds + rest)}"]

    def modified_ns(self, records: Records) -> int | None:
        return self._tree.modified_ns(records)

    def _of_folder(self, below: str, names: list[str], label: int) -> Iterator[Record]:
        images = [name for name in names if name.lower().endswith(IMG_EXTENSIONS)]
        stems = Counter(stem_of(name) for name in images)
        fields: dict[str, list[str]] = {}
        for name in names:
            if name.lower().endswith(IMG_EXTENSIONS):
                continue
            # The label is ImageFolder's: a second one would contradict it.
            if stems[stem_of(name)] == 1 and extension_of(name) not in ("", "cls"):
                fields.setdefault(stem_of(name), []).append(name)
            else:
                self._left_out[extension_of(name) or "no extension"] += 1
        for name in images:
            # Files that differ in nothing but the extension keep it, so that their keys differ.
            stem = stem_of(name) if stems[stem_of(name)] == 1 else name
            others = fields.get(stem_of(name), ())
            paths = [f"{below}/{each}" for each in (name, *others)]
            yield self._tree.record(f"{below}/{stem}", label, paths)


class DiskTree:
    """A folder of class folders. `read` may be called by several threads at once."""

    def __init__(self, root: str) -> None:
        self._root = root

    def classes(self) -> list[str]:
        """Names of the class folders, in order. Raises PackError where there are none."""
        try:
            names: list[str] = find_classes(self._root)[0]
            return names
        except FileNotFoundError:
            raise _no_classes(self._root) from None
        except OSError as error:
            raise PackError(f"{printable(self._root)} can't be listed: {error.strerror}.") from error

    def walk(self, folder: str) -> Iterator[tuple[str, list[str]]]:
        """(folder, names of the files in it) of a class folder and all below it, in ImageFolder's order."""
        for place, _, names in sorted(os.walk(os.path.join(self._root, folder), followlinks=True)):
            yield os.path.relpath(place, self._root), sorted(names)

    def record(self, key: str, label: int, paths: Sequence[str]) -> Record:
        """The record of an image and its further fields, all below the root. Raises PackError."""
        infos = []
        for path in (os.path.join(self._root, path) for path in paths):
            try:
                info = os.stat(path)
            except OSError as error:
                raise PackError(f"{printable(path)} can't be read: {error.strerror}.") from error
            if not stat.S_ISREG(info.st_mode):
                raise PackError(f"{printable(path)} is a pipe, socket, device or folder.")
            infos.append(info)
        size, stamp = sum(info.st_size for info in infos), max(info.st_mtime_ns for info in infos)
        return Record(as_text(key), size, stamp, label, tuple(paths))

    def modified_ns(self, records: Records) -> int:
        """The time of the latest modification of `records`, in nanoseconds since 1970."""
        return records.last_stamp

    def read(self, record: Record) -> Sample:
        """What `record` described. Raises PackError where it can't be read or has changed."""
        image = os.path.join(self._root, record.names[0])
        contents = [_read(os.path.join(self._root, name), record.size) for name in record.names]
        return _sample(record, contents, image)


class StoreTree:
    """The objects below a URL, listed once; used as `DiskTree`.

    Attributes:
        top_names: names of the objects that are in no class folder.

    Raises:
        RemoteError: they can't be listed.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        self._store = Store(url, options)
        self.top_names: list[str] = []
        self._found: dict[str, Found] = {}
        # Names of files by folder by class folder.
        self._names: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for each in self._store.list():
            place, _, base = each.name.rpartition("/")
            if not place:
                self.top_names.append(base)
            elif base:
                self._found[each.name] = each
                self._names[place.split("/", 1)[0]][place].append(base)

    def __getstate__(self) -> dict[str, Any]:
        return {"_store": self._store}  # who reads has records, and needs no listing

    def classes(self) -> list[str]:
        if not self._names:
            raise _no_classes(self._store.url)
        return sorted(self._names)

    def walk(self, folder: str) -> Iterator[tuple[str, list[str]]]:
        for place, names in sorted(self._names[folder].items()):
            yield place, sorted(names)

    def record(self, key: str, label: int, paths: Sequence[str]) -> Record:
        found = [self._found[path] for path in paths]
        versions = "\0".join(each.version for each in found).encode()
        stamp = int.from_bytes(hashlib.sha256(versions).digest()[:8], "big", signed=True)
        return Record(as_text(key), sum(each.size for each in found), stamp, label, tuple(paths))

    def modified_ns(self, records: Records) -> int:
        return max(self._found[path].modified_ns for record in records for path in record.names)

    def read(self, record: Record) -> Sample:
        try:
            contents = [self._store.read(name) for name in record.names]
        except RemoteError as error:
            raise PackError(str(error)) from error
        return _sample(record, contents, self._store.at(record.names[0]))


def _sample(record: Record, contents: list[bytes], place: str) -> Sample:
    """The sample of the files that `record` names, its image at `place`. Raises PackError."""
    if sum(map(len, contents)) != record.size:
        raise PackError(f"{printable(place)} has changed while it was packed: run it again.")
    image, *others = record.names
    extensions = [as_text(extension_of(name)) for name in others]
    fields = tuple(zip(extensions, contents[1:], strict=True))
    return Sample(record.key, as_text(extension_of(image)), contents[0], record.number, fields)


def _no_classes(root: str) -> PackError:
    return PackError(
        f"{printable(root)} has no class folders: give the folder that ImageFolder gets, a folder of .tar"
        " shards, an LMDB, or an ILSVRC2012 tar file."
    )


def stem_of(name: str) -> str:
    """`name` without its extension; all of it where nothing would be left."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + (base.rpartition(".")[0] or base)


def extension_of(name: str) -> str:
    """What follows the last dot of the file's name."""
    _, dot, extension = name.rpartition("/")[2].rpartition(".")
    return extension if dot else ""


def as_text(name: str) -> str:
    r"""A file's name as text; bytes that aren't UTF-8 become ``\xNN``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _read(path: str, most: int) -> bytes:
    """The file, which has `most` bytes at most; one more where it has more.

    By system calls alone, of which each lets other threads run: `open` makes twice as many.
    """
    try:
        # O_NONBLOCK: a pipe must not be waited for; regular files ignore it.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = os.read(handle, most + 1)
            while len(data) < most and (more := os.read(handle, most + 1 - len(data))):
                data += more
            return data
        finally:
            os.close(handle)
    except OSError as error:
        raise PackError(f"{printable(path)} can't be read: {error.strerror}.") from error
