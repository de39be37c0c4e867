"""The code of a worker process: it takes requests, makes batches of the user's dataset and sends them."""

from __future__ import annotations

import os
import pickle
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from headrace import _torch_compat
from headrace._machine import queued_ns
from headrace._native.allocator import keep_freed_memory
from headrace.engine.error_policy import (
    STOPPED,
    ErrorPolicyDataset,
    Request,
    uses_forked_cuda,
    wrote_unfilled,
)
from headrace.engine.iterable import EndOfStream, IterableBatches
from headrace.engine.progress import Cancelled, Progress, ProgressCell
from headrace.engine.seeding import Seeding, seed_worker
from headrace.engine.slots import batch_memory, shares_batches, stacking
from headrace.engine.workers.transport import Channel, Message, Outbox, Segment
from headrace.errors import ConfigError
from headrace.order.batches import IndexBatch
from headrace.order.epoch import StreamState
from headrace.records import DeferralCounts

KEPT_NBYTES = 128 << 20  # of freed memory, for the tensors of the next batch
TRIED_SAMPLES = 64  # of a worker, after which nothing is recorded any more if that was of no use
WATCH_SECONDS = 2.0  # between looks whether the parent lives
NO_PILLOW = (
    "PIL.Image had not been imported when the worker processes started (import it at the top of the program)"
)
INTERRUPTED = 130  # exit code after Ctrl-C, as a shell has it
FORKED_CUDA = (
    "the dataset, a transform or collate_fn uses CUDA in a worker process, which was forked from a process"
    " that uses CUDA already; CUDA can't work there. Return CPU tensors from them, and pass device='cuda' to"
    " headrace.DataLoader, which moves whole batches; or use worker_kind='thread'."
)
UNFILLED = (
    "{error}. If the disk isn't full, the dataset, a transform or collate_fn passed the memory of an image,"
    " array or tensor to the system before its values were read, and the system doesn't wait until they are"
    " made. Pass a copy, as in file.write(array.copy()), or deferred=False to headrace.DataLoader."
)


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """One batch, as a worker is asked for it."""

    number: int  # of the request since the pool was made
    request: Request
    quarantined: Mapping[Any, str] = field(default_factory=dict)  # samples not to be tried
    returned: Sequence[int] = ()  # numbers of segments whose memory may be written again
    retired: Sequence[int] = ()  # and of those whose memory may not

    def __reduce__(self) -> tuple[Any, ...]:
        # Flat and of plain types: pickle would take longer for the objects inside than for a small batch.
        batch, seeding = self.request.batch, self.request.seeding
        indices: Any = batch.indices
        packed = type(indices) is np.ndarray and indices.dtype == np.int64 and indices.ndim == 1
        return _unpacked, (
            packed,
            indices.tobytes() if packed else indices,
            np.asarray(batch.occurrences, np.int64).tobytes(),
            (seeding.key, seeding.base, seeding.by_sample),
            (self.request.samples, self.quarantined, self.returned, self.retired),
            self.number,
        )


