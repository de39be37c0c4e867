"""Map-style datasets on Python threads: each sample is made by whichever thread is free, in order."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from headrace._torch_compat import pin_memory
from headrace.device.structure import batch_size
from headrace.engine.crew import Crew, Task
from headrace.engine.guarded import EMPTY, Guarded, Replaced
from headrace.engine.meter import Failures, Meter
from headrace.engine.placing import Placing, SlotShelf
from headrace.engine.producer import Made
from headrace.engine.python import record_failures
from headrace.order.batches import IndexBatch


@dataclass(frozen=True)
class ThreadEpoch:
    """What a `ThreadProducer` was asked for.

    Attributes:
        budget: bytes of batches in flight and still held by the caller; one batch is always made.
        timeout: seconds to wait for one batch; 0: without end.
        batched: whether samples are collated to batches.
        pinned: whether batches are to be in page-locked memory.
    """

    budget: int
    timeout: float
    batched: bool
    pinned: bool


@dataclass(eq=False)
class _Batch:
    """A batch on its way; `result` is set before `done`. The times: see `headrace.records.BatchTimes`."""

    indices: IndexBatch
    samples: list[Any]
    missing: int
    pid: int = field(default_factory=os.getpid)
    placing: Placing | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)
    dropped: bool = False
    result: Any = None
    error: BaseException | None = None
    submitted_ns: int = field(default_factory=time.perf_counter_ns)
    made_ns: int = 0


class ThreadProducer:
    """Makes batches on `crew`'s threads: a `Producer`.

    Nothing is seeded: threads share the generators of the process.

    Args:
        guarded: the user's dataset.
        batches: in order.
        depth: of them, in flight.
        shelf: memory of batches that torch's default collation makes; None: the user has his own.
    """

    def __init__(
        self,
        crew: Crew,
        guarded: Guarded,
        batches: Iterator[IndexBatch],
        epoch: ThreadEpoch,
        depth: int,
        shelf: SlotShelf | None,
        meter: Meter,
        failures: Failures,
    ) -> None:
        self._depth = depth
        self._crew = crew
        self._guarded = guarded
        self._batches: Iterator[IndexBatch] | None = batches
        self._epoch = epoch
        self._shelf = shelf
        self._meter = meter
        self._failures = failures
        self._pending: deque[_Batch] = deque()
        self._taken = 0
        self._largest = 0
        self._fill()

    def __next__(self) -> Made:
        while True:
            self._fill()
            if not self._pending:
                raise StopIteration
            batch = self._wait()
            self._pending.popleft()
            self._taken += 1
            if batch.error is not None:
                raise batch.error
            data = record_failures(batch.result, self._failures)
            self._largest = max(self._largest, tensor_bytes(data, arrays=True))
            self._fill()
            if isinstance(data, str) and data == EMPTY:
                continue
            return Made(data, batch_size(data), self._taken, times=(batch.submitted_ns, batch.made_ns))

    def __del__(self) -> None:
        self.close()

    def ready(self) -> int:
        """Batches, an error or the end among them, that could be had without waiting."""
        self._fill()
        done = takewhile(lambda batch: batch.done.is_set(), self._pending)
        return sum(1 for _ in done) if self._pending else 1

    @property
    def depth(self) -> int:
        """Batches that may be in flight."""
        return self._depth

    @property
    def in_flight(self) -> int:
        """Batches that are being made or wait to be taken."""
        return len(self._pending)

    def close(self) -> None:
        """Gives up what is in flight; samples that are being made are not waited for."""
        self._batches = None
        for batch in getattr(self, "_pending", ()):
            batch.dropped = True
        self._pending = deque()

    def _fill(self) -> None:
        while self._batches is not None and len(self._pending) < self._allowed():
            if self._pending and self._nbytes() + self._largest > self._epoch.budget:
                return
            try:
                indices = next(self._batches)
            except StopIteration:
                self._batches = None
                return
            self._pending.append(self._submit(indices))

    def _allowed(self) -> int:
        if self._largest > 0 or not self._pending:
            return self._depth
        # Until it is known how large a batch is: what all threads can begin with.
        needed = math.ceil(self._crew.limit / max(1, len(self._pending[0].indices.indices))) + 1
        return min(self._depth, needed)

    def _nbytes(self) -> int:
        made = len(self._pending) * self._largest
        return made if self._shelf is None else max(made, self._shelf.live_nbytes)

    def _submit(self, indices: IndexBatch) -> _Batch:
        listed = indices.listed()
        whole = self._epoch.batched and self._guarded.takes_batches()
        count = 1 if whole else len(listed)
        batch = _Batch(indices, [None] * len(listed), count)
        if self._shelf is not None and not whole and self._epoch.batched:
            batch.placing = Placing(len(listed), self._shelf)
        tasks: list[Task]
        if whole or not listed:
            tasks = [lambda: self._make_whole(batch, listed)]
        else:
            tasks = [self._task(batch, position, index) for position, index in enumerate(listed)]
        self._crew.add(tasks)
        return batch

    def _task(self, batch: _Batch, position: int, index: Any) -> Task:
        return lambda: self._make(batch, position, index)

    def _make(self, batch: _Batch, position: int, index: Any) -> None:
        if batch.dropped or batch.error is not None:
            return
        try:
            with self._meter.timed("python", 1, threads=self._crew.limit):
                sample = self._guarded.sample(index, None)
            if self._largest == 0:
                self._largest = max(1, len(batch.samples) * tensor_bytes(sample, arrays=True))
            if batch.placing is not None:
                sample = _placed(batch.placing, position, sample)
            batch.samples[position] = sample
            with batch.lock:
                batch.missing -= 1
                last = batch.missing == 0
            if last:
                self._finish(batch)
        except BaseException as error:  # raised again where the batch is asked for
            batch.error = error
            batch.done.set()

    def _finish(self, batch: _Batch) -> None:
        collate = None if batch.placing is None else batch.placing.collate
        with self._meter.timed("collate", len(batch.samples), threads=self._crew.limit):
            batch.result = self._guarded.collated(
                batch.samples, None, batched=self._epoch.batched, collate=collate
            )
            self._pin(batch)
        batch.samples = []
        batch.made_ns = time.perf_counter_ns()
        batch.done.set()

    def _make_whole(self, batch: _Batch, listed: Any) -> None:
        try:
            with self._meter.timed("python", len(listed), threads=self._crew.limit):
                batch.result = self._guarded.whole(listed)
            self._pin(batch)
            batch.made_ns = time.perf_counter_ns()
        except BaseException as error:  # raised again where the batch is asked for
            batch.error = error
        batch.done.set()

    def _pin(self, batch: _Batch) -> None:
        if self._epoch.pinned:  # tensors that are pinned already are handed through
            batch.result = pin_memory(batch.result)

    def _wait(self) -> _Batch:
        if self._pending[0].pid != os.getpid():  # a forked child has none of its parent's threads
            self._pending = deque(self._submit(batch.indices) for batch in self._pending)
        batch = self._pending[0]
        if not batch.done.wait(self._epoch.timeout or None):
            raise RuntimeError(f"DataLoader timed out after {self._epoch.timeout} seconds")
        return batch


def _placed(placing: Placing, position: int, sample: Any) -> Any:
    if isinstance(sample, Replaced):
        return replace(sample, sample=placing.place(position, sample.sample))
    return placing.place(position, sample)


def tensor_bytes(value: Any, *, arrays: bool) -> int:
    """Bytes of the tensors in `value`, as far as dicts, lists and tuples tell.

    Args:
        value: anything.
        arrays: whether NumPy's arrays count, too.
    """
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.layout is torch.strided else 0
    if isinstance(value, np.ndarray):
        return int(value.nbytes) if arrays else 0
    if isinstance(value, Mapping):
        return sum(tensor_bytes(item, arrays=arrays) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(tensor_bytes(item, arrays=arrays) for item in value)
    return 0
