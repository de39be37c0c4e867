"""torch's iterator over worker processes, with knobs that can be turned while it runs."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from itertools import repeat, takewhile
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from headrace.engine.deaths import Death, WorkerDiedError
from headrace.engine.in_worker import Refused, WorkerRequest
from headrace.engine.parcel import Lost, Received
from headrace.engine.receiving import WATCH_SECONDS, Watch, close_once, has_room
from headrace.engine.shared_memory import free_bytes, too_small
from headrace.errors import ConfigError

# A process that was killed is gone at once, unless the kernel is in the middle of something for it.
PATIENCE_SECONDS = 5.0
DYING_SECONDS = 2.0


@dataclass(frozen=True)
class Knobs:
    """What may be changed while an epoch runs.

    Attributes:
        limit: batches in flight at most, 1 or more.
        used: workers that are given work: the first so many.
        budget: bytes that batches in flight may take, once it is known how large they are; one batch always
            may be made.
        in_turn: workers are given work strictly in turn, as by torch, so that what they draw from generators
            of their own repeats; otherwise the one with the least to do is.
    """

    limit: int
    used: int
    budget: int
    in_turn: bool = False


# Iterators whose workers torch isn't to watch: it would raise an error in whatever the main thread is at when
# one dies, even while the others are being started.
_unwatched: set[int] = set()
_watch_by_torch: Callable[[int, tuple[int, ...]], None] = signal_handling._set_worker_pids  # type: ignore[attr-defined]


def _watch_others(iterator: int, pids: tuple[int, ...]) -> None:
    if iterator not in _unwatched:
        _watch_by_torch(iterator, pids)


signal_handling._set_worker_pids = _watch_others  # type: ignore[attr-defined,assignment]


class WorkerIterator(_MultiProcessingDataLoaderIter):
    """Gives the batches of the workers of `loader`, in order, a bounded number of them in flight.

    A batch that doesn't fit in /dev/shm is asked for again when others have been taken from there.

    Once a worker has died, the next batch that would have to be waited for is a `WorkerDiedError`, and the
    iterator is of no more use: the dead may have held a lock that the others need. `pending` says what is to
    be asked of another one.

    Args:
        loader: torch's, of a `WorkerDataset`, with persistent workers; its sampler gives `WorkerRequest`s.
        knobs: as they are at first.

    Attributes:
        knobs: call `fill` after a change.
        batch_nbytes: of the largest batch that has come; 0: none has.
        given: batches, and errors in their place, that were given out in this epoch.
    """

    def __init__(self, loader: DataLoader[Any], knobs: Knobs) -> None:
        self.knobs = knobs
        self.batch_nbytes = 0
        self.given = 0
        self._pid = os.getpid()
        self._watch: Watch | None = None
        self._in_hand = loader.dataset.in_hand  # type: ignore[attr-defined]
        self._shared = 0  # bytes of the largest batch in /dev/shm
        self._last = -1  # worker that was given work last
        self._asked: WorkerRequest | None = None  # by the sampler, last
        self._requests: dict[int, WorkerRequest] = {}  # by number of the batch, until it is given out
        self._refused: set[int] = set()
        self._alone: int | None = None  # sent again while nothing else was being made
        self._trouble: Exception | None = None
        _unwatched.add(id(self))
        try:
            super().__init__(loader)
        finally:
            _unwatched.discard(id(self))

    def __next__(self) -> Any:
        """The next batch; blocks."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this iterator's worker processes belong to the process that was forked; begin another epoch"
                " here with iter(loader)."
            )
        if self._trouble is not None:
            raise self._trouble
        try:
            return super().__next__().data
        finally:
            for given in [number for number in self._requests if number not in self._task_info]:
                del self._requests[given]
                self.given += 1

    @property
    def pending(self) -> list[WorkerRequest]:
        """What was asked for and wasn't given out, in order."""
        return [self._requests[number] for number in sorted(self._task_info)]

    @property
    def in_flight(self) -> int:
        """Batches that are being made, or wait to be taken."""
        return len(self._task_info)

    @property
    def nbytes_in_flight(self) -> int:
        """Memory that they take, those that haven't come being as large as the largest that has."""
        come = [info[1] for info in self._task_info.values() if len(info) == 2]
        known = sum(batch.nbytes for batch in come if isinstance(batch, Received))
        return known + (len(self._task_info) - len(come)) * self.batch_nbytes

    def ready(self) -> int:
        """How often `next` would return, or raise, without waiting, as far as that is known."""
        if os.getpid() != self._pid:
            return 1  # it raises; what is in the pipe is the parent's
        if not self._in_order:
            return int(not self._task_info or not self._data_queue.empty())
        self._take_what_has_come()
        if self._trouble is not None or not self._task_info:
            return 1
        come = (len(self._task_info[number]) == 2 for number in range(self._rcvd_idx, self._send_idx))
        return sum(1 for _ in takewhile(bool, come))

    def begin(self, loader: DataLoader[Any]) -> None:
        """Begins another epoch; workers first finish what they were at."""
        timeout, self._timeout = self._timeout, 0  # not for batches that nobody waits for
        self.given = 0
        self._reset(loader)
        self._timeout = timeout

    def end(self) -> None:
        """Gives up the batches in flight."""
        if os.getpid() != self._pid or self._shutdown:
            return
        self._sampler_iter = iter(())
        self._task_info.clear()
        self._requests.clear()
        self._refused.clear()
        self._alone = None
        for waiting in self._index_queues:
            with suppress(queue.Empty, OSError):  # closed where Python is ending
                while True:
                    waiting.get_nowait()

    @property
    def ended(self) -> bool:
        """Whether nothing can come any more: the workers were ended."""
        return self._shutdown

    def usable(self) -> bool:
        """Whether all workers live, and are of this process."""
        return (
            os.getpid() == self._pid
            and not self._shutdown
            and self._trouble is None
            and all(worker.is_alive() for worker in self._workers)
        )

    def shut_down(self) -> None:
        """Ends the workers; they finish what they are at."""
        self._shutdown_workers()

    def kill(self) -> None:
        """Ends the workers at once. For those that may wait for a lock that a dead one held: torch's own way
        would wait for it, too."""
        if os.getpid() != self._pid or self._shutdown:
            return
        self._shutdown = True
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join(PATIENCE_SECONDS)
        results: Any = self._worker_result_queue
        results._writer.close()  # nobody else has it open: whoever waits for more sees the end
        if self._pin_memory:
            self._pin_memory_thread_done_event.set()
            self._pin_memory_thread.join(PATIENCE_SECONDS)
        for waiting in self._index_queues:
            closing: Any = waiting
            closing._reader.close()  # a thread that waits for room in the pipe sees the end, too
            closing.close()

    def fill(self) -> None:
        """Gives work to the workers as far as limit and memory allow."""
        while os.getpid() == self._pid and self._has_room():
            before = self._send_idx
            # torch goes through workers in turn, and asserts that this times their number isn't exceeded.
            self._worker_queue_idx_cycle: Any = repeat(self._least_busy())
            self._prefetch_factor = self.knobs.limit
            super()._try_put_index()
            if self._send_idx == before:
                return
            assert self._asked is not None
            self._requests[before] = self._asked
            self._last = self._task_info[before][0]

    # What torch calls.

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        if first_iter:
            self._worker_pids_set = False
            results: Any = self._worker_result_queue
            self._watch = Watch(self._workers, results._reader)
            results._reader._recv = self._watch.receive
            asking: Any
            for asking in self._index_queues:
                asking._ignore_epipe = True  # the end of a worker is seen elsewhere
                # `kill` and the queue's own thread, which cyclic garbage ends first, may close it at a time.
                close_once(asking._reader)
        super()._reset(loader, first_iter)

    def _try_put_index(self) -> None:
        self.fill()

    def _next_index(self) -> Any:
        self._asked = super()._next_index()  # type: ignore[no-untyped-call]
        return self._asked

    def _get_data(self) -> Any:
        while True:
            if self._refused and len(self._refused) == self._tasks_outstanding:
                self._ask_again()
            number, data = self._receive()
            if isinstance(data, Lost):
                raise self._why(data.error) from data.error
            if not isinstance(data, Refused) or number not in self._task_info:
                return number, self._noted(number, data)
            final = self._refuse(number, data)
            if final is not None:
                return number, final

    def _receive(self) -> tuple[Any, Any]:
        """The next message of a worker; blocks, but not where it won't come."""
        deadline = time.monotonic() + self._timeout if self._timeout > 0 else float("inf")
        watch, came = self._watch, True
        assert watch is not None
        while True:
            left = min(WATCH_SECONDS, max(0.0, deadline - time.monotonic()))
            if not self._pin_memory:
                watch.wait(left)
            if watch.ended(ask=not came):
                raise WorkerDiedError(self._deaths())
            try:
                came, data = self._try_get_data(left if self._pin_memory else 0)  # type: ignore[no-untyped-call]
            except Exception as error:
                raise self._why(error) from error
            if came:
                return data  # type: ignore[no-any-return]
            if self._pin_memory and not self._pin_memory_thread.is_alive():
                raise RuntimeError("the thread that pins batches has ended; an error of it was printed.")
            if time.monotonic() >= deadline:
                at = (f"worker (pid {one.pid}) has {one.in_hand(None)} in hand" for one in self._at())
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds: {'; '.join(at)}")

    def _shutdown_workers(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child would end its parent's workers
        if not self._shutdown and not (
            all(worker.is_alive() for worker in self._workers) and self._tell_workers()
        ):
            self.kill()
            return
        super()._shutdown_workers()

    def _tell_workers(self) -> bool:
        """Writes the end to the workers' pipes at once. torch leaves that to a queue's thread, which cyclic
        garbage may have closed before: then each worker would be waited for in vain, for five seconds, and
        ended by a signal, by whichever thread the collector runs in. False: the pipes themselves are closed.
        """
        self._workers_done_event.set()
        for waiting in self._index_queues:
            queue_: Any = waiting
            if queue_._writer.closed:
                return False
            with suppress(OSError, ValueError):
                # Not in the middle of what its thread writes, and not where that would have to wait.
                if queue_._wlock.acquire(False):
                    try:
                        # The semaphore as put() does it, for get() to release.
                        if has_room(queue_._writer) and queue_._sem.acquire(False):
                            queue_._writer.send_bytes(ForkingPickler.dumps(None))
                    finally:
                        queue_._wlock.release()
        return True

    def _has_room(self) -> bool:
        waiting = len(self._task_info)
        if waiting == 0 or self.batch_nbytes == 0:
            return waiting < self.knobs.limit
        if (
            self._refused
            or waiting >= self.knobs.limit
            or (waiting + 1) * self.batch_nbytes > self.knobs.budget
        ):
            return False
        return self._shared == 0 or (self._tasks_outstanding + 1) * self._shared <= free_bytes()

    def _least_busy(self) -> int:
        busy = [0] * self.knobs.used
        for number, info in self._task_info.items():
            if len(info) == 1 and info[0] < self.knobs.used and number not in self._refused:
                busy[info[0]] += 1
        return min(
            range(self.knobs.used),
            key=lambda worker: (
                0 if self.knobs.in_turn else busy[worker],
                (worker - self._last - 1) % self.knobs.used,
            ),
        )

    def _take_what_has_come(self) -> None:
        while self._trouble is None and self._tasks_outstanding > 0:
            try:
                number, data = self._data_queue.get_nowait()
            except queue.Empty:
                break
            except Exception as error:
                self._trouble = self._why(error)
                return
            if isinstance(data, Lost):
                self._trouble = self._why(data.error)
                return
            final: Any = data
            if isinstance(data, Refused):
                final = self._refuse(number, data)
            if final is not None:
                self._tasks_outstanding -= 1
                self._task_info[number] += (self._noted(number, final),)
        if self._refused and len(self._refused) == self._tasks_outstanding:
            self._ask_again()

    def _why(self, error: Exception) -> Exception:
        """What to raise where a batch can't be received: mostly as its worker died while it sent it."""
        assert self._watch is not None
        deadline = time.monotonic() + DYING_SECONDS  # its files are closed a moment before it counts as dead
        while not self._watch.ended(ask=True):
            if time.monotonic() > deadline:
                return error
            time.sleep(0.01)
        return WorkerDiedError(self._deaths())

    def _deaths(self) -> list[Death]:
        dead = set()
        for worker in self._workers:
            if wait([worker.sentinel], 0):
                worker.join(WATCH_SECONDS)
                dead.add(worker.pid)
            elif not worker.is_alive():
                dead.add(worker.pid)
        return [one for one in self._at() if one.pid in dead]

    def _at(self) -> list[Death]:
        """What each worker is at, or was when it died."""
        asked = {request.number: request for request in self._requests.values()}
        notes = [self._in_hand.read(number) for number in range(len(self._workers))]
        return [
            Death(worker.pid or 0, worker.exitcode, asked.get(note.request), note)
            for worker, note in zip(self._workers, notes, strict=True)
        ]

    def _noted(self, number: Any, data: Any) -> Any:
        if isinstance(data, Received):
            self.batch_nbytes = max(self.batch_nbytes, data.nbytes)
            self._shared = max(self._shared, data.shared)
        if number == self._alone:
            self._alone = None
        return data

    def _refuse(self, number: int, refused: Refused) -> Any:
        """Remembers a batch that found no room; what to give instead if it had all there is."""
        self._shared = max(self._shared, refused.needed)
        self.batch_nbytes = max(self.batch_nbytes, refused.needed)
        if number == self._alone:
            return _Final(ConfigError(too_small(refused.needed)))
        self._refused.add(number)
        return None

    def _ask_again(self) -> None:
        """Only refused batches are missing: what has come makes room for them."""
        if not self._pin_memory:
            for number, info in self._task_info.items():
                if len(info) == 2 and isinstance(info[1], Received):
                    self._task_info[number] = (info[0], deepcopy(info[1]))
        fit = max(1, free_bytes() // max(1, self._shared)) if self._shared else 1
        chosen = sorted(self._refused)[:fit]
        self._alone = chosen[0] if len(chosen) == 1 else None
        for number in chosen:
            self._refused.discard(number)
            worker = self._task_info[number][0]
            self._index_queues[worker].put((number, self._requests[number]))


class _Final(ExceptionWrapper):
    """An error of this process in place of a batch."""

    def __init__(self, error: Exception) -> None:
        super().__init__((type(error), error, None))  # type: ignore[no-untyped-call]
        self._error = error

    def reraise(self) -> None:
        """Raises it as it is, not as one of a worker."""
        raise self._error
