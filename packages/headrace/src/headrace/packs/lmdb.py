"""LMDBs of msgpack (image bytes, label), as training scripts use them: written, and read as a source."""

from __future__ import annotations

import importlib
import io
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from headrace.errors import ConfigError, PackError
from headrace.packs.records import JPEG_START, PILLOW_ERRORS, Input, Plan, Record, Records, Sample
from headrace.packs.rows import Packed, Part, Rows, part_path
from headrace.sources.pack_index import Shard

FILE = "data.mdb"

# Pages of every LMDB, written when it is made.
HEAD_PAGES = 2

# A transaction lies in memory until it is committed.
TRANSACTION_BYTES = 64_000_000

# Bytes of a value that are read back, to check that it lies where the index will say.
CHECKED_BYTES = 64


def optional(name: str) -> Any:
    """The module `name`, "lmdb" or "msgpack". Raises ConfigError where it isn't installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"LMDBs need {name}: pip install 'headrace[lmdb]'.") from None


def value(sample: Sample) -> tuple[bytes, int]:
    """The value of a sample, and where in it the image's bytes begin.

    (image, label), the label None where there is none; and, only where a sample has further fields, a third
    element: a map from their extensions to their bytes.
    """
    label = sample.label if sample.label >= 0 else None
    fields = {extension: data for extension, data in sample.fields if extension != "cls"}
    parts = (sample.image, label, fields) if fields else (sample.image, label)
    packed: bytes = optional("msgpack").packb(parts, use_bin_type=True)
    return packed, image_begin(sample.image)


def image_begin(image: bytes) -> int:
    """Where in its value an image begins: after the list's head and its own, as short as msgpack has them."""
    size = len(image)
    return 3 if size < 1 << 8 else 4 if size < 1 << 16 else 6


def parse_value(data: bytes, key: str, where: str) -> Sample:
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
    """What msgpack bytes hold; None where they are none."""
    msgpack = optional("msgpack")
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


def _key(record: Record) -> bytes:
    return bytes.fromhex(record.names[0])


def value_places(path: Path, transaction: Any, keys: Iterable[bytes], count: int) -> npt.NDArray[np.uint64]:
    """The byte of the file `path` at which the value of each of `count` `keys` begins.

    Args:
        transaction: on that file, with buffers=True.

    Raises:
        PackError: a value isn't found there.
    """
    begins = np.empty(count, np.uint64)
    with open(path, "rb") as file:
        base = _mapped_at(os.fstat(file.fileno()).st_ino)
        for i, key in enumerate(keys):
            mapped = np.frombuffer(transaction.get(key), np.uint8)
            begins[i] = begin = mapped.ctypes.data - base
            if (
                os.pread(file.fileno(), CHECKED_BYTES, begin)[: len(mapped)]
                != mapped[:CHECKED_BYTES].tobytes()
            ):
                raise PackError(f"{path}: the value of {key!r} doesn't lie at byte {begin} of the file.")
    return begins


