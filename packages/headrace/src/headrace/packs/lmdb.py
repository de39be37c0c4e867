"""LMDBs of msgpack (image bytes, label), as training scripts use them: written, and read as a source."""

from __future__ import annotations

import io
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from PIL import Image

from headrace.errors import PackError, require
from headrace.packs.rows import Packed, Part, Rows, part_path
from headrace.packs.samples import JPEG_START, PILLOW_ERRORS, Input, Item, Layout, Listing, Sample
from headrace.sources.pack_index import Shard
from headrace.sources.tar_index import LMDB_FILE

# Pages of every LMDB, written when it is made.
HEAD_PAGES = 2

# A transaction lies in memory until it is committed.
TRANSACTION_BYTES = 64_000_000


def value(sample: Sample) -> tuple[bytes, int]:
    """The value of a sample, and where in it the image's bytes begin: (image, label), the label None if there
    is none, and a third element only if there are further fields: a map from their extensions to their bytes.
    """
    label = sample.label if sample.label >= 0 else None
    fields = {extension: data for extension, data in sample.fields if extension != "cls"}
    parts = (sample.image, label, fields) if fields else (sample.image, label)
    packed: bytes = require("msgpack", "lmdb").packb(parts, use_bin_type=True)
    # After the list's head and its own, as short as msgpack has them.
    size = len(sample.image)
    return packed, 3 if size < 1 << 8 else 4 if size < 1 << 16 else 6


def parse_value(data: Any, key: str, where: str) -> Sample:
    """The sample that `data`, the value of `key` in the file `where`, is. Raises PackError."""
    parts = read_object(data)
    if not (isinstance(parts, (list, tuple)) and len(parts) in (2, 3) and isinstance(parts[0], bytes)):
        raise PackError(f"{where}: the value of {key} isn't msgpack (image bytes, label).")
    image, label, *rest = parts
    fields = rest[0] if rest else {}
    if label is not None and not (isinstance(label, int) and 0 <= label < 1 << 63):
        raise PackError(f"{where}: the label of {key} is {label!r}, not a whole number from 0 on.")
    if not isinstance(fields, dict) or not all(isinstance(each, bytes) for each in fields.values()):
        raise PackError(f"{where}: the third element of {key} isn't a map from extensions to bytes.")
    return Sample(key, kind_of(image), image, -1 if label is None else label, tuple(fields.items()))


def read_object(data: Any) -> Any:
    """The object in msgpack bytes, or None if they are none."""
    msgpack = require("msgpack", "lmdb")
    try:
        return None if data is None else msgpack.unpackb(data, raw=False)
    except (ValueError, msgpack.UnpackException):
        return None


def kind_of(image: bytes) -> str:
    """The extension that an image's bytes should have."""
    if image.startswith(JPEG_START):
        return "jpg"
    try:
        with Image.open(io.BytesIO(image)) as opened:
            return (opened.format or "bin").lower()
    except PILLOW_ERRORS:
        return "bin"


class LmdbShards:
    """The LMDB of one pack. Keys are the samples' numbers in decimal, `__len__` and `__keys__` say which."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder = folder
        self._layout = layout
        self._path = folder / LMDB_FILE
        # Address space, not disk: the file grows with what is written.
        self._most = 4 * layout.source_bytes + 16384 * len(layout.items) + (1 << 40)
        require("msgpack", "lmdb")
        # What a disk that was full has left of a new file is none that LMDB opens, and holds nothing.
        if self._path.is_file() and self._path.stat().st_size < HEAD_PAGES * mmap.PAGESIZE:
            self._path.unlink()

    def encode(self, sample: Sample) -> tuple[tuple[bytes, ...], int]:
        """The value of a sample, and the offset of its image in it. For any thread."""
        data, image_begin = value(sample)
        return (data,), image_begin

    def parts(self) -> list[Part | None]:
        """The rows of each transaction, or None if it isn't committed."""
        entries = self._entries()
        bounds = self._layout.bounds[1:]
        paths = [part_path(self.folder, shard) for shard in range(len(bounds))]
        return [
            Part.read(path) if entries >= bound else None for path, bound in zip(paths, bounds, strict=True)
        ]

    @contextmanager
    def writing(self, shard: int) -> Iterator[Callable[[Sequence[Packed]], None]]:
        """Writes a transaction: call what this gives with its samples, some at a time. Raises PackError."""
        rows, number = Rows(0), self._layout.bounds[shard]
        with self._transaction() as transaction:

            def add(samples: Sequence[Packed]) -> None:
                nonlocal number
                for packed in samples:
                    transaction.put(b"%d" % number, *packed.pieces)
                    rows.add(packed, 0)
                    number += 1

            yield add
            # Before the commit, by which the rows count.
            rows.write(part_path(self.folder, shard), 0)

    def shards(self, parts: Sequence[Part]) -> tuple[Shard, ...]:
        """Adds what readers ask for to the file, and describes it for the index."""
        del parts
        count, packb = len(self._layout.items), require("msgpack", "lmdb").packb
        if self._entries() == count:
            with self._transaction() as transaction:
                transaction.put(b"__len__", packb(count))
                transaction.put(b"__keys__", packb([b"%d" % number for number in range(count)]))
        return (Shard(LMDB_FILE, self._path.stat().st_size),)

    def _entries(self) -> int:
        with self._transaction(write=False) as transaction:
            entries: int = transaction.stat()["entries"]
        return entries

    @contextmanager
    def _transaction(self, write: bool = True) -> Iterator[Any]:
        """One transaction on the file, opened for it alone.

        What a page doesn't use holds what LMDB's memory held before. Opened again, that is the same whether
        or not an earlier transaction was of the same process: the file is the same, byte for byte.
        """
        lmdb = require("lmdb", "lmdb")
        try:
            with (
                lmdb.open(str(self._path), subdir=False, lock=False, map_size=self._most) as opened,
                opened.begin(write=write, buffers=True) as transaction,
            ):
                yield transaction
        except lmdb.Error as error:
            raise PackError(
                f"{self._path} can't be written: {error}. Is the disk full? Free some space and run it again:"
                " what is finished is kept."
            ) from error


