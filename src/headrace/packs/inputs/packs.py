"""A pack, or WebDataset shards, which get an index by being scanned once."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import PackError
from headrace.packs.records import Record, Sample
from headrace.packs.stored import read_stored
from headrace.sources.pack_index import FILE_NAME
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
        self._index = open_index(path)
        self.kind = "pack" if (path / FILE_NAME).is_file() else "WebDataset"
        self.classes = self._index.about.classes

    def records(self) -> list[Record]:
        """See `Input`."""
        index = self._index
        keys: list[str] = index.checked(index.batch["key"]).to_pylist()
        numbers = index.numbers("shard").tolist()
        paths = [index.path.parent / shard.name for shard in index.about.shards]
        if numbers and max(numbers) >= len(paths):
            raise PackError(f"{index.path} is damaged: rows are in none of its shards. Make it again.")
        if len(set(keys)) < len(keys):
            # WebDataset asks for different keys within a shard only.
            keys = [f"{paths[shard].stem}/{key}" for shard, key in zip(numbers, keys, strict=True)]
        stamps = [path.stat().st_mtime_ns for path in paths]
        sizes = index.numbers("sample_size").tolist()
        return [
            Record(key, size, stamps[shard], row)
            for row, (key, size, shard) in enumerate(zip(keys, sizes, numbers, strict=True))
        ]

    def read(self, record: Record) -> Sample:
        """See `Input`."""
        stored = read_stored(self._index, record.place)
        return Sample(record.key, stored.extension, stored.image, stored.label, stored.fields)

    def notes(self) -> list[str]:
        """See `Input`."""
        left_out = self._index.about.made.get(LEFT_OUT, 0)
        return [f"{left_out:,} samples have no image: left out."] if left_out else []
