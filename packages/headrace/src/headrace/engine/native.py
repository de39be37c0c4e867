"""The native engine of one loader: its threads, its slots, and what they did."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace._native import abi, ffi
from headrace._native.decoders import decoder_bits
from headrace.config import READ_THREADS
from headrace.engine.lower import lower_pipeline, make_sample
from headrace.engine.meter import Meter
from headrace.engine.prefetch import LeasedBatch, leased_source
from headrace.engine.slots import Slots
from headrace.engine.thread_pool import Task, ThreadPool
from headrace.errors import SampleError
from headrace.order.batches import IndexBatch
from headrace.plan.segments import NativeSegment
from headrace.records import BatchKeys, NativeStats, SampleKey
from headrace.sources.stores.lease import Lease

# How long to sleep in native code before Python gets a chance to see Ctrl-C, in milliseconds.
WAIT_SLICE_MS = 100

# Seconds that the end of a loader waits for reads that were started. One from a mount that hangs may never
# return: `ffi.Batch` then leaves what it writes to alone for good.
PATIENCE_AT_END = 5.0


class NativeThreads:
    """A native pool and Python threads for what it leaves to Pillow, made at the first use, again in a forked
    child, and ended when the loader is dropped."""

    def __init__(self, decode_threads: int) -> None:
        self.decode_threads = decode_threads
        self._pid = -1
        self._pool: ffi.Pool | None = None
        self._python: ThreadPool | None = None
        self._end: weakref.finalize[..., NativeThreads] | None = None

    def pool(self) -> ffi.Pool:
        """The native pool of this process."""
        if self._pool is None or self._pid != os.getpid():
            pool, pid = ffi.Pool(self.decode_threads, READ_THREADS), os.getpid()
            self._end = weakref.finalize(self, _end_pool, pool, pid)
            self._pool, self._pid = pool, pid  # last, so that after Ctrl-C no pool lacks its finalizer
        return self._pool

    def use(self, decode_threads: int) -> None:
        """Changes the number of decode threads while they work; not from or to 0."""
        if decode_threads == self.decode_threads:
            return
        self.decode_threads = decode_threads
        if self._pool is not None and self._pid == os.getpid():
            self._pool.use(decode_threads, READ_THREADS)

    def python(self) -> ThreadPool:
        """Python threads for Pillow, as many as decode threads: it releases the GIL for most of its work."""
        if self._python is None:
            self._python = ThreadPool(max(1, self.decode_threads))
        return self._python

    def stats(self) -> NativeStats | None:
        """The statistics of the native pool, or None if this process has none."""
        if self._pool is None or self._pid != os.getpid():
            return None
        # Where the loader is collected in a cycle, its pool may be ended before the last iterator is.
        return self._pool.stats() if self._end is not None and self._end.alive else None


def _end_pool(pool: ffi.Pool, pid: int) -> None:
    if os.getpid() == pid:
        pool.close()


@dataclass
class PendingBatch:
    """A batch on its way. `finished` gets an item for each sample in `made`: unlike a Future or an
    Event, it has no lock that Ctrl-C can leave held."""

    keys: BatchKeys
    images: torch.Tensor  # being written: [n, *`NativeSegment.shape`]
    native: ffi.Batch
    pid: int
    # Positions of samples that Pillow makes, in order, or None until native code has left them to it.
    fallback: list[int] | None = None
    made: dict[int, Any] = field(default_factory=dict)  # images with labels, and errors
    finished: SimpleQueue[None] = field(default_factory=SimpleQueue)
    dropped: bool = False
    lease: Lease | None = None  # on the files that the samples are read from, if they may go
    submitted_ns: int = field(default_factory=time.perf_counter_ns)  # see `headrace.records.BatchTimes`
    made_ns: int = 0

    def release(self) -> None:
        """Once nobody reads the samples' files any more."""
        if self.lease is not None:
            self.lease.release()


