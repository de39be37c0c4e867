"""A pack's index, put together from the rows of its shards without holding them in memory."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.packs.files import naming, whole_file
from headrace.packs.rows import Part, part_path
from headrace.sources.pack_index import COLUMNS, FILE_NAME, PackAbout

# Counted from the beginning of a sample in rows whose samples' places are known only at the end.
_PLACES = ("offset", "sample_offset")


def write_index(
    folder: Path, parts: Sequence[Part], about: PackAbout, begins: npt.NDArray[np.uint64] | None
) -> Path:
    """Writes the index of the pack in `folder`: whole or not at all. Returns its path.

    Args:
        begins: [n]; where each sample begins in its shard, where the rows don't know that.

    Raises:
        PackError: the disk is full, or it can't be written.
    """
    path = folder / FILE_NAME
    entries = part_path(folder, 0).with_name("entries")
    columns = [_column(name, parts, entries) for name in COLUMNS.names]
    if begins is not None:
        for name in _PLACES:
            at = COLUMNS.names.index(name)
            columns[at] = pa.array(columns[at].to_numpy() + begins)
    batch = pa.record_batch(columns, schema=COLUMNS)
    about = replace(about, made={**about.made, "checksum": checksum(batch)})
    schema = COLUMNS.with_metadata(about.to_metadata())
    with whole_file(path) as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    return path


def checksum(batch: pa.RecordBatch) -> int:
    """CRC-32 of all columns, which shows damage to an index."""
    total = 0
    for column in batch.columns:
        if pa.types.is_integer(column.type):
            total = zlib.crc32(column.to_numpy(), total)
        else:
            offsets, values = bytes_of(column)
            total = zlib.crc32(values.data, zlib.crc32(offsets.data, total))
    return total


def bytes_of(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """(offsets, values) of a column of text or bytes: row i is values[offsets[i] : offsets[i + 1]]."""
    _, offsets, values = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[: len(array) + 1]
    return ends, np.frombuffer(values or b"", np.uint8)[: ends[-1]]


def _column(name: str, parts: Sequence[Part], entries: Path) -> pa.Array:
    arrays = [part.batch[name] for part in parts]
    return _on_disk(arrays, entries) if name == "entries" else pa.concat_arrays(arrays)


def _on_disk(arrays: Sequence[pa.Array], path: Path) -> pa.Array:
    """All of `arrays` (of bytes) as one, whose bytes lie in the file `path`: they may exceed the memory."""
    ends, total = [np.zeros(1, np.int64)], 0
    with naming(path), open(path, "wb") as file:
        for array in arrays:
            offsets, values = bytes_of(array)
            file.write(values.data)
            ends.append(offsets[1:] + total)
            total += len(values)
    values = pa.memory_map(str(path)).read_buffer() if total else pa.py_buffer(b"")
    offsets = pa.py_buffer(np.concatenate(ends))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), sum(map(len, arrays)), [None, offsets, values])
