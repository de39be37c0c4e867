"""One LMDB instead of tar shards: a transaction for what would be a shard, so that it can be resumed too."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import PackError
from headrace.packs.lmdb_format import import_lmdb, import_msgpack, value
from headrace.packs.lmdb_places import value_places
from headrace.packs.records import Plan, Sample
from headrace.packs.rows import Packed, Part, Rows, part_path
from headrace.sources.pack_index import Shard

FILE = "data.mdb"

# Of every LMDB, written when it is made.
HEAD_PAGES = 2

# A transaction lies in memory until it is committed.
TRANSACTION_BYTES = 64_000_000


class LmdbShards:
    """The LMDB of one pack. Keys are the samples' numbers in decimal, `__len__` and `__keys__` say which.

    Args:
        folder: the file goes there, and the rows into its folder `parts`.
        plan: what it will hold.
    """

    kind = "lmdb"

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self._plan = plan
        self._path = folder / FILE
        # Address space, not disk: the file grows with what is written.
        self._most = 4 * plan.source_bytes + 16384 * len(plan.records) + (1 << 40)
        import_msgpack()
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
                    transaction.put(b"%d" % number, *packed.pieces)
                    rows.add(packed, 0)
                    number += 1

            yield add
            # Before the commit, by which the rows count.
            rows.write(part_path(self.folder, shard), 0)

    def complete(self) -> None:
        """Once all samples are written: what readers ask for."""
        count, packb = len(self._plan.records), import_msgpack().packb
        if self._entries() == count:
            with self._transaction() as transaction:
                transaction.put(b"__len__", packb(count))
                transaction.put(b"__keys__", packb([b"%d" % i for i in range(count)]))

    def begins(self) -> npt.NDArray[np.uint64] | None:
        """Where every value begins in the file."""
        keys = [b"%d" % i for i in range(len(self._plan.records))]
        with self._transaction(write=False) as transaction:
            return value_places(self._path, transaction, keys)

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

        What a page doesn't use holds what LMDB's memory held before. Opened anew, that is the same whether or
        not an earlier transaction was of the same process: the file is the same, byte for byte.
        """
        lmdb = import_lmdb()
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