class NativeEngine:
    """Makes batches of `plan` in one epoch, several at a time, by the threads and in the slots of a loader.
    `key` is (seed, epoch) of the samples' random parameters."""

    def __init__(
        self, plan: NativeSegment, key: tuple[int, int], threads: NativeThreads, slots: Slots, meter: Meter
    ) -> None:
        self.plan = plan
        self.key = key
        self.meter = meter
        self.slots = slots
        self.threads = threads
        self._pipeline = lower_pipeline(plan, decoder_bits())
        self._source = plan.source.native()

    def submit(self, batch: IndexBatch) -> PendingBatch:
        """Starts a batch. Raises IndexError if an index is outside the dataset, as that itself would."""
        n = len(self.plan.source)
        order = np.array(batch.indices, dtype=np.int64)
        if ((order < -n) | (order >= n)).any():
            raise IndexError(f"index {order[(order < -n) | (order >= n)][0]} is out of range for {n} samples")
        order[order < 0] += n
        keys = BatchKeys(*self.key, order, batch.occurrences)
        if self._source is not None:
            return self._begin(keys, self._source)
        lease = self._lease(batch, order)
        try:
            pending = self._begin(keys, leased_source(self.plan, order, lease))
        except BaseException:
            lease.release()
            raise
        pending.lease = lease
        return pending

    def _begin(self, keys: BatchKeys, source: ffi.Source) -> PendingBatch:
        images = self._images(len(keys))
        samples, output = (keys.samples, keys.occurrences), images.data_ptr()
        native = self.threads.pool().submit(
            self._pipeline, source, *samples, seed=keys.seed, epoch=keys.epoch, output=output, keep=images
        )
        return PendingBatch(keys, images, native, os.getpid())

    def poll(self, pending: PendingBatch, wait_ms: int = 0) -> bool:
        """Returns whether native code is done with `pending`, for which this waits up to `wait_ms`; what it
        left to Pillow has then been started."""
        if pending.fallback is None and pending.native.wait(wait_ms):
            self._begin_fallback(pending)
        return pending.fallback is not None

    def wait(self, pending: PendingBatch) -> bool:
        """Waits a little; whether all samples of `pending` are made or have failed."""
        if not self.poll(pending, WAIT_SLICE_MS):
            return False
        deadline = time.monotonic() + WAIT_SLICE_MS / 1000
        while len(pending.made) < len(pending.fallback or ()):
            try:
                pending.finished.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return False
        return True

    def unfinished(self, pending: PendingBatch) -> list[int]:
        """Positions of samples that are neither made nor have failed, in order."""
        if pending.fallback is None:
            return list(map(int, pending.native.undecided()))
        return [position for position in pending.fallback if position not in pending.made]

    def pillow_sample(self, key: SampleKey) -> tuple[torch.Tensor, int]:
        """The sample of `key` by Pillow, in this thread, and its label. Raises SampleError."""
        with self.meter.timed("pillow", 1, threads=max(1, self.threads.decode_threads)):
            return make_sample(self.plan, self._pipeline, key)

    def abandon(self, batches: Sequence[PendingBatch]) -> None:
        """Cancels batches nobody wants; returns once no thread writes to their memory, but for threads whose
        reads don't return."""
        mine = [pending for pending in batches if pending.pid == os.getpid()]
        for pending in mine:
            pending.native.cancel()
            pending.dropped = True
        deadline = time.monotonic() + PATIENCE_AT_END
        for pending in mine:
            while not pending.native.wait(WAIT_SLICE_MS):
                if time.monotonic() > deadline:
                    break
            else:
                pending.release()

    def _lease(self, batch: IndexBatch, order: npt.NDArray[np.int64]) -> Lease:
        """The records of `batch`, once they are there. Raises what kept all of them from it."""
        lease = batch.lease if isinstance(batch, LeasedBatch) else None
        if lease is None or lease.pid != os.getpid():
            lease = self.plan.source.lease(order)
            assert lease is not None  # the source is leased
        return lease.arrived()

    # A caller in inference mode now may train with a batch that was started in it.
    @torch.inference_mode(mode=False)
    def _images(self, n: int) -> torch.Tensor:
        plan = self.plan
        nbytes = n * plan.sample_nbytes
        # A batch sampler may give batches of any size.
        fits = nbytes <= self.slots.nbytes
        memory = self.slots.take(nbytes) if fits else torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        flat = memory.view(plan.dtype)
        if plan.layout == "NHWC":
            return flat.view(n, plan.height, plan.width, plan.channels).permute(0, 3, 1, 2)
        return flat.view(n, *plan.shape)

    def _begin_fallback(self, pending: PendingBatch) -> None:
        pending.made_ns = time.perf_counter_ns()
        fallback: list[int] = np.flatnonzero(pending.native.statuses["code"] != abi.OK).tolist()
        tasks: list[Task] = []
        for position in fallback:
            key = pending.keys[position]
            lost = None if pending.lease is None else pending.lease.errors.get(position)
            if lost is None:
                tasks.append(partial(_make, pending, position, partial(self.pillow_sample, key)))
            else:
                error = SampleError.at(key.sample, self.plan.source.path(key.sample), str(lost))
                error.__cause__ = lost
                pending.made[position] = error
        if tasks:
            self.threads.python().add(tasks)
        pending.fallback = fallback  # last: if Ctrl-C comes before, the next call starts them again


def _make(pending: PendingBatch, position: int, make: Callable[[], tuple[torch.Tensor, int]]) -> None:
    """Stands in for an executor, whose threads the interpreter's end would wait for, however long."""
    if pending.dropped:
        return
    try:
        pending.made[position] = make()
    except BaseException as error:
        pending.made[position] = error
    pending.finished.put(None)
