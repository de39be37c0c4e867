"""A pack, or WebDataset shards, which get an index by being scanned once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.errors import PackError, RemoteError
from headrace.packs.records import Record, Sample
from headrace.packs.store_pack import StorePack
from headrace.packs.stored import read_stored
from headrace.sources.pack_index import FILE_NAME, PackIndex
from headrace.sources.packed import open_index
from headrace.sources.tar_index import LEFT_OUT


class PackInput:
    """The samples of a pack or of WebDataset shards, all of their fields included.

    Args:
        path: the pack's folder, a folder of .tar files, or one of them.

    Raises:
        PackError: it can't be read as one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._index = open_index(path)
        self.kind = "pack" if (path / FILE_NAME).is_file() else "WebDataset"
        self.classes = self._index.about.classes

    def __reduce__(self) -> tuple[Any, ...]:
        # Each process maps the index itself.
        return type(self), (self._path,)

    def records(self) -> list[Record]:
        """See `Input`."""
        paths = [self._index.path.parent / shard.name for shard in self._index.about.shards]
        return pack_records(self._index, [path.stat().st_mtime_ns for path in paths])

    def read(self, record: Record) -> Sample:
        """See `Input`."""
        return replace(read_stored(self._index, record.place), key=record.key)

    def notes(self) -> list[str]:
        """See `Input`."""
        left_out = self._index.about.made.get(LEFT_OUT, 0)
        return [f"{left_out:,} samples have no image: left out."] if left_out else []


class StorePackInput:
    """The same of a pack in a store.

    Args:
        url: of its folder.
        options: see `headrace.PackedDataset`.

    Raises:
        PackError: its index can't be had, or isn't one.
    """

    kind = "pack"

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        self._pack = StorePack(url, options)
        self.classes = self._pack.index.about.classes

    def records(self) -> list[Record]:
        """See `Input`."""
        index = self._pack.index
        return pack_records(index, [self._pack.stamp] * len(index.about.shards))

    def read(self, record: Record) -> Sample:
        """See `Input`."""
        try:
            stored = read_stored(self._pack.index, record.place, self._pack.fetch)
        except RemoteError as error:
            raise PackError(str(error)) from error
        return replace(stored, key=record.key)

    def notes(self) -> list[str]:
        """See `Input`."""
        return []


def pack_records(index: PackIndex, stamps: Sequence[int]) -> list[Record]:
    """The samples that `index` lists, with the stamps of their shards. Raises PackError."""
    keys: list[str] = index.checked(index.batch["key"]).to_pylist()
    numbers = index.numbers("shard").tolist()
    shards = index.about.shards
    if numbers and max(numbers) >= len(shards):
        raise PackError(f"{index.path} is damaged: rows are in none of its shards. Make it again.")
    if len(set(keys)) < len(keys):
        # WebDataset asks for different keys within a shard only.
        keys = [f"{Path(shards[shard].name).stem}/{key}" for shard, key in zip(numbers, keys, strict=True)]
    sizes = index.numbers("sample_size").tolist()
    return [
        Record(key, size, stamps[shard], row)
        for row, (key, size, shard) in enumerate(zip(keys, sizes, numbers, strict=True))
    ]
