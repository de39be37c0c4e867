"""Reads, changes and indexes samples on threads, and hands them over in order.

Reading, native code and checksums release the GIL: what is left to Python is a few microseconds a sample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby

from headrace.packs.changes import Changes
from headrace.packs.records import Input, Plan
from headrace.packs.rows import Facts, Packed
from headrace.packs.tar_shards import TarShards

# What a thread is given at a time: enough that handing it over costs nothing, and bounded in bytes.
CHUNK = 16
CHUNK_BYTES = 4_000_000

Progress = Callable[[int, int], None]


def write_shards(
    source: Input,
    changes: Changes,
    shards: TarShards,
    plan: Plan,
    missing: list[int],
    workers: int,
    progress: Progress | None,
) -> None:
    """Writes the `missing` ones of `shards`, in that order. Raises PackError."""
    total = len(plan.records)
    done = total - sum(plan.bounds[shard + 1] - plan.bounds[shard] for shard in missing)

    def prepare(numbers: range) -> list[Packed]:
        return [_prepared(source, changes, shards, plan, number) for number in numbers]

    with ThreadPoolExecutor(workers) as pool:
        try:
            stream = _in_order(pool, prepare, _chunks(plan, missing), ahead=2 * workers + 2)
            for shard, chunks in groupby(stream, key=lambda pair: pair[0]):
                with shards.writing(shard) as add:
                    for _, samples in chunks:
                        for packed in samples:
                            add(packed)
                        done += len(samples)
                        if progress is not None:
                            progress(done, total)
        finally:
            pool.shutdown(cancel_futures=True)


def _prepared(source: Input, changes: Changes, shards: TarShards, plan: Plan, number: int) -> Packed:
    sample, note = changes.apply(source.read(plan.records[number]))
    data, image_begin = shards.encode(sample, number)
    return Packed(data, image_begin, sample, Facts.of(sample.image), note)


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


def _in_order(
    pool: ThreadPoolExecutor,
    prepare: Callable[[range], list[Packed]],
    chunks: Iterable[tuple[int, range]],
    ahead: int,
) -> Iterator[tuple[int, list[Packed]]]:
    """(shard, samples) of each chunk in turn, while `ahead` more are begun."""
    begun: deque[tuple[int, Future[list[Packed]]]] = deque()
    for shard, numbers in chunks:
        begun.append((shard, pool.submit(prepare, numbers)))
        if len(begun) > ahead:
            first, future = begun.popleft()
            yield first, future.result()
    for shard, future in begun:
        yield shard, future.result()