def _mapped_at(inode: int) -> int:
    """The address at which the file with this number is mapped."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, _, offset, _, number = line.split(maxsplit=5)[:5]
            if int(number) == inode and int(offset, 16) == 0:
                return int(span.partition("-")[0], 16)
    raise PackError("The LMDB isn't mapped into memory: its values' places in the file aren't known.")


class LmdbShards:
    """The LMDB of one pack. Keys are the samples' numbers in decimal, `__len__` and `__keys__` say which.

    Args:
        folder: the file goes there, and the rows into its folder `parts`.
        plan: what it will hold.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self._plan = plan
        self._path = folder / FILE
        # Address space, not disk: the file grows with what is written.
        self._most = 4 * plan.source_bytes + 16384 * len(plan.records) + (1 << 40)
        optional("msgpack")
        # What a disk that was full has left of a new file is none that LMDB opens, and holds nothing.
        if self._path.is_file() and self._path.stat().st_size < HEAD_PAGES * mmap.PAGESIZE:
            self._path.unlink()

    def encode(self, sample: Sample) -> tuple[tuple[bytes, ...], int]:
        """What the LMDB holds of a sample, and where in that its image begins. For any thread."""
        data, image_begin = value(sample)
        return (data,), image_begin

    def part(self, shard: int) -> Part | None:
        """The rows of a transaction that is committed; None: it isn't."""
        committed = self._entries() >= self._plan.bounds[shard + 1]
        return Part.read(part_path(self.folder, shard)) if committed else None

    @contextmanager
    def writing(self, shard: int) -> Iterator[Callable[[Sequence[Packed]], None]]:
        """Writes a transaction: call what this gives with its samples, some at a time. Raises PackError."""
        rows, number = Rows(0), self._plan.bounds[shard]
        with self._transaction() as transaction:

            def add(samples: Sequence[Packed]) -> None:
                nonlocal number
                for packed in samples:
                    transaction.put(b"%d" % number, *packed.encoded.pieces)
                    rows.add(packed, 0)
                    number += 1

            yield add
            # Before the commit, by which the rows count.
            rows.write(part_path(self.folder, shard), 0)

    def complete(self) -> None:
        """Once all samples are written: what readers ask for."""
        count, packb = len(self._plan.records), optional("msgpack").packb
        if self._entries() == count:
            with self._transaction() as transaction:
                transaction.put(b"__len__", packb(count))
                keys = bytearray(optional("msgpack").Packer().pack_array_header(count))
                for number in range(count):
                    keys += packb(b"%d" % number)
                transaction.put(b"__keys__", keys)

    def begins(self) -> npt.NDArray[np.uint64] | None:
        """Where every value begins in the file."""
        count = len(self._plan.records)
        with self._transaction(write=False) as transaction:
            return value_places(self._path, transaction, (b"%d" % i for i in range(count)), count)

    def shards(self, parts: Sequence[Part]) -> tuple[Shard, ...]:
        """What the index says of the file."""
        del parts
        return (Shard(FILE, self._path.stat().st_size),)

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
        lmdb = optional("lmdb")
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
    """The samples of an LMDB.

    Args:
        path: its folder, or its file.

    Raises:
        PackError: it can't be opened.
    """

    kind = "LMDB"

    def __init__(self, path: Path) -> None:
        lmdb = optional("lmdb")
        self._file = path / FILE if path.is_dir() else path
        try:
            self._env: Any = lmdb.open(str(self._file), subdir=False, readonly=True, lock=False)
        except lmdb.Error as error:
            raise PackError(f"{self._file} can't be opened as an LMDB: {error}.") from error
        # LMDB maps the file into memory: to read what isn't there would end the process.
        pages, there = self._env.info()["last_pgno"] + 1, os.stat(self._file).st_size
        if pages * self._env.stat()["psize"] > there:
            raise PackError(f"{self._file} has {there:,} bytes and {pages:,} pages: it was cut short.")

    def __reduce__(self) -> tuple[Any, ...]:
        # An LMDB is opened once in a process, and not sent.
        return type(self), (self._file,)

    def records(self) -> Records:
        try:
            return Records(self._records())
        except (optional("lmdb").Error, ValueError) as error:
            raise PackError(f"{self._file} is damaged: {error}.") from error

    def _records(self) -> Iterator[Record]:
        stamp = os.stat(self._file).st_mtime_ns
        with self._env.begin(buffers=True) as transaction:
            for number, key in enumerate(self._keys(transaction)):
                value = transaction.get(key)
                if value is None:
                    raise PackError(f"{self._file} has no {key!r}, which its __keys__ or __len__ promise.")
                text = key.decode("utf-8", "backslashreplace")
                yield Record(text, len(value), stamp, number, (key.hex(),))  # a key may be any bytes

    def read(self, record: Record) -> Sample:
        return parse_value(self.value(record), record.key, str(self._file))

    def value(self, record: Record) -> bytes:
        """What the LMDB holds of a sample."""
        with self._env.begin() as transaction:
            value: bytes = transaction.get(_key(record))
        return value

    def places(self, records: Records) -> npt.NDArray[np.uint64]:
        """[n]: where the value of each record begins in the file."""
        with self._env.begin(buffers=True) as transaction:
            return value_places(self._file, transaction, map(_key, records), len(records))

    def _keys(self, transaction: Any) -> list[bytes]:
        """In the order that the usual scripts go by."""
        keys = read_object(transaction.get(b"__keys__"))
        if isinstance(keys, list) and keys:
            return [key if isinstance(key, bytes) else str(key).encode() for key in keys]
        count = read_object(transaction.get(b"__len__"))
        known = isinstance(count, int) and transaction.get(b"0") is not None
        if known and 0 <= count <= self._env.stat()["entries"]:
            return [b"%d" % i for i in range(count)]
        stored = (bytes(key) for key in transaction.cursor().iternext(values=False))
        return [key for key in stored if not (key.startswith(b"__") and key.endswith(b"__"))]
