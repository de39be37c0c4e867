"""Map-style datasets on Python threads: each sample is made by whichever thread is free, in order."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from headrace._torch_compat import pin_memory
from headrace.config import LoaderConfig
from headrace.device.structure import children, total_nbytes
from headrace.engine.collate import ReusingCollate
from headrace.engine.error_policy import ErrorPolicyDataset, Request
from headrace.engine.meter import Failures, Meter
from headrace.engine.seeding import Seeding
from headrace.engine.stream import PythonStream
from headrace.engine.thread_pool import ThreadPool
from headrace.order.batches import IndexBatch

UNSEEDED = Seeding((0, 0), 0, by_sample=False)


@dataclass(eq=False)
class _Batch:
    """A batch on its way. The times: see `headrace.records.BatchTimes`; `made_ns` is set last."""

    indices: IndexBatch
    samples: list[Any]
    missing: int
    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: SimpleQueue[None] = field(default_factory=SimpleQueue)  # an Event's lock may stay held after Ctrl-C
    dropped: bool = False
    result: Any = None
    error: BaseException | None = None
    submitted_ns: int = field(default_factory=time.perf_counter_ns)
    made_ns: int = 0


class ThreadStream(PythonStream):
    """Makes batches on worker threads, as far ahead as `depth` and the memory budget allow. Nothing is
    seeded: threads share the generators of the process."""

    def __init__(
        self,
        pool: ThreadPool,
        guarded: ErrorPolicyDataset,
        batches: Iterator[IndexBatch],
        config: LoaderConfig,
        depth: int,
        meter: Meter,
        failures: Failures,
    ) -> None:
        super().__init__(failures)
        self.depth = depth
        self._pool = pool
        self._guarded = guarded
        self._batches: Iterator[IndexBatch] | None = batches
        self._config = config
        collate = guarded.collate
        self._reusing = collate if isinstance(collate, ReusingCollate) else None
        self._meter = meter
        self._pending: deque[_Batch] = deque()
        self._largest = 0
        self._fill()

    def _next(self) -> Any:
        self._fill()
        if not self._pending:
            raise StopIteration
        batch = self._wait()
        self._pending.popleft()
        self._taken += 1
        if batch.error is not None:
            raise batch.error
        made = batch.result
        self._times = batch.submitted_ns, batch.made_ns
        self._largest = max(self._largest, 1, _nbytes(made))  # 0: not known
        self._fill()
        return made

    def ready(self) -> int:
        self._fill()
        done = takewhile(lambda batch: batch.made_ns, self._pending)
        return sum(1 for _ in done) if self._pending else 1

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    def close(self) -> None:  # samples that are being made are not waited for
        self._batches = None
        for batch in getattr(self, "_pending", ()):
            batch.dropped = True
        self._pending = deque()

    def _fill(self) -> None:
        while self._batches is not None and len(self._pending) < self._allowed():
            if self._pending and self._nbytes() + self._largest > self._config.memory_budget:
                return
            try:
                indices = next(self._batches)
            except StopIteration:
                self._batches = None
                return
            self._pending.append(self._submit(indices))

    def _allowed(self) -> int:
        if self._largest > 0 or not self._pending:
            return self.depth
        # Until it is known how large a batch is: what all threads can begin with.
        needed = math.ceil(self._pool.limit / max(1, len(self._pending[0].indices.indices))) + 1
        return min(self.depth, needed)

    def _nbytes(self) -> int:
        made = len(self._pending) * self._largest
        return made if self._reusing is None else max(made, self._reusing.live_nbytes)

    def _submit(self, indices: IndexBatch) -> _Batch:
        listed = indices.listed()
        whole = self._guarded.takes_batches()
        count = 1 if whole else len(listed)
        batch = _Batch(indices, [None] * len(listed), count)
        if whole or not listed:
            tasks = [partial(self._make_whole, batch)]
        else:
            tasks = [partial(self._make, batch, position, index) for position, index in enumerate(listed)]
        self._pool.add(tasks)
        return batch

    def _make(self, batch: _Batch, position: int, index: Any) -> None:
        if batch.dropped or batch.error is not None:
            return
        try:
            with self._meter.timed("python", 1, threads=self._pool.limit):
                batch.samples[position] = self._guarded.sample(index, None)
            with batch.lock:
                batch.missing -= 1
                last = batch.missing == 0
            if last:
                self._finish(batch)
        except BaseException as error:  # raised again where the batch is asked for
            batch.error = error
            batch.made_ns = time.perf_counter_ns()
            batch.done.put(None)

    def _finish(self, batch: _Batch) -> None:
        with self._meter.timed("collate", len(batch.samples), threads=self._pool.limit):
            batch.result = self._guarded.collated(batch.samples, None)
            self._pin(batch)
        batch.samples = []
        batch.made_ns = time.perf_counter_ns()
        batch.done.put(None)

    def _make_whole(self, batch: _Batch) -> None:
        try:
            with self._meter.timed("python", len(batch.samples), threads=self._pool.limit):
                batch.result = self._guarded.make(Request(batch.indices, UNSEEDED, 0))
            self._pin(batch)
        except BaseException as error:  # raised again where the batch is asked for
            batch.error = error
        batch.made_ns = time.perf_counter_ns()
        batch.done.put(None)

    def _pin(self, batch: _Batch) -> None:
        if self._config.pin_memory:  # tensors that are pinned already are handed through
            batch.result = pin_memory(batch.result)

    def _wait(self) -> _Batch:
        if self._pending[0].pid != os.getpid():  # a forked child has none of its parent's threads
            self._pending = deque(self._submit(batch.indices) for batch in self._pending)
        batch = self._pending[0]
        try:
            if not batch.made_ns:
                batch.done.get(timeout=self._config.timeout or None)
        except Empty:
            raise RuntimeError(f"DataLoader timed out after {self._config.timeout} seconds") from None
        return batch


def _nbytes(value: Any) -> int:
    """Bytes of the tensors and arrays in a batch."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    inside = children(value)
    return sum(map(_nbytes, inside)) if inside else total_nbytes(value)
