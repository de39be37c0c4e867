"""The index of a pack: where each sample's bytes lie in which shard, in one memory-mapped Arrow file.

One row per sample, in one record batch and without compression, so that columns are arrays in the mapped
file: opening an index costs the same for a thousand samples and for ten million.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from headrace._arrow import pa, pc
from headrace._files import cache_folder, whole_file
from headrace.errors import PackError

FILE_NAME = "index.arrow"
FORMAT = "1"

# Metadata of the schema: the format's number, and what PackAbout holds, as JSON.
FORMAT_KEY = b"headrace.pack"
ABOUT_KEY = b"headrace.pack.about"

# In PackAbout.made: how many samples of the shards have no image, and so no row.
LEFT_OUT = "samples without an image"

# Rows of a column that are copied at a time.
CHUNK_ROWS = 1 << 20

COLUMNS = pa.schema(
    [
        ("key", pa.large_string()),  # unique; ImageFolder: the path below the root, without extension
        ("extension", pa.large_string()),  # of the image, without the dot: jpg, png, …
        ("label", pa.int64()),  # -1: none
        ("shard", pa.uint32()),  # which of PackAbout.shards
        ("offset", pa.uint64()),  # of the image's bytes in the shard
        ("size", pa.uint64()),  # of the image, in bytes
        ("checksum", pa.uint32()),  # CRC-32 (zlib's) of the image's bytes
        ("sample_offset", pa.uint64()),  # of all the sample's tar members, headers included; LMDB: 0
        ("sample_size", pa.uint64()),
        ("width", pa.uint32()),  # in pixels; 0: not known
        ("height", pa.uint32()),
        ("entries", pa.large_binary()),  # entry points of a JPEG; empty: none
    ]
)


@dataclass(frozen=True)
class Shard:
    """One file of a pack: `name` relative to the index's folder (or absolute), and its `size` in bytes."""

    name: str
    size: int


@dataclass(frozen=True)
class PackAbout:
    """The properties of a pack as a whole.

    Attributes:
        kind: "tar" (WebDataset shards) or "lmdb".
        shards: the files, in the order of their numbers.
        classes: the classes' names by label, as ImageFolder's; empty: not known.
        made: Headrace's version, the source, and the options that change the pack's bytes.
    """

    kind: str
    shards: tuple[Shard, ...]
    classes: tuple[str, ...] = ()
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def samples_without_image(self) -> int:
        """Samples of the shards that have no image, and so no row in the index."""
        return int(self.made.get(LEFT_OUT, 0))

    def to_metadata(self) -> dict[bytes, bytes]:
        """Returns the metadata for the Arrow schema."""
        return {FORMAT_KEY: FORMAT.encode(), ABOUT_KEY: json.dumps(asdict(self), sort_keys=True).encode()}

    @classmethod
    def from_metadata(cls, metadata: dict[bytes, bytes]) -> PackAbout:
        """The inverse. Raises KeyError, TypeError or ValueError if it isn't one."""
        about = json.loads(metadata[ABOUT_KEY])
        shards = tuple(Shard(str(shard["name"]), int(shard["size"])) for shard in about["shards"])
        if any(b"\0" in os.fsencode(shard.name) for shard in shards):  # or ValueError: no file has that name
            raise ValueError("a shard's name holds a zero byte")
        if about["kind"] not in ("tar", "lmdb"):
            raise ValueError(f"it is of kind {about['kind']!r}, not 'tar' or 'lmdb'")
        made = dict(about["made"])
        if "kept" in made:
            made["kept"] = [(str(key), str(why)) for key, why in made["kept"]]
        if len(made.get("state", shards)) != len(shards):
            raise ValueError("it doesn't hold the state of each of its shards")
        return cls(about["kind"], shards, tuple(map(str, about["classes"])), made)