def _unpacked(
    packed: bool,
    indices: Any,
    occurrences: bytes,
    seeding: tuple[tuple[int, int], int, bool],
    rest: tuple[int, Mapping[Any, str], Sequence[int], Sequence[int]],
    number: int,
) -> WorkerRequest:
    """Undoes `WorkerRequest.__reduce__`; the arrays can't be written."""
    listed = np.frombuffer(indices, np.int64) if packed else indices
    batch = IndexBatch(listed, np.frombuffer(occurrences, np.int64))
    samples, quarantined, returned, retired = rest
    request = Request(batch, Seeding(*seeding), samples)
    return WorkerRequest(number, request, quarantined, returned, retired)


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The values that a worker process is started with."""

    worker: int  # number of this worker, from 0 on
    workers: int  # number of workers of the pool
    seed: int  # of worker 0; each adds its own number, as in torch
    owner: int  # id of the process that the worker works for
    is_child: bool  # whether that process is its parent; a server that forks may be
    end: socket.socket  # of the connection
    others: Sequence[Channel]  # what a forked process has open of its parent's, and must not keep
    parts: Any  # dataset, collate_fn, worker_init_fn and the guard, by fork; else what loads them
    progress: Progress
    deferred: bool  # whether images are deferred, and torchvision's transforms record what they do
    spare: Sequence[Segment]  # memory for batches, which a forked process has, too
    # From which an `IterableDataset` continues in place of a worker that died, or None for the epoch's start.
    stream: StreamState | None = None


class WorkerTraceback(Exception):  # noqa: N818
    """The traceback of an exception in its worker process: the cause of the exception in this one."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class WorkerFailure:
    """An exception of a worker, on its way."""

    pickled: bytes | None  # or None if it can't be pickled, and is raised as a RuntimeError with `text`
    text: str  # name of its class, and its message
    trace: str  # its traceback, and the worker that it was raised in

    @classmethod
    def of(cls, error: Exception, worker: int) -> WorkerFailure:
        """For an exception that was raised in worker number `worker`."""
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        trace = f"\nin DataLoader worker process {worker}\n{lines}"
        if isinstance(error, StopIteration):
            error = RuntimeError(STOPPED.format("collate_fn"))
        try:
            pickled = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
            sound = type(pickle.loads(pickled)) is type(error)
        except Exception:  # it is sent as text
            sound = False
        return cls(pickled if sound else None, f"{type(error).__name__}: {error}", trace)

    def exception(self) -> Exception:
        """The exception to raise, of its own type if that can be had; its cause is the traceback."""
        try:
            error = RuntimeError(self.text) if self.pickled is None else pickle.loads(self.pickled)
        except Exception as loading:  # its class can't be imported here
            error = RuntimeError(f"{self.text} (it can't be unpickled: {loading})")
        error.__cause__ = WorkerTraceback(self.trace)
        return error


def run(start: WorkerStart) -> None:
    """The target of a worker process."""
    for other in start.others:
        other.abandon()
    try:
        _Worker(start).serve()
    except KeyboardInterrupt:  # Ctrl-C in a terminal is everybody's; the parent says so
        sys.exit(INTERRUPTED)


