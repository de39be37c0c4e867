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
    """An index file, mapped into memory.

    Args:
        path: of the file.

    Raises:
        OSError, pyarrow.ArrowException: it can't be read.
        ValueError: it isn't an index of entry points, or of a later format.
    """

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

    def paths(self) -> pa.Array:
        """Returns the paths of all rows, relative to the root: large_binary."""
        return pa.concat_arrays(
            [batch["path"] for batch in self._batches] or [pa.array([], pa.large_binary())]
        )

    def places(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Returns where the entry points of each row begin and end in `data`."""
        pairs = [self._place(batch["entries"]) for batch in self._batches] or [
            (np.empty(0, "u8"), np.empty(0, "u8"))
        ]
        return np.concatenate([begin for begin, _ in pairs]), np.concatenate([end for _, end in pairs])

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """`size` or `mtime_ns` of all rows."""
        return np.concatenate([np.empty(0, np.int64), *(batch[name].to_numpy() for batch in self._batches)])

    def rows(self) -> Iterator[tuple[bytes, int, int, bytes]]:
        """(path, size, mtime_ns, entries) of every row."""
        for batch in self._batches:
            yield from zip(*(batch[name].to_pylist() for name in SCHEMA.names), strict=True)

    def match(
        self, root: bytes, paths: npt.NDArray[np.uint8], offsets: npt.NDArray[np.uint64]
    ) -> EntryPoints:
        """One row per file of an `ImageSource` of these `paths` and `offsets`, all below the folder `root`;
        files that the index lacks get none."""
        prefix = root if root.endswith(b"/") else root + b"/"
        full = pc.binary_join_element_wise(_binary(prefix), self.paths(), _binary(b""))
        row = pc.index_in(_paths(paths, offsets), value_set=full).fill_null(-1).to_numpy().astype(np.int64)
        begins, ends = self.places()
        known = row >= 0
        return EntryPoints(
            self.data,
            np.where(known, np.append(begins, np.uint64(0))[row], np.uint64(0)),
            np.where(known, np.append(ends, np.uint64(0))[row], np.uint64(0)),
            np.where(known, np.append(self.column("mtime_ns"), 0)[row], 0),
        )

    def _place(self, entries: pa.Array) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
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
