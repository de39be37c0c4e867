"""Batches of a dataset in an object store: what they are made of is fetched ahead of them, in their order."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._native import ffi
from headrace.errors import SampleError
from headrace.order.batches import IndexBatch
from headrace.order.permutation import Indices
from headrace.plan.segments import NativeSegment
from headrace.records import Extents
from headrace.remote.lease import WAIT_SLICE, Lease
from headrace.sources.remote import RemoteSamples

# Bytes that are fetched, or held, for batches that aren't started yet, unless the cache is smaller.
AHEAD_BYTES = 512 << 20
CACHE_SHARE = 0.25

# (position of this epoch's sample number 0, samples in it) → when each of the samples is needed next.
NextUse = Callable[[Indices], "list[int | None]"]
# (number of this epoch's sample, count) → so many from there on, fewer at its end.
Coming = Callable[[int, int], Indices]


@dataclass(slots=True, eq=False)
class LeasedBatch(IndexBatch):
    """A batch, and the records that it is made of; None: its indices aren't samples of the dataset."""

    lease: Lease | None = field(default=None, repr=False)


class Prefetcher(Iterator[IndexBatch]):
    """The batches of `batches`, each once its records are there.

    Args:
        batches: indices of each batch, in order; taken ahead of what the caller asks for, by a bounded number
            of bytes.
        source: source of the samples.
        next_use: function that says when samples are needed again, counted in samples from the start of the
            epoch.
        coming: function that names later samples of the epoch; None where nothing is known beyond `batches`.
    """

    def __init__(
        self,
        batches: Iterator[IndexBatch],
        source: RemoteSamples,
        next_use: NextUse | None = None,
        coming: Coming | None = None,
    ) -> None:
        self._batches: Iterator[IndexBatch] | None = batches
        self._source = source
        self._next_use = next_use
        self._queue: deque[LeasedBatch] = deque()
        records = source.access.records()
        self._most = min(AHEAD_BYTES, int(CACHE_SHARE * records.capacity))
        self._start = self._position = records.position
        self._expecting = (
            records.expect(lambda first, count: source.wanted(coming(first, count)), self._start)
            if coming is not None
            else None
        )

    def __next__(self) -> LeasedBatch:
        """Waits for the records of the next batch."""
        self.fill()
        if not self._queue:
            raise StopIteration
        while not self._arrived(WAIT_SLICE):
            pass
        batch = self._queue.popleft()
        self.fill()
        return batch

    def ready(self) -> bool:
        """Whether the next batch, or the end, could be had without waiting."""
        self.fill()
        return not self._queue or self._arrived(0)

    def wait(self, deadline: float) -> bool:
        """Waits until `ready`; False when `deadline` (of `time.monotonic`) came first."""
        self.fill()
        while self._queue and not self._arrived(WAIT_SLICE):
            if time.monotonic() > deadline:
                return False
        return True

    def fill(self) -> None:
        """Starts to fetch, as far ahead as is allowed."""
        if self._queue and self._queue[0].lease is not None and self._queue[0].lease.pid != os.getpid():
            # In a forked child, where nobody fetches what the parent has started to.
            self._queue = deque(self._leased(IndexBatch(b.indices, b.occurrences)) for b in self._queue)
        while self._batches is not None and (not self._queue or self._held() < self._most):
            try:
                batch = next(self._batches)
            except StopIteration:
                self._batches = None
                self._end()
                return
            self._queue.append(self._leased(batch))

    def close(self) -> None:
        """Gives up what was started."""
        self._batches = None
        self._end()
        while self._queue:
            lease = self._queue.popleft().lease
            if lease is not None:
                lease.release()

    def _end(self) -> None:
        if self._expecting is not None:
            records = self._source.access.records()
            records.position = max(records.position, self._expecting.end())
            self._expecting = None

    def _held(self) -> int:
        return sum(batch.lease.nbytes for batch in self._queue if batch.lease is not None)

    def _arrived(self, seconds: float) -> bool:
        lease = self._queue[0].lease
        return lease is None or lease.wait(seconds)

    def _leased(self, batch: IndexBatch) -> LeasedBatch:
        order = samples_of(batch.indices, len(self._source))
        if order is None:
            return LeasedBatch(batch.indices, batch.occurrences)
        then: list[int | None] | None = None
        if self._next_use is not None:
            then = [None if use is None else self._start + use for use in self._next_use(order)]
        lease = self._source.begin(order, self._position, then)
        self._position += len(order)
        records = self._source.access.records()
        records.position = max(records.position, self._position)
        if self._expecting is not None:
            self._expecting.passed = self._position - self._start
        return LeasedBatch(batch.indices, batch.occurrences, lease)


def samples_of(indices: Any, size: int) -> Indices | None:
    """`indices` as samples from 0 on; None where they aren't of a dataset of `size` samples."""
    try:
        order = np.array(indices, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return None
    if ((order < -size) | (order >= size)).any():
        return None
    order[order < 0] += size
    return order


def leased_source(plan: NativeSegment, order: npt.NDArray[np.int64], lease: Lease) -> ffi.Source:
    """The samples `order`, which `lease` holds, as native code takes them: by their index in the dataset."""
    paths, offsets = lease.files()
    # As long as the dataset, but only the pages of these samples are ever touched.
    n = len(plan.source)
    shards, sizes = np.empty(n, np.uint32), np.empty(n, np.uint64)
    begins = np.zeros(n, np.uint64)
    shards[order] = np.arange(len(order), dtype=np.uint32)
    sizes[order] = lease.sizes()
    return ffi.Source.of_extents(paths, offsets, Extents(shards, begins, sizes), plan.entries)


class HeldSamples:
    """Some samples, there to be read from its beginning as a context to its end; waits for them.

    Args:
        plan: what is made of the samples.
        source: where their files come from.
        order: the samples, from 0 on; int64 [n].
    """

    def __init__(self, plan: NativeSegment, source: RemoteSamples, order: Indices) -> None:
        self._plan = plan
        self._source = source
        self._order = order
        self._at = {sample: i for i, sample in enumerate(order.tolist())}

    def __enter__(self) -> HeldSamples:
        self._lease = self._source.begin(self._order, 0, urgent=True).arrived()
        self._native = leased_source(self._plan, self._order, self._lease)
        return self

    def __exit__(self, *_: object) -> None:
        self._lease.release()

    def __contains__(self, sample: int) -> bool:
        return sample in self._at

    def native(self, sample: int) -> ffi.Source:
        """Where native code finds `sample`. Raises SampleError where it couldn't be had."""
        error = self._lease.errors.get(self._at[sample])
        if error is not None:
            raise SampleError.at(sample, self._source.path(sample), str(error)) from error
        return self._native