class _Worker:
    def __init__(self, start: WorkerStart) -> None:
        self._start = start
        self._cell: ProgressCell = start.progress[start.worker]
        self._channel = Channel(start.end)
        self._outbox = Outbox(f"headrace-{start.owner}-{start.worker}", start.spare)
        self._seed: int | None = None
        self._guarded: ErrorPolicyDataset | IterableBatches | None = None
        self._error: Exception | None = None
        self._warm = False  # the first batch includes imports, and files that are opened
        self._deferral_counts: Callable[[], DeferralCounts] | None = None  # of the first batch
        self._stop_useless: Callable[[], None] | None = None  # of what is deferred, after `TRIED_SAMPLES`
        self._samples = 0

    def serve(self) -> None:
        """Until the parent closes its end, or is gone."""
        try:
            self._set_up()
        except Exception as error:
            self._error = error  # of every batch
        while True:
            requests, more = self._channel.receive()
            for request in requests:
                self._answer(request)
            if not more:
                return
            if not requests and not self._wait(select.POLLIN):
                return

    def _set_up(self) -> None:
        start = self._start
        torch.set_num_threads(1)
        keep_freed_memory(KEPT_NBYTES)
        parts = start.parts if isinstance(start.parts, tuple) else start.parts.load()
        dataset, collate, user_init, guard = parts
        seed_worker(start.seed, start.worker)  # now, as torch does: to unpickle a dataset may draw
        self._show_seed(start.seed, dataset)
        functions = _torch_compat.default_collate_functions()
        if torch.Tensor in functions and not _torch_compat.default_collation_changed():
            functions[torch.Tensor] = stacking(functions[torch.Tensor], batch_memory)
        guarded = guard(dataset, shares_batches(collate, self._outbox.take))
        guarded.progress = self._cell
        if start.stream is not None:
            assert isinstance(guarded, IterableBatches)
            guarded.resume(start.stream)
        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(0)  # each worker would use all cores
        try:
            if user_init is not None:
                user_init(start.worker)
        except StopIteration as error:
            raise RuntimeError(STOPPED.format("worker_init_fn")) from error
        # Last, as what user_init replaces is left alone. To import it for nothing would take a while.
        if start.deferred and "PIL.Image" in sys.modules:
            from headrace import deferred

            self._deferral_counts, self._stop_useless = deferred.start_worker()
        elif start.deferred:
            self._deferral_counts = lambda: DeferralCounts(0, 0, problem=NO_PILLOW)
        self._guarded = guarded

    def _show_seed(self, seed: int, dataset: Any) -> None:
        if seed != self._seed:
            self._seed = seed
            start = self._start
            _torch_compat.set_worker_info(start.worker, start.workers, seed + start.worker, dataset)

    def _answer(self, request: WorkerRequest) -> None:
        self._outbox.take_back(request.returned, request.retired)
        if not self._cell.wanted(request.number) and not self._must_follow():
            return
        self._cell.start(request.number)
        start, on_core, queued = time.perf_counter_ns(), time.process_time_ns(), queued_ns()
        try:
            made = self._made(request)
            wanted = self._cell.wanted(request.number)
            collated = time.perf_counter_ns()
            ended_stream = type(made) is EndOfStream
            # This makes what is deferred in the batch.
            packed = self._outbox.pack(request.number, made, ended=ended_stream) if wanted else None
            if self._warm:
                ended = queued_ns()
                self._cell.add_work(
                    time.perf_counter_ns() - start,
                    time.process_time_ns() - on_core,
                    None if queued is None or ended is None else ended - queued,
                )
            self._warm = True
            if packed is not None:
                message, files = packed
                message.made_ns, message.packed_ns = collated - start, time.perf_counter_ns() - collated
                if self._deferral_counts is not None:
                    message.deferral = self._deferral_counts()
                    self._deferral_counts = None
                self._send(message, files)
            self._samples += len(request.request.batch.indices) or 1  # unknown of a stream
            if self._stop_useless is not None and self._samples >= TRIED_SAMPLES:
                self._stop_useless()
                self._stop_useless = None
        except Cancelled:
            pass
        except Exception as error:
            self._send(*self._outbox.pack(request.number, self._failure(error), failed=True))
        self._cell.done()  # not if the process is ending: a sample has called sys.exit()

    def _must_follow(self) -> bool:
        """Returns whether batches are made that nobody wants any more. A dataset's place in its stream and
        its random numbers would else depend on how soon an epoch was broken off; torch makes them, too."""
        return isinstance(self._guarded, IterableBatches) and not self._cell.ending

    def _made(self, request: WorkerRequest) -> Any:
        if self._error is not None:
            raise self._error
        guarded = self._guarded
        assert guarded is not None
        self._show_seed(request.request.seeding.base, guarded.dataset)
        guarded.quarantined = request.quarantined
        return guarded.make(request.request)

    def _failure(self, error: Exception) -> WorkerFailure:
        cause = error
        if uses_forked_cuda(cause):
            error = ConfigError(FORKED_CUDA)
        elif wrote_unfilled(cause):
            error = ConfigError(UNFILLED.format(error=cause))
        if error is not cause:
            error.__cause__ = cause
        return WorkerFailure.of(error, self._start.worker)

    def _send(self, message: Message, files: list[int]) -> None:
        self._channel.send(message, files)
        while self._channel.unsent and self._wait(select.POLLOUT):
            self._channel.flush()

    def _wait(self, event: int) -> bool:
        """Until the socket is ready, or the other end is closed. False: the parent is gone."""
        poll = select.poll()
        poll.register(self._channel.fileno(), event)
        while not poll.poll(1000 * WATCH_SECONDS):
            # A process that the parent has forked may hold the other end open.
            if self._start.is_child and os.getppid() != self._start.owner:
                return False
        return True
