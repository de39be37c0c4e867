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

from headrace import _torch_compat
from headrace._torch_compat import pin_memory
from headrace.config import LoaderConfig
from headrace.engine.error_policy import BatchWithFailures, ErrorPolicyDataset, Replaced
from headrace.engine.meter import Failures, Meter
from headrace.engine.slots import Slots, is_plain
from headrace.engine.stream import PythonStream
from headrace.engine.thread_pool import Task, ThreadPool
from headrace.order.batches import IndexBatch

# Smaller tensors are stacked as quickly as they are copied one by one.
MIN_NBYTES = 16_384

# Where a tensor is in a sample: keys and positions, outermost first.
Path = tuple[Any, ...]


@dataclass(eq=False)
class _Batch:
    """A batch on its way; `result` is set before `done`. The times: see `headrace.records.BatchTimes`."""

    indices: IndexBatch
    samples: list[Any]
    missing: int
    pid: int = field(default_factory=os.getpid)
    placing: PreallocatedCollate | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)
    dropped: bool = False
    result: Any = None
    error: BaseException | None = None
    submitted_ns: int = field(default_factory=time.perf_counter_ns)
    made_ns: int = 0


class ThreadStream(PythonStream):
    """Makes batches on the threads of `pool`.

    Nothing is seeded: threads share the generators of the process.

    Args:
        pool: threads of the loader.
        guarded: the user's dataset.
        batches: indices of each batch, in order.
        config: limits, and what is done to batches.
        depth: number of batches in flight.
        shelf: memory of batches that torch's default collation makes; None for a `collate_fn` of the user's.
    """

    def __init__(
        self,
        pool: ThreadPool,
        guarded: ErrorPolicyDataset,
        batches: Iterator[IndexBatch],
        config: LoaderConfig,
        depth: int,
        shelf: SlotsByPath | None,
        meter: Meter,
        failures: Failures,
    ) -> None:
        super().__init__(failures)
        self.depth = depth
        self._pool = pool
        self._guarded = guarded
        self._batches: Iterator[IndexBatch] | None = batches
        self._config = config
        self._shelf = shelf
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
        nbytes = tensor_bytes(made.data if isinstance(made, BatchWithFailures) else made)
        self._largest = max(self._largest, nbytes)
        self._fill()
        return made

    def ready(self) -> int:
        self._fill()
        done = takewhile(lambda batch: batch.done.is_set(), self._pending)
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
        return made if self._shelf is None else max(made, self._shelf.live_nbytes)

    def _submit(self, indices: IndexBatch) -> _Batch:
        listed = indices.listed()
        whole = self._config.batched and self._guarded.takes_batches()
        count = 1 if whole else len(listed)
        batch = _Batch(indices, [None] * len(listed), count)
        if self._shelf is not None and not whole and self._config.batched:
            batch.placing = PreallocatedCollate(len(listed), self._shelf)
        tasks: list[Task]
        if whole or not listed:
            tasks = [lambda: self._make_whole(batch, listed)]
        else:
            tasks = [self._task(batch, position, index) for position, index in enumerate(listed)]
        self._pool.add(tasks)
        return batch

    def _task(self, batch: _Batch, position: int, index: Any) -> Task:
        return lambda: self._make(batch, position, index)

    def _make(self, batch: _Batch, position: int, index: Any) -> None:
        if batch.dropped or batch.error is not None:
            return
        try:
            with self._meter.timed("python", 1, threads=self._pool.limit):
                sample = self._guarded.sample(index, None)
            if self._largest == 0:
                self._largest = max(1, len(batch.samples) * tensor_bytes(sample))
            if batch.placing is not None:
                sample = batch.placing.place(position, sample)
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
        with self._meter.timed("collate", len(batch.samples), threads=self._pool.limit):
            batch.result = self._guarded.collated(
                batch.samples, None, batched=self._config.batched, collate=batch.placing
            )
            self._pin(batch)
        batch.samples = []
        batch.made_ns = time.perf_counter_ns()
        batch.done.set()

    def _make_whole(self, batch: _Batch, listed: Any) -> None:
        try:
            with self._meter.timed("python", len(listed), threads=self._pool.limit):
                batch.result = self._guarded.whole(listed)
            self._pin(batch)
            batch.made_ns = time.perf_counter_ns()
        except BaseException as error:  # raised again where the batch is asked for
            batch.error = error
        batch.done.set()

    def _pin(self, batch: _Batch) -> None:
        if self._config.pin_memory:  # tensors that are pinned already are handed through
            batch.result = pin_memory(batch.result)

    def _wait(self) -> _Batch:
        if self._pending[0].pid != os.getpid():  # a forked child has none of its parent's threads
            self._pending = deque(self._submit(batch.indices) for batch in self._pending)
        batch = self._pending[0]
        if not batch.done.wait(self._config.timeout or None):
            raise RuntimeError(f"DataLoader timed out after {self._config.timeout} seconds")
        return batch