class PackIndex:
    """An index file, mapped into memory. Raises PackError if it is missing, damaged, or of another format."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._mapped = np.frombuffer(pa.memory_map(str(path)).read_buffer(), np.uint8)
            reader = pa.ipc.open_file(pa.py_buffer(self._mapped))
            schema = reader.schema
            if reader.num_record_batches != 1 or not schema.equals(COLUMNS):
                raise ValueError("its columns are not those of a pack")
            metadata = schema.metadata or {}
            given = metadata.get(FORMAT_KEY, b"").decode()
            if given != FORMAT:
                raise ValueError(f"format {given or 'unknown'}, this version reads {FORMAT}")
            self.about = PackAbout.from_metadata(metadata)
            _refuse_places_outside(self.about.shards, path)
            self.batch = reader.get_batch(0)
            self.batch.validate()  # lengths of columns alone: it costs nothing
            if any(column.null_count for column in self.batch.columns):
                raise ValueError("some of its values are missing")
        except (OSError, pa.ArrowException, LookupError, TypeError, ValueError, RecursionError) as error:
            raise PackError(
                f"{path} can't be read as a pack's index: {error}. Make it again by headrace index or pack."
            ) from error

    @property
    def nbytes(self) -> int:
        """The size of the file, in bytes."""
        return self._mapped.nbytes

    def __len__(self) -> int:
        rows: int = self.batch.num_rows
        return rows

    @cached_property
    def has_places(self) -> bool:
        """True if it says where samples lie in their files. Only version 0.1 wrote that of LMDBs."""
        return self.about.kind != "lmdb" or bool(self.numbers("sample_offset").any())

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """A column of numbers: [n], read-only, in the mapped file."""
        numbers: npt.NDArray[Any] = self.batch[name].to_numpy(zero_copy_only=True)
        return numbers

    def text(self, name: str, i: int) -> str:
        """`key` or `extension` of sample `i`, from 0 on. Raises PackError if the index is damaged."""
        text: str = self.checked(self.batch[name].slice(i, 1))[0].as_py()
        return text

    def entries(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """(data, begins, ends): the entry points of sample i are data[begins[i]:ends[i]]."""
        _, offsets, values = self.batch["entries"].buffers()
        data = np.frombuffer(values, np.uint8) if values is not None else np.empty(0, np.uint8)
        ends = np.frombuffer(offsets, np.uint64, len(self) + 1) if len(self) else np.zeros(1, np.uint64)
        return data, ends[:-1], ends[1:]

    def checked(self, column: pa.Array) -> pa.Array:
        """`column`, or PackError if not all of its values lie in it: they would be read from anywhere in
        memory."""
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise PackError(f"{self.path} is damaged: {error}. Make it again.") from error
        return column

    def keys(self, rows: npt.NDArray[np.int64] | None) -> Iterator[list[str]]:
        """The keys of `rows`, or of all if None, some at a time. Raises PackError if the index is damaged."""
        for part in self._chunks("key", rows):
            yield part.to_pylist()

    def count_extensions(self, rows: npt.NDArray[np.int64] | None, extensions: Sequence[str]) -> int:
        """Counts those of `rows`, or of all if None, that have one of `extensions`; see `Source`. Raises
        PackError if the index is damaged.
        """
        wanted = pa.array([extension.removeprefix(".") for extension in extensions], pa.large_string())
        parts = self._chunks("extension", rows)
        return sum(int(pc.sum(pc.is_in(pc.utf8_lower(part), value_set=wanted)).as_py()) for part in parts)

    def _chunks(self, name: str, rows: npt.NDArray[np.int64] | None) -> Iterator[pa.Array]:
        column = self.checked(self.batch[name])
        for start in range(0, len(self) if rows is None else len(rows), CHUNK_ROWS):
            if rows is None:
                yield column.slice(start, CHUNK_ROWS)
            else:
                yield column.take(pa.array(rows[start : start + CHUNK_ROWS]))


def write_index(target: Path, rows: Iterable[tuple[Any, ...]], about: PackAbout) -> None:
    """Writes an index of `rows`, in the order of COLUMNS: whole or not at all."""
    with whole_file(target, contended=True) as file:
        write_batch(file, rows_batch(rows, COLUMNS.with_metadata(about.to_metadata())))


def rows_batch(rows: Iterable[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows, in the order of the schema's columns, as a batch."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def write_batch(file: BinaryIO, batch: pa.RecordBatch) -> None:
    """Writes an Arrow file of one batch, with its schema's metadata."""
    with pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


def _refuse_places_outside(shards: Sequence[Shard], index: Path) -> None:
    """An index that came with data may name files in its own folder only, and not any others of the user's;
    those in the user's cache, which are made here, name them wherever they are."""
    if cache_folder().resolve() in index.resolve().parents:
        return
    for shard in shards:
        if leaves_folder(shard.name):
            raise ValueError(f"its shard {shard.name!r} lies outside its folder")


def leaves_folder(name: str) -> bool:
    """Returns whether `name`, in a folder, may be that of a file elsewhere."""
    return Path(name).is_absolute() or ".." in Path(name).parts
