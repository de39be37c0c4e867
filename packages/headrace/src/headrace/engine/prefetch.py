"""Batches of a dataset in an object store: what they are made of is fetched ahead of them, in their order."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace._native import ffi
from headrace.order.batches import IndexBatch
from headrace.plan.segments import NativeSegment
from headrace.records import Extents
from headrace.sources.source import Source, samples_of
from headrace.sources.stores.lease import WAIT_SLICE, Lease

# Bytes that are fetched, or held, for batches that aren't started yet, unless the cache is smaller; what the
# cache doesn't keep is held in memory, in a descriptor for each batch.
AHEAD_BYTES = 512 << 20
AHEAD_BATCHES = 128
CACHE_SHARE = 0.25


@dataclass(slots=True, eq=False)
class LeasedBatch(IndexBatch):
    """A batch, and the records that it is made of, or None if its indices aren't samples of the dataset."""

    lease: Lease | None = field(default=None, repr=False)


class Prefetcher(Iterator[IndexBatch]):
    """The batches of `batches`, each once its records are there; these are fetched ahead of what the caller
    asks for, by a bounded number of bytes."""

    def __init__(self, batches: Iterator[IndexBatch], source: Source) -> None:
        self._batches: Iterator[IndexBatch] | None = batches
        self._source = source
        self._queue: deque[LeasedBatch] = deque()
        self._most = min(AHEAD_BYTES, int(CACHE_SHARE * source.lease_bytes))

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
        """Returns whether the next batch, or the end, could be had without waiting."""
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
        while self._batches is not None and self._may_fetch():
            try:
                batch = next(self._batches)
            except StopIteration:
                self._batches = None
                return
            self._queue.append(self._leased(batch))

    def close(self) -> None:
        """Gives up what was started."""
        self._batches = None
        while self._queue:
            lease = self._queue.popleft().lease
            if lease is not None:
                lease.release()

    def _may_fetch(self) -> bool:
        nbytes = sum(batch.lease.nbytes for batch in self._queue if batch.lease is not None)
        return not self._queue or (nbytes < self._most and len(self._queue) < AHEAD_BATCHES)

    def _arrived(self, seconds: float) -> bool:
        lease = self._queue[0].lease
        return lease is None or lease.wait(seconds)

    def _leased(self, batch: IndexBatch) -> LeasedBatch:
        order = samples_of(batch.indices, len(self._source))
        if order is None:
            return LeasedBatch(batch.indices, batch.occurrences)
        return LeasedBatch(batch.indices, batch.occurrences, self._source.lease(order))


def leased_source(plan: NativeSegment, order: npt.NDArray[np.int64], lease: Lease) -> ffi.Source:
    """The samples `order`, which `lease` holds, as native code takes them: by their index in the dataset."""
    paths, offsets = lease.files()
    # As long as the dataset, but only the pages of these samples are ever touched.
    n = len(plan.source)
    shards, begins, sizes = np.empty(n, np.uint32), np.empty(n, np.uint64), np.empty(n, np.uint64)
    shards[order] = np.arange(len(order), dtype=np.uint32)
    begins[order], sizes[order] = lease.begins, lease.sizes()
    return ffi.Source.of_extents(paths, offsets, Extents(shards, begins, sizes), plan.source.entries)
