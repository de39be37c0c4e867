"""Entry points of an image folder's files, kept next to them in one Arrow file, memory-mapped when read.

The file holds one row per JPEG: `path` (relative to the root, as the file system's bytes), `size` and
`mtime_ns` of the file that was indexed, and `entries` (packed; empty if native code has no use for any, as
in progressive files).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace._arrow import pa, pc
from headrace.records import EntryPoints

# What reading a damaged index raises.
READ_ERRORS = (OSError, pa.ArrowException, ValueError)

# Raised with the layout, and when the decoder takes files that it refused: known rows are taken over.
FORMAT = "1"
SCHEMA = pa.schema(
    [
        ("path", pa.large_binary()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("entries", pa.large_binary()),
    ],
    metadata={"headrace.entry-points": FORMAT},
)


class EntryIndex:
    """An index file, mapped into memory. Raises one of `READ_ERRORS`."""

    def __init__(self, path: Path) -> None:
        self.data = np.frombuffer(pa.memory_map(str(path)).read_buffer(), np.uint8)
        reader = pa.ipc.open_file(pa.py_buffer(self.data))
        given = (reader.schema.metadata or {}).get(b"headrace.entry-points", b"").decode()
        if given != FORMAT or not reader.schema.equals(SCHEMA):
            raise ValueError(f"format {given or 'unknown'}, this version reads {FORMAT}")
        self._batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        for batch in self._batches:
            batch.validate(full=True)  # else what lies outside the file would be read
            if any(column.null_count for column in batch.columns):
                raise ValueError("some of its values are missing")

    def rows(self) -> Iterator[tuple[bytes, int, int, bytes]]:
        """(path, size, mtime_ns, entries) of every row."""
        for batch in self._batches:
            yield from zip(*(batch[name].to_pylist() for name in SCHEMA.names), strict=True)

    def match(
        self, root: bytes, paths: npt.NDArray[np.uint8], offsets: npt.NDArray[np.uint64]
    ) -> EntryPoints:
        """One row per file of an `ImageSource` of these `paths` and `offsets`, all below the folder `root`;
        files that the index lacks get none."""
        table = pa.Table.from_batches(self._batches, SCHEMA)
        prefix = root if root.endswith(b"/") else root + b"/"
        full = pc.binary_join_element_wise(_binary(prefix), table["path"].combine_chunks(), _binary(b""))
        row = pc.index_in(_paths(paths, offsets), value_set=full).fill_null(-1).to_numpy().astype(np.int64)
        places = [self._places(batch["entries"]) for batch in self._batches]
        # What is appended is row -1: that of files which the index lacks.
        columns = [*zip(*places, strict=True)] or [(), ()]
        begins, ends = (np.concatenate([*column, np.zeros(1, np.uint64)])[row] for column in columns)
        return EntryPoints(self.data, begins, ends, np.append(table["mtime_ns"].to_numpy(), 0)[row])

    def _places(self, entries: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Returns where the entry points of each row begin and end in `data`."""
        _, offsets, values = entries.buffers()
        start = 0 if values is None or values.size == 0 else values.address - self.data.ctypes.data
        ends = np.frombuffer(offsets, np.int64)[entries.offset : entries.offset + len(entries) + 1] + start
        limit = len(self.data)
        if (np.diff(ends) < 0).any() or (len(ends) and (ends[0] < 0 or ends[-1] > limit)):
            raise ValueError("its rows point outside the file")
        return ends[:-1].astype(np.uint64), ends[1:].astype(np.uint64)


def _binary(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.large_binary())


def _paths(paths: npt.NDArray[np.uint8], offsets: npt.NDArray[np.uint64]) -> pa.Array:
    """The paths without their zero bytes."""
    lengths = np.diff(offsets.astype(np.int64)) - 1
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(paths[paths != 0])]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)
