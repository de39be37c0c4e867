"""Reads, changes and indexes samples on threads, and hands them over in order.

Reading, native code and checksums release the GIL: what is left to Python is a few microseconds a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import groupby

from headrace.packs.changes import Changes
from headrace.packs.lmdb_shards import LmdbShards
from headrace.packs.ordered import in_order
from headrace.packs.records import Input, Plan
from headrace.packs.rows import Facts, Packed
from headrace.packs.tar_shards import TarShards

# What a thread is given at a time: enough that handing it over costs nothing, and bounded in bytes.
CHUNK = 16
CHUNK_BYTES = 4_000_000

Shards = TarShards | LmdbShards

Progress = Callable[[int, int], None]


def write_shards(
    source: Input,
    changes: Changes,
    shards: Shards,
    plan: Plan,
    missing: list[int],
    workers: int,
    progress: Progress | None,
) -> None:
    """Writes the `missing` ones of `shards`, in that order. Raises PackError."""
    total = len(plan.records)
    done = total - sum(plan.bounds[shard + 1] - plan.bounds[shard] for shard in missing)

    def prepare(chunk: tuple[int, range]) -> list[Packed]:
        return [_prepared(source, changes, shards, plan, number) for number in chunk[1]]

    with closing(in_order(prepare, _chunks(plan, missing), workers)) as stream:
        for shard, chunks in groupby(stream, key=lambda pair: pair[0][0]):
            with shards.writing(shard) as add:
                for _, samples in chunks:
                    add(samples)
                    done += len(samples)
                    if progress is not None:
                        progress(done, total)


def _prepared(source: Input, changes: Changes, shards: Shards, plan: Plan, number: int) -> Packed:
    sample, note = changes.apply(source.read(plan.records[number]))
    pieces, image_begin = shards.encode(sample)
    return Packed(pieces, image_begin, sample, Facts.of(sample.image), note)


def _chunks(plan: Plan, missing: list[int]) -> Iterator[tuple[int, range]]:
    """(shard, numbers of samples): each a bounded part of one shard."""
    for shard in missing:
        first, filled = plan.bounds[shard], 0
        for number in range(first, plan.bounds[shard + 1]):
            size = plan.records[number].size
            if number - first == CHUNK or (number > first and filled + size > CHUNK_BYTES):
                yield shard, range(first, number)
                first, filled = number, 0
            filled += size
        yield shard, range(first, plan.bounds[shard + 1])
