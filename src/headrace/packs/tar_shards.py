"""Shards that are tar files: one counts as finished once it has its name, and its rows are kept too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.packs.files import whole_file, write_pieces
from headrace.packs.records import Sample
from headrace.packs.rows import Packed, Part, Rows, part_path
from headrace.packs.tar_format import END, members
from headrace.sources.pack_index import Shard


class TarShards:
    """The shards of one pack.

    Args:
        folder: they go there, and their rows into its folder `parts`.
    """

    kind = "tar"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def encode(self, sample: Sample) -> tuple[tuple[bytes, ...], int]:
        """What a shard holds of a sample, and where in that its image begins. For any thread."""
        return members(sample)

    def part(self, shard: int) -> Part | None:
        """The rows of a shard that is finished; None: it isn't."""
        part = Part.read(part_path(self.folder, shard))
        try:
            size = self._path(shard).stat().st_size
        except FileNotFoundError:
            return None
        return part if part is not None and part.shard_bytes == size else None

    @contextmanager
    def writing(self, shard: int) -> Iterator[Callable[[Sequence[Packed]], None]]:
        """Writes a shard: call what this gives with its samples, some at a time. Raises PackError."""
        rows, size = Rows(shard), 0
        with whole_file(self._path(shard)) as file:

            def add(samples: Sequence[Packed]) -> None:
                nonlocal size
                for packed in samples:
                    rows.add(packed, size)
                    size += packed.size
                write_pieces(file, [piece for packed in samples for piece in packed.pieces])

            yield add
            write_pieces(file, [END])
        rows.write(part_path(self.folder, shard), size + len(END))

    def complete(self) -> None:
        """Once all shards are written."""

    def begins(self) -> npt.NDArray[np.uint64] | None:
        """Where every sample begins in its shard; None: as its row says."""
        return None

    def shards(self, parts: Sequence[Part]) -> tuple[Shard, ...]:
        """What the index says of the files."""
        return tuple(Shard(self._path(i).name, part.shard_bytes) for i, part in enumerate(parts))

    def _path(self, shard: int) -> Path:
        return self.folder / shard_name(shard)


def shard_name(shard: int) -> str:
    """The file of a shard."""
    return f"shard-{shard:06}.tar"