def tensor_bytes(value: Any) -> int:
    """Bytes of the tensors and arrays in `value`, as far as dicts, lists and tuples tell."""
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.layout is torch.strided else 0
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(tensor_bytes(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(tensor_bytes(item) for item in value)
    return 0


class SlotsByPath:
    """The slots of one loader, by the tensor's place in a sample.

    Args:
        pinned, keep: see `Slots`.
    """

    def __init__(self, *, pinned: bool, keep: int) -> None:
        self.pinned = pinned
        self.keep = keep
        self._slots: dict[Path, Slots] = {}

    def take(self, path: Path, nbytes: int) -> torch.Tensor:
        """Memory for the tensor at `path` of a batch: uint8 [nbytes]."""
        slots = self._slots.get(path)
        if slots is None or slots.nbytes < nbytes:
            slots = self._slots[path] = Slots(nbytes, pinned=self.pinned, keep=self.keep)
        return slots.take(nbytes)

    @property
    def live_nbytes(self) -> int:
        """Bytes of batches that are being made or that the user holds."""
        return sum(slots.live * slots.nbytes for slots in list(self._slots.values()))


class PreallocatedCollate:
    """torch's `default_collate` of one batch, whose large tensors are copied to it as samples come, in any
    order and from any thread.

    Args:
        samples: of the batch.
        shelf: where memory comes from.
    """

    def __init__(self, samples: int, shelf: SlotsByPath) -> None:
        self._samples = samples
        self._shelf = shelf
        self._tensors: dict[Path, torch.Tensor] = {}  # [n, …]: a row for each sample
        self._lock = threading.Lock()
        self._by_torch = _torch_compat.default_collate_functions()

    def __call__(self, samples: list[Any]) -> Any:
        """What torch's function makes of `samples`, all of which went through `place`."""
        return _torch_compat.collate(samples, {**self._by_torch, torch.Tensor: self._joined})

    def place(self, position: int, sample: Any, path: Path = ()) -> Any:
        """`sample`, or what stands in for it, with its large tensors and arrays in their rows."""
        kind = type(sample)
        if kind is torch.Tensor:
            return self._row_of(position, sample, path)
        if kind is np.ndarray and sample.dtype.kind in "biuf":
            tensor = torch.as_tensor(sample)
            row = self._row_of(position, tensor, path)
            return sample if row is tensor else row.numpy()
        if kind is tuple or kind is list:
            return kind(self.place(position, item, (*path, i)) for i, item in enumerate(sample))
        if kind is dict:
            return {key: self.place(position, item, (*path, key)) for key, item in sample.items()}
        return replace(sample, sample=self.place(position, sample.sample)) if kind is Replaced else sample

    def _row_of(self, position: int, tensor: torch.Tensor, path: Path) -> torch.Tensor:
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes < MIN_NBYTES or not is_plain(tensor):
            return tensor
        whole = self._tensors.get(path)
        if whole is None:
            with self._lock:
                whole = self._tensors.get(path)
                if whole is None:
                    flat = self._shelf.take(path, self._samples * nbytes).view(tensor.dtype)
                    whole = self._tensors[path] = flat.view(self._samples, *tensor.shape)
        if tensor.dtype != whole.dtype or tensor.shape != whole.shape[1:]:
            return tensor  # collation says what is wrong with that
        row = whole[position]
        if tensor.is_contiguous():
            # Not copy_: it would start threads of its own in each thread that calls it.
            np.copyto(_bytes_of(row), _bytes_of(tensor.detach()))
        else:
            row.copy_(tensor)
        return row

    def _joined(self, batch: list[Any], *, collate_fn_map: Any) -> Any:
        """The tensor whose rows are `batch`, or, where it isn't all of its rows, what torch makes of it."""
        start = batch[0].data_ptr()
        for whole in self._tensors.values():
            rows = range(start, start + whole.nbytes, whole.nbytes // self._samples)
            if whole.data_ptr() == start and [tensor.data_ptr() for tensor in batch] == list(rows):
                return whole
        return self._by_torch[torch.Tensor](batch, collate_fn_map=collate_fn_map)


def _bytes_of(tensor: torch.Tensor) -> Any:
    return tensor.view(-1).view(torch.uint8).numpy()
