"""The rows of a pack's index: made while packing, kept per shard, and assembled into the index at the end."""

from __future__ import annotations

import errno
import io
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from headrace._arrow import pa
from headrace._files import whole_file
from headrace._native import ffi
from headrace.errors import PackError, printable
from headrace.packs.samples import PILLOW_ERRORS, Sample
from headrace.sources.pack_index import COLUMNS, FILE_NAME, PackAbout, rows_batch, write_batch

# Metadata of a part: what its shard is, as JSON.
PART_KEY = b"headrace.pack.part"


@contextmanager
def pack_file(path: Path) -> Iterator[BinaryIO]:
    """`headrace._files.whole_file`, whose errors are PackErrors that say what to do."""
    with naming(path), whole_file(path) as file:
        yield file


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turns what goes wrong in writing `path` into a PackError that names it; or names the source's file that
    couldn't be read meanwhile."""
    try:
        yield
    except PackError:
        raise
    except OSError as error:
        other = error.filename
        if isinstance(other, str) and not other.startswith(os.fspath(path)):
            raise PackError(f"{printable(other)} can't be read: {error.strerror or error}.") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PackError(
                f"{path} can't be written: the disk is full. Free some space and run it again: what is"
                " finished is kept."
            ) from error
        raise PackError(f"{path} can't be written: {error.strerror or error}.") from error


class Packed(NamedTuple):
    """A sample as its shard holds it.

    Attributes:
        sample: the sample.
        pieces: bytes in the shard, to be joined.
        image_begin: offset of the image in these bytes.
        image: what the index holds of the image.
        note: reason why an image that was to be changed is kept as it was, or None if it isn't.
    """

    sample: Sample
    pieces: tuple[bytes, ...]
    image_begin: int
    image: ffi.ImageFacts
    note: str | None = None

    @property
    def size(self) -> int:
        """The number of bytes in the shard."""
        return sum(map(len, self.pieces))


def examine(images: Sequence[bytes]) -> list[ffi.ImageFacts]:
    """Examines images for the index; one that can't be opened has 0 × 0 pixels: packing judges nothing."""
    examined = []
    for image, facts in zip(images, ffi.index_images(images), strict=True):
        if not facts.width:  # a format that native code leaves to Pillow
            with suppress(*PILLOW_ERRORS), Image.open(io.BytesIO(image)) as opened:
                facts = facts._replace(width=opened.width, height=opened.height)
        examined.append(facts)
    return examined


class Rows:
    """The rows of one shard."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._rows: list[tuple[Any, ...]] = []
        self._notes: list[tuple[str, str]] = []

    def add(self, packed: Packed, begin: int) -> None:
        """Adds a sample whose bytes begin at `begin` in the shard."""
        sample, image = packed.sample, packed.image
        place = (self._shard, begin + packed.image_begin, len(sample.image), image.checksum)
        size = (begin, packed.size, image.width, image.height, image.entries)
        self._rows.append((sample.key, sample.extension, sample.label, *place, *size))
        if packed.note is not None:
            self.note(sample.key, packed.note)

    def note(self, key: str, why: str) -> None:
        """Adds a remark on the sample `key`."""
        self._notes.append((key, why))

    def write(self, path: Path, shard_bytes: int, origin: str = "") -> Part:
        """Keeps them in `path`, with the size of their shard, and what identifies it. Raises PackError."""
        note = json.dumps({"bytes": shard_bytes, "notes": self._notes, "origin": origin})
        schema = COLUMNS.with_metadata({PART_KEY: note.encode()})
        with pack_file(path) as file:
            write_batch(file, rows_batch(self._rows, schema))
        part = Part.read(path)
        assert part is not None
        return part


def part_path(folder: Path, shard: int) -> Path:
    """The file of a shard's rows until the pack in `folder` is whole."""
    return folder / "parts" / f"{shard:06}.arrow"


@dataclass(frozen=True)
class Part:
    """The rows of a finished shard, memory-mapped.

    Attributes:
        batch: the rows.
        shard_bytes: the size of the shard, in bytes.
        notes: (key, reason) of each image that was to be changed and is kept as it was.
        origin: the name and state of a shard that others made, when it was read.
    """

    batch: pa.RecordBatch
    shard_bytes: int
    notes: tuple[tuple[str, str], ...]
    origin: str

    @classmethod
    def read(cls, path: Path) -> Part | None:
        """Reads what `Rows.write` wrote, or None if it isn't there."""
        if not path.is_file():
            return None
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        note = json.loads(reader.schema.metadata[PART_KEY])
        notes = tuple((key, why) for key, why in note["notes"])
        return cls(reader.get_batch(0), note["bytes"], notes, note["origin"])


def write_index(folder: Path, parts: Sequence[Part], about: PackAbout) -> Path:
    """Writes the index of the pack in `folder`: whole or not at all. Returns its path. Raises PackError."""
    path = folder / FILE_NAME
    columns = {name: [part.batch[name] for part in parts] for name in COLUMNS.names}
    entries = _on_disk(columns.pop("entries"), part_path(folder, 0).with_name("entries"))
    arrays = {name: pa.concat_arrays(chunks) for name, chunks in columns.items()}
    batch = pa.record_batch([*arrays.values(), entries], schema=COLUMNS)
    about = replace(about, made={**about.made, "checksum": checksum(batch)})
    with pack_file(path) as file:
        write_batch(file, batch.replace_schema_metadata(about.to_metadata()))
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
    ends = np.frombuffer(offsets, np.int64, len(array) + 1)
    return ends, np.frombuffer(values or b"", np.uint8)[: ends[-1]]


def _on_disk(arrays: Sequence[pa.Array], path: Path) -> pa.Array:
    """Joins `arrays` of bytes as one whose bytes lie in the file `path`: they may exceed the memory."""
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