class LmdbInput(Input):
    """The samples of an LMDB, given by its folder or its file. Raises PackError if it can't be opened."""

    kind = "LMDB"
    _lock = threading.Lock()
    _opened: ClassVar[WeakValueDictionary[str, LmdbInput]] = WeakValueDictionary()

    @classmethod
    def of(cls, path: Path) -> LmdbInput:
        """The one input for `path`, as LMDB refuses to open a file twice in a process."""
        with cls._lock:
            file = os.path.realpath(path / LMDB_FILE if path.is_dir() else path)
            opened = cls._opened.get(file) or cls(Path(file))
            cls._opened[file] = opened
            return opened

    def __init__(self, file: Path) -> None:
        lmdb = require("lmdb", "lmdb")
        self._file = file
        try:
            self._env: Any = lmdb.open(str(file), subdir=False, readonly=True, lock=False)
        except lmdb.Error as error:
            raise PackError(f"{file} can't be opened as an LMDB: {error}.") from error
        # LMDB maps the file into memory: to read what isn't there would end the process.
        pages, there = self._env.info()["last_pgno"] + 1, os.stat(file).st_size
        if pages * self._env.stat()["psize"] > there:
            self._env.close()
            raise PackError(f"{file} has {there:,} bytes and {pages:,} pages: it was cut short.")

    def __reduce__(self) -> tuple[Any, ...]:
        return LmdbInput.of, (self._file,)  # each process opens it

    def items(self) -> Listing:
        with self._transaction() as transaction:
            return Listing.of(self._items(transaction))

    def read(self, item: Item) -> Sample:
        return self.sample(bytes.fromhex(item.names[0]), item.key)

    def sample(self, key: bytes, name: str) -> Sample:
        """Reads the sample of `key`, which becomes `name`. Raises PackError."""
        with self._transaction() as transaction:
            return parse_value(transaction.get(key), name, str(self._file))

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        try:
            with self._env.begin(buffers=True) as transaction:
                yield transaction
        except (require("lmdb", "lmdb").Error, ValueError) as error:
            raise PackError(f"{self._file} is damaged: {error}.") from error

    def _items(self, transaction: Any) -> Iterator[Item]:
        stamp = os.stat(self._file).st_mtime_ns
        for number, key in enumerate(self._keys(transaction)):
            stored = transaction.get(key)
            if stored is None:
                raise PackError(f"{self._file} has no {key!r}, which its __keys__ or __len__ promise.")
            text = key.decode("utf-8", "backslashreplace")
            yield Item(text, len(stored), stamp, number, (key.hex(),))  # a key may be any bytes

    def _keys(self, transaction: Any) -> list[bytes]:
        """Lists all keys, in the order that the usual scripts go by."""
        keys = read_object(transaction.get(b"__keys__"))
        if isinstance(keys, list) and keys:
            return [key if isinstance(key, bytes) else str(key).encode() for key in keys]
        count = read_object(transaction.get(b"__len__"))
        known = isinstance(count, int) and transaction.get(b"0") is not None
        if known and 0 <= count <= self._env.stat()["entries"]:
            return [b"%d" % i for i in range(count)]
        stored = (bytes(key) for key in transaction.cursor().iternext(values=False))
        return [key for key in stored if not (key.startswith(b"__") and key.endswith(b"__"))]
