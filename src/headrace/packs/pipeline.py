"""Reads, changes and indexes samples on threads, and hands them over in order.

Reading, native code and checksums release the GIL: what is left to Python is a few microseconds a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import groupby

from headrace.packs.changes import Changes
from headrace.packs.lmdb_shards import LmdbShards
from headrace.packs.ordered import in_order
from headrace.packs.records import Input, Record
from headrace.packs.rows import Facts, Packed
from headrace.packs.tar_shards import TarShards

# What a thread is given at a time: enough that handing it over costs nothing, and bounded in bytes.
CHUNK = 16
CHUNK_BYTES = 4_000_000

Shards = TarShards | LmdbShards


def write_shards(
    source: Input,
    changes: Changes,
    shards: Shards,
    work: Iterable[tuple[int, Sequence[Record]]],
    workers: int,
    progress: Callable[[int], None],
) -> None:
    """Writes shards: of each in `work` its number and what it holds; `progress` is told how many samples more
    are written. Raises PackError."""

    def prepare(chunk: tuple[int, Sequence[Record]]) -> list[Packed]:
        return [_prepared(source, changes, shards, record) for record in chunk[1]]

    with closing(in_order(prepare, _chunks(work), workers)) as stream:
        for shard, chunks in groupby(stream, key=lambda pair: pair[0][0]):
            with shards.writing(shard) as add:
                for _, samples in chunks:
                    add(samples)
                    progress(len(samples))


def _prepared(source: Input, changes: Changes, shards: Shards, record: Record) -> Packed:
    sample, note = changes.apply(source.read(record))
    pieces, image_begin = shards.encode(sample)
    return Packed(pieces, image_begin, sample, Facts.of(sample.image), note)


def _chunks(work: Iterable[tuple[int, Sequence[Record]]]) -> Iterator[tuple[int, Sequence[Record]]]:
    """The same, each shard in bounded parts."""
    for shard, records in work:
        first, filled = 0, 0
        for number, record in enumerate(records):
            if number - first == CHUNK or (number > first and filled + record.size > CHUNK_BYTES):
                yield shard, records[first:number]
                first, filled = number, 0
            filled += record.size
        yield shard, records[first:]
