"""Samples in the shards of a pack, by index: what native code reads by extent, and Pillow through a file."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from headrace._native import ffi
from headrace.errors import PackError
from headrace.records import EntryPoints, Extents
from headrace.sources.folder import joined_paths
from headrace.sources.reading import read_part
from headrace.sources.source import Indices, Source

if TYPE_CHECKING:  # pyarrow, which it needs, is optional
    from headrace.sources.pack_index import PackIndex

P = TypeVar("P", bound="PackSource")


@dataclass(frozen=True, eq=False, repr=False)
class PackSource(Source):
    """Some of a pack's samples, in some order.

    Attributes:
        index: of the pack.
        rows: int64 [n]; which sample of the index each one is, or None for all, in order.
        paths, offsets: the shards' files, as in `ImageSource`.
        extents: of the images in them.
        labels: int64 [n].
        entries: entry points.
    """

    index: PackIndex
    rows: npt.NDArray[np.int64] | None
    paths: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.uint64]
    extents: Extents
    labels: npt.NDArray[np.int64]
    entries: EntryPoints

    @classmethod
    def of(cls, index: PackIndex) -> PackSource:
        """All samples of a pack on a local disk. Raises PackError if a shard is missing, or isn't as long as
        the index says, or if the pack is an LMDB."""
        if not index.has_places:
            raise lmdb_refused(index.path.parent)
        return cls(**pack_fields(index, [os.fsencode(file) for file in _shard_files(index)]))

    def row(self, i: int) -> int:
        """The row of the index that sample `i` is; raises IndexError."""
        i = range(len(self))[i]
        return i if self.rows is None else int(self.rows[i])

    def shard(self, i: int) -> str:
        """The file that sample `i` is in. Raises PackError if the index names none."""
        number = int(self.extents.shards[i])
        if number >= len(self.offsets) - 1:
            raise PackError(f"{self.index.path} is damaged: row {self.row(i)} is in none of its shards.")
        start, stop = int(self.offsets[number]), int(self.offsets[number + 1])
        return os.fsdecode(self.paths[start : stop - 1].tobytes())

    def path(self, i: int) -> str:
        """Describes where sample `i` is: shard and key."""
        row = self.row(i)
        try:
            return f"{self.shard(i)}: {self.index.text('key', row)}.{self.index.text('extension', row)}"
        except PackError:  # reading the sample reports what is wrong with the index
            return f"{self.index.path}: row {row}"

    def native(self) -> ffi.Source | None:
        return ffi.Source.of_extents(self.paths, self.offsets, self.extents, self.entries)

    def open(self, i: int) -> BinaryIO:
        """The image file of sample `i`, in memory. Raises OSError, and PackError if the shard ends before."""
        offset, size = int(self.extents.begins[i]), int(self.extents.sizes[i])
        return io.BytesIO(self.bytes_at(i, offset, size))

    def bytes_at(self, i: int, offset: int, size: int) -> bytes:
        """Part of the shard that sample `i` is in; raises as `open`."""
        return read_extent(Path(self.shard(i)), offset, size)

    def take(self: P, indices: Indices) -> P:
        rows = np.arange(len(self.index)) if self.rows is None else self.rows
        order = np.asarray(indices, np.int64)
        extents = Extents(self.extents.shards[order], self.extents.begins[order], self.extents.sizes[order])
        entries = EntryPoints(self.entries.data, self.entries.begins[order], self.entries.ends[order], None)
        labels = self.labels[order]
        return replace(self, rows=rows[order], extents=extents, labels=labels, entries=entries)

    def with_entries(self: P, root: str | None) -> tuple[P, str]:  # noqa: ARG002
        """See `Source`: the index has them."""
        return self, f"{self.entries.indexed:,} have entry points"

    def digest(self) -> str:
        """See `Source`: of keys and labels."""
        digest = hashlib.blake2b(self.labels.tobytes(), digest_size=8)
        for keys in self.index.keys(self.rows):
            digest.update("\0".join(keys).encode())
        return digest.hexdigest()

    def count_extensions(self, extensions: Sequence[str]) -> int:
        return self.index.count_extensions(self.rows, extensions)


def pack_fields(index: PackIndex, shards: Sequence[bytes]) -> dict[str, Any]:
    """The fields of a `PackSource` of all samples of `index`, whose shards are the files or URLs `shards`."""
    data, begins, ends = index.entries()
    paths, offsets = joined_paths(shards)
    return {
        "index": index,
        "rows": None,
        "paths": paths,
        "offsets": offsets,
        "extents": Extents(index.numbers("shard"), index.numbers("offset"), index.numbers("size")),
        "labels": index.numbers("label"),
        "entries": EntryPoints(data, begins, ends, None),
    }


def read_extent(path: Path, offset: int, size: int) -> bytes:
    """`size` bytes from `offset` on. Raises PackError if the file ends before, OSError as `open` does."""
    data = read_part(path, offset, size)
    if len(data) != size:
        raise PackError(f"{path} ends before byte {offset + size}: it was cut short. Fetch or make it again.")
    return data


def lmdb_refused(path: Path) -> PackError:
    """The error for an LMDB at `path`, which native code can't read."""
    return PackError(
        f"{path} is an LMDB, which isn't read natively. Pack it: headrace pack {path} DEST; or read it by a"
        " dataset of your own, as docs/packs.md shows."
    )


def _shard_files(index: PackIndex) -> list[Path]:
    """The shards' files, each seen to be there and as long as the index says."""
    files = []
    for shard in index.about.shards:
        path = index.path.parent / shard.name
        try:
            info = path.stat()
        except OSError as error:
            raise PackError(f"{path}, which {index.path} names, can't be read: {error.strerror}.") from error
        if not stat.S_ISREG(info.st_mode):
            raise PackError(f"{path}, which {index.path} names, is not a file.")
        size = info.st_size
        if size != shard.size:
            raise PackError(
                f"{path} has {size:,} bytes, and {index.path} was made for {shard.size:,}: the shard was cut"
                " short or changed, or the index is another pack's. Run headrace verify, or make it again."
            )
        files.append(path.resolve())
    return files
