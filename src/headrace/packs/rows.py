"""One row of a pack's index per sample: made while packing, kept per shard, put together at the end."""

from __future__ import annotations

import io
import json
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from headrace._native import ffi
from headrace.errors import NativeError
from headrace.packs.files import whole_file
from headrace.packs.records import Sample
from headrace.sources.pack_index import COLUMNS

# Metadata of a part: what its shard is, as JSON.
PART_KEY = b"headrace.pack.part"

JPEG_START = b"\xff\xd8\xff"

# What Pillow raises for files that it can't open or decode.
PILLOW_ERRORS = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)


@dataclass(frozen=True)
class Facts:
    """What the index says of an image beside its place.

    Attributes:
        checksum: CRC-32 of its bytes.
        width, height: in pixels; 0: it isn't an image that can be opened.
        entries: entry points; empty: none.
    """

    checksum: int
    width: int
    height: int
    entries: bytes

    @classmethod
    def of(cls, image: bytes) -> Facts:
        """Of a file in memory."""
        checksum = zlib.crc32(image)
        if image.startswith(JPEG_START):
            try:
                width, height = ffi.jpeg_size(image)
            except NativeError:
                return cls(checksum, *_pillow_size(image), b"")
            return cls(checksum, width, height, _entries(image))
        return cls(checksum, *_pillow_size(image), b"")


def _entries(image: bytes) -> bytes:
    try:
        return ffi.jpeg_entry_points(image, 0)
    except NativeError:
        return b""  # progressive, damaged, …: decoded as a whole


def _pillow_size(image: bytes) -> tuple[int, int]:
    try:
        with Image.open(io.BytesIO(image)) as opened:
            return opened.size
    except PILLOW_ERRORS:
        return 0, 0  # kept all the same: packing changes nothing and judges nothing


@dataclass(frozen=True)
class Packed:
    """A sample in the form that its shard holds.

    Attributes:
        pieces: its bytes there, to be joined.
        image_begin: where in them the image begins.
        sample: what it is made of.
        facts: of the image.
        note: why an image that was to be changed is kept as it was; None: no such thing.
    """

    pieces: tuple[bytes, ...]
    image_begin: int
    sample: Sample
    facts: Facts
    note: str | None

    @property
    def size(self) -> int:
        """In the shard, in bytes."""
        return sum(map(len, self.pieces))


class Rows:
    """The rows of one shard."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._columns: list[list[Any]] = [[] for _ in COLUMNS]
        self._notes: list[tuple[str, str]] = []

    def add(self, packed: Packed, begin: int) -> None:
        """A sample whose bytes begin at `begin` in the shard."""
        sample, facts = packed.sample, packed.facts
        row = (
            sample.key,
            sample.extension,
            sample.label,
            self._shard,
            begin + packed.image_begin,
            len(sample.image),
            facts.checksum,
            begin,
            packed.size,
            facts.width,
            facts.height,
            facts.entries,
        )
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        if packed.note is not None:
            self.note(sample.key, packed.note)

    def note(self, key: str, why: str) -> None:
        """Something to be said of the sample `key`."""
        self._notes.append((key, why))

    def write(self, path: Path, shard_bytes: int, origin: str = "") -> None:
        """Keeps them in `path`, with the size of their shard, and what tells it apart. Raises PackError."""
        note = json.dumps({"bytes": shard_bytes, "notes": self._notes, "origin": origin})
        schema = COLUMNS.with_metadata({PART_KEY: note.encode()})
        arrays = [pa.array(column, field.type) for column, field in zip(self._columns, schema, strict=True)]
        with whole_file(path) as file, pa.ipc.new_file(file, schema) as writer:
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def part_path(folder: Path, shard: int) -> Path:
    """Where the rows of a shard are kept until the pack in `folder` is whole."""
    return folder / "parts" / f"{shard:06}.arrow"


@dataclass(frozen=True)
class Part:
    """The rows of a finished shard, memory-mapped.

    Attributes:
        batch: the rows.
        shard_bytes: size of the shard.
        notes: (key, why) of images that were to be changed and are kept as they were.
        origin: of a shard that others made: its name and state when it was read.
    """

    batch: pa.RecordBatch
    shard_bytes: int
    notes: tuple[tuple[str, str], ...]
    origin: str

    @classmethod
    def read(cls, path: Path) -> Part | None:
        """From what `Rows.write` wrote; None where it isn't there."""
        if not path.is_file():
            return None
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        note = json.loads(reader.schema.metadata[PART_KEY])
        notes = tuple((key, why) for key, why in note["notes"])
        return cls(reader.get_batch(0), note["bytes"], notes, note["origin"])
