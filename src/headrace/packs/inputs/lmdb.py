"""An LMDB as training scripts write it: key → msgpack (image bytes, label), and `__len__` or `__keys__`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import PackError
from headrace.packs.lmdb_format import import_lmdb, parse_value, read_object
from headrace.packs.lmdb_places import value_places
from headrace.packs.records import Record, Sample


class LmdbInput:
    """The samples of an LMDB.

    Args:
        path: its folder, or its file.

    Raises:
        PackError: it can't be opened.
    """

    kind = "LMDB"
    classes: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        lmdb = import_lmdb()
        self._file = path / "data.mdb" if path.is_dir() else path
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

    def records(self) -> list[Record]:
        """See `Input`."""
        try:
            return self._records()
        except (import_lmdb().Error, ValueError) as error:
            raise PackError(f"{self._file} is damaged: {error}.") from error

    def _records(self) -> list[Record]:
        stamp = os.stat(self._file).st_mtime_ns
        with self._env.begin(buffers=True) as transaction:
            records = []
            for key in self._keys(transaction):
                value = transaction.get(key)
                if value is None:
                    raise PackError(f"{self._file} has no {key!r}, which its __keys__ or __len__ promise.")
                records.append(Record(key.decode("utf-8", "backslashreplace"), len(value), stamp, key))
        return records

    def read(self, record: Record) -> Sample:
        """See `Input`."""
        return parse_value(self.value(record), record.key, str(self._file))

    def value(self, record: Record) -> bytes:
        """What the LMDB holds of a sample."""
        with self._env.begin() as transaction:
            value: bytes = transaction.get(record.place)
        return value

    def places(self, records: Sequence[Record]) -> npt.NDArray[np.uint64]:
        """[n]: where the value of each record begins in the file."""
        with self._env.begin(buffers=True) as transaction:
            return value_places(self._file, transaction, [record.place for record in records])

    def notes(self) -> list[str]:
        """See `Input`."""
        return []

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
