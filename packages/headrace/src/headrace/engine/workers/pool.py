"""Worker processes of one loader, and the batches that they make, in order."""

from __future__ import annotations

import importlib
import os
import select
import socket
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from headrace import _torch_compat
from headrace.config import LoaderConfig
from headrace.engine.error_policy import ErrorPolicyDataset, Request
from headrace.engine.iterable import IterableBatches, ResumableBatch, has_state
from headrace.engine.progress import ALL, Progress
from headrace.engine.seeding import Seeding
from headrace.engine.workers.deaths import STREAM_LOST, Death, Deaths
from headrace.engine.workers.processes import PROCESSES, end_processes
from headrace.engine.workers.start import SharedPickle
from headrace.engine.workers.transport import Channel, Inbox, Message, Segment
from headrace.engine.workers.worker import WorkerRequest, WorkerStart, run
from headrace.order.batches import IndexBatch
from headrace.order.epoch import StreamState, samples_before
from headrace.records import DeferralCounts
from headrace.sources.source import source_of

Guard = Callable[[Any, Callable[[Any], Any]], ErrorPolicyDataset | IterableBatches]

# A worker's end shows at once, except where a process that it forked holds its files: then by asking.
WATCH_SECONDS = 1.0
FOREIGN = (
    "this iterator's worker processes belong to the parent process, from which this one was forked; start"
    " another epoch here with iter(loader)."
)


class _Worker:
    """One worker process, as its parent has it."""

    def __init__(self, number: int, process: Any, channel: Channel, spare: Sequence[Segment]) -> None:
        self.number = number
        self.process = process
        self.channel = channel
        self.inbox = Inbox(spare)
        self.requests: dict[int, Request] = {}  # by number, oldest first: not answered yet
        self.asked_to_end = False
        self.stream_ended = False  # of this epoch


class _Members:
    """The processes and files of a pool. The pool itself may be gone when they are closed."""

    def __init__(self, workers: int) -> None:
        self.pid = os.getpid()
        self.progress = Progress(workers)
        self.workers: list[_Worker] = []
        self.parts: SharedPickle | tuple[Any, ...] = ()
        self.pinning: ThreadPoolExecutor | None = None
        self.spare: list[Segment] = []  # once it is closed

    def close(self) -> None:
        if os.getpid() != self.pid:  # a copy, by fork
            for worker in self.workers:
                if not worker.asked_to_end:
                    worker.channel.abandon()
            return
        for i, worker in enumerate(self.workers):
            self.progress[i].want_from(ALL)
            if not worker.asked_to_end:
                worker.channel.close()
        if self.pinning is not None:
            self.pinning.shutdown(wait=False, cancel_futures=True)
        end_processes([worker.process for worker in self.workers])
        if isinstance(self.parts, SharedPickle):
            self.parts.close()
        else:  # forked workers could be given them
            ended = [worker for worker in self.workers if worker.process.exitcode is not None]
            self.spare = [segment for worker in ended for segment in worker.inbox.unused()]
        self.workers.clear()


class WorkerPool:
    """Worker processes, each with a connection of its own. A worker that dies is replaced, and makes what was
    asked of it again; nothing that it held matters to the others.

    The processes end when the pool is closed or garbage, and when this process ends. In a process that is
    forked from this one, the pool's copy does nothing.

    Args:
        config: what the workers do; kept workers stay with that of their first epoch.
        guard: makes what makes the batches of dataset and collate function, in the worker.
        seeding: of the first epoch; workers are seeded when they start.
        deaths: of workers of this loader; it outlives the pool.
        measured: called for each worker with how the samples of its first batch were made.
        spare: memory for batches that nobody uses.

    Raises:
        ConfigError: something can't be pickled that must be, as workers don't start by fork.
    """

    def __init__(
        self,
        config: LoaderConfig,
        guard: Guard,
        seeding: Seeding,
        deaths: Deaths,
        measured: Callable[[DeferralCounts], None],
        spare: Sequence[Segment] = (),
    ) -> None:
        self.config = config
        self.depth = config.num_workers * (config.prefetch_factor or 1)
        self._measured = measured
        self.batch_nbytes = 0  # of the largest batch that has come
        self.processes: list[Any] = [None] * config.num_workers  # by number, and after their end as well
        self.stream_ends: dict[int, StreamState] = {}  # by worker, if its dataset has ended in this epoch
        self.taken = 0  # batches of this epoch that `next` has given, or raised their error
        self._begun = False  # whether an epoch was started
        # By worker, state of its stream after the last batch that was taken, or None for that of its start.
        # Without one it can't be replaced.
        self._stream_states: dict[int, StreamState | None] = {}
        self._context = config.multiprocessing_context or torch.multiprocessing
        source = source_of(config.dataset)
        if config.multiprocessing_context is None and source is not None and source.leased:
            # Stores can't be used in a process that is forked after they were used.
            self._context = torch.multiprocessing.get_context("forkserver")
        self._method = self._context.get_start_method()
        self._seeding = seeding
        self._samples = 0 if config.streamed else config.samples
        self._numbers = count()
        self._batches: Iterator[IndexBatch] = iter(())
        self._waiting: dict[int, _Worker] = {}  # by number of the request, in order: not given out
        self._arrivals: dict[int, _Arrived] = {}  # in order of arrival
        self.spent = (0, 0)  # `made_ns` and `packed_ns` of the batch that `next` gave last
        self._turn = 0
        self._late_error: Exception | None = None  # of the sampler
        self._lost: Exception | None = None
        self._deaths = deaths
        self._poll = select.poll()
        self._watched: dict[int, _Worker] = {}
        self._members = _Members(config.num_workers)
        self.progress = self._members.progress
        self._close = weakref.finalize(self, self._members.close)
        parts = {
            "dataset": config.dataset,
            "collate_fn": config.collate_fn,
            "worker_init_fn": config.worker_init_fn,
            "guard": guard,
        }
        self._deferred: Any = None  # what is done here once, rather than in every worker
        if config.deferred and self._method == "fork" and "PIL.Image" in sys.modules:
            self._deferred = importlib.import_module("headrace.deferred")
            self._deferred.prepare()
        if config.pin_memory:
            device = torch.accelerator.current_device_index()
            self._members.pinning = ThreadPoolExecutor(1, "headrace-pin", _start_pinning, (device,))
        try:
            forked = self._method == "fork"
            self._members.parts = tuple(parts.values()) if forked else SharedPickle(parts)
            # A process that was forked shares those of its parent, which continues to use them.
            own = [segment for segment in spare if forked and segment.pid == os.getpid()]
            for number in range(config.num_workers):
                self._members.workers.append(self._start(number, own[number :: config.num_workers]))
        except BaseException:
            self._close()
            raise

    # What a stream of batches asks.

    def start_epoch(self, seeding: Seeding, batches: Iterator[IndexBatch], turn: int = 0) -> None:
        """Gives up what is in flight, and asks for `batches`, the first of them by worker number `turn`;
        `seeding` is that of their samples."""
        self.cancel()
        self._seeding = seeding
        self._batches, self._late_error = batches, None
        self._turn = turn
        self._stream_states = dict(self.stream_ends)
        if not self._begun and has_state(self.config.dataset):
            self._stream_states = dict.fromkeys(range(self.config.num_workers))
        self._begun = True
        self.stream_ends = {}
        self.taken = 0
        for worker in self._members.workers:
            worker.stream_ended = False
        self._deaths.start_epoch(self.config.num_workers)
        self.fill()

    def next(self) -> Any:
        """The next batch, as the worker's `ErrorPolicyDataset` made it. Waits for it. Raises what the user's
        code raised for it: the one after it may still be asked for."""
        if os.getpid() != self._members.pid:
            raise RuntimeError(FOREIGN)
        deadline = time.monotonic() + (self.config.timeout or float("inf"))
        while True:
            self._check()
            self.fill()
            number = self._first_arrival()
            if number is not None:
                break
            if not self._waiting:
                if self._late_error is not None:
                    error, self._late_error = self._late_error, None
                    raise error
                raise StopIteration
            if time.monotonic() >= deadline:
                raise RuntimeError(self._timed_out())
            self._receive(min(WATCH_SECONDS, deadline - time.monotonic()))
        self.taken += 1
        worker = self._waiting.pop(number)
        arrived = self._arrivals.pop(number)
        self.spent = arrived.message.made_ns, arrived.message.packed_ns
        self.fill()
        return self._result(arrived, worker)

    def ready(self) -> int:
        """Returns how often `next` would return, or raise, without waiting, as far as that is known."""
        if os.getpid() != self._members.pid or self._lost is not None:
            return 1
        self._receive(0)
        if not self._waiting or self._lost is not None:
            return 1
        if not self.config.in_order:
            return len(self._arrivals)
        ready = 0
        for number in self._waiting:
            if number not in self._arrivals:
                break
            ready += 1
        return ready

    @property
    def in_flight(self) -> int:
        """Batches that are being made, or wait to be taken."""
        return len(self._waiting)

    @property
    def nbytes_in_flight(self) -> int:
        """Memory that they take, those that haven't come being as large as the largest that has."""
        arrivals = list(self._arrivals.values())
        missing = len(self._waiting) - len(arrivals)
        return sum(each.message.nbytes for each in arrivals) + missing * self.batch_nbytes

    def cancel(self) -> None:
        """Gives up what is in flight. A worker ends its batch after the sample that it is making; but if
        samples aren't seeded, it makes all that it was asked for, as in torch: what its generators give next
        must not depend on time."""
        if os.getpid() != self._members.pid or not self._close.alive:
            return
        self._batches = iter(())
        self._late_error = None
        first = next(self._numbers)
        for i, worker in enumerate(self._members.workers):
            if self._seeding.by_sample:
                self.progress[i].want_from(first)
            worker.requests.clear()
        for arrived in self._arrivals.values():
            if arrived.future is None:
                arrived.inbox.discard(arrived.message)
        self._arrivals.clear()
        self._waiting.clear()

    @property
    def usable(self) -> bool:
        """True if another epoch may be asked for, in this process."""
        return self._close.alive and os.getpid() == self._members.pid and self._lost is None

    def close(self) -> list[Segment]:
        """Ends the workers. They finish the sample that they are making. Returns their memory for batches
        that nobody uses."""
        if os.getpid() == self._members.pid:
            self._close()
        return self._members.spare

    def fill(self) -> None:
        """Gives work to the workers, in turn, as far as depth and memory allow."""
        while self._has_room():
            worker = self._next_worker()
            if worker is None:
                self._end_idle()
                return
            try:
                batch = next(self._batches)
            except StopIteration:
                self._end_idle()
                return
            except Exception as error:  # raised where the batch would have come
                self._batches, self._late_error = iter(()), error
                return
            number = next(self._numbers)
            self._turn += 1
            worker.requests[number] = Request(batch, self._seeding, self._samples)
            self._waiting[number] = worker
            self._ask(worker, number)

    # Requests and answers.

    def _result(self, arrived: _Arrived, worker: _Worker) -> Any:
        """A batch that has come from a worker. Raises its error."""
        if not self.config.streamed:
            return arrived.result()
        self._stream_states.pop(worker.number, None)
        batch = arrived.result()
        if isinstance(batch, ResumableBatch):
            self._stream_states[batch.worker] = batch.state
        return batch

    def _next_worker(self) -> _Worker | None:
        """The worker whose turn it is, or that has least to do if the order doesn't matter, or None if the
        streams of all workers have ended."""
        workers, first = self._members.workers, self._turn % self.config.num_workers
        at_work = [each for each in (*workers[first:], *workers[:first]) if not each.stream_ended]
        if not at_work:
            return None
        chosen = at_work[0] if self.config.in_order else min(at_work, key=lambda each: len(each.requests))
        self._turn = workers.index(chosen)
        return chosen

    def _has_room(self) -> bool:
        waiting = len(self._waiting)
        if waiting == 0 or self.batch_nbytes == 0:
            return waiting < self.depth
        return waiting < self.depth and (waiting + 1) * self.batch_nbytes <= self.config.memory_budget

    def _ask(self, worker: _Worker, number: int) -> None:
        request = WorkerRequest(
            number,
            worker.requests[number],
            self._deaths.quarantined,
            *worker.inbox.ended(),
        )
        worker.channel.send(request)
        self._watch(worker)

    def _watch(self, worker: _Worker) -> None:
        events = select.POLLIN | (select.POLLOUT if worker.channel.unsent else 0)
        self._poll.register(worker.channel.fileno(), events)

    def _first_arrival(self) -> int | None:
        if not self._arrivals:
            return None
        first: int = next(iter(self._waiting if self.config.in_order else self._arrivals))
        return first if first in self._arrivals else None

    def _receive(self, seconds: float) -> None:
        """Takes what has come; waits for something up to that long."""
        dead: list[_Worker] = []
        events = self._poll.poll(1000 * max(0.0, seconds))
        for file, event in events:
            worker = self._watched.get(file)
            if worker is None:  # it was let go for what its other file has brought
                continue
            if event & select.POLLOUT and worker.channel.unsent:
                worker.channel.flush()
                self._watch(worker)
            if event & ~select.POLLOUT and not self._take(worker) and worker not in dead:
                dead.append(worker)
        if not events and seconds >= WATCH_SECONDS:
            at_work = (worker for worker in self._members.workers if not worker.asked_to_end)
            dead += [worker for worker in at_work if not worker.process.is_alive()]
        for worker in dead:
            self._replace(worker)

    def _take(self, worker: _Worker) -> bool:
        """Takes what the worker has sent. False: it has ended, without having been let go."""
        messages, more = worker.channel.receive()
        for message in messages:
            worker.inbox.register(message, worker.channel.files(len(message.new)))
            if worker.requests.pop(message.number, None) is None:
                worker.inbox.discard(message)  # nobody waits for it any more
            elif message.ended:
                end = worker.inbox.load(message)
                if end.state is not None:
                    self.stream_ends[end.worker] = end.state
                worker.stream_ended = True
                del self._waiting[message.number]
            else:
                self._arrived(worker, message)
        if worker.stream_ended and not worker.requests and not self.config.persistent_workers:
            self._let_go(worker)
            return True
        return more and (bool(messages) or worker.process.exitcode is None)

    def _arrived(self, worker: _Worker, message: Message) -> None:
        self._deaths.progress()
        if message.deferral is not None:
            self._measured(message.deferral)
            if self._deferred is not None:
                self._deferred.learn(message.deferral)
        if not message.failed:
            self.batch_nbytes = max(self.batch_nbytes, message.nbytes)
        arrived = _Arrived(worker.inbox, message)
        if self._members.pinning is not None and not message.failed:
            arrived.future = self._members.pinning.submit(_pinned, arrived)
        self._arrivals[message.number] = arrived

    def _timed_out(self) -> str:
        pool = self._members
        making = (
            f"worker (pid {each.pid}) is making {each.current_work(None)}"
            for each in (self._death(i, worker) for i, worker in enumerate(pool.workers))
        )
        return f"DataLoader timed out after {self.config.timeout} seconds: {'; '.join(making)}"

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost
        if not self._close.alive:
            raise StopIteration

    # Processes.

    def _start(
        self, number: int, spare: Sequence[Segment] = (), stream: StreamState | None = None
    ) -> _Worker:
        for i, segment in enumerate(spare):
            segment.number = i
        ours, theirs = socket.socketpair()
        with theirs:
            channel = Channel(ours)
            forked = self._method == "fork"
            others = [worker.channel for worker in self._members.workers] if forked else []
            start = WorkerStart(
                worker=number,
                workers=self.config.num_workers,
                seed=self._seeding.base,
                owner=self._members.pid,
                is_child=self._method != "forkserver",
                end=theirs,
                others=[*others, channel] if forked else (),
                parts=self._members.parts,
                progress=self.progress,
                deferred=self.config.deferred,
                spare=spare,
                stream=stream,
            )
            process = PROCESSES[self._method](target=run, args=(start,), daemon=True)
            try:
                process.start()
            except BaseException:
                channel.close()
                raise
        self.processes[number] = process
        worker = _Worker(number, process, channel, spare)
        for file in (channel.fileno(), process.sentinel):
            self._watched[file] = worker
            self._poll.register(file, select.POLLIN)
        return worker

    def _end_idle(self) -> None:
        """At the end of the last epoch, workers that have nothing to do end while others finish theirs."""
        if self.config.persistent_workers:
            return
        for worker in self._members.workers:
            if not worker.requests:
                self._let_go(worker)

    def _let_go(self, worker: _Worker) -> None:
        """Has a worker end that has nothing more to do; as in torch it isn't waited for."""
        if not worker.asked_to_end:
            worker.asked_to_end = True
            self._unwatch(worker)
            worker.channel.close()

    def _unwatch(self, worker: _Worker) -> None:
        for file in (worker.channel.fileno(), worker.process.sentinel):
            self._poll.unregister(file)
            del self._watched[file]

    def _death(self, number: int, worker: _Worker) -> Death:
        """Makes the record of a worker's death, with what it is making, or was when it died."""
        note = self.progress[number].read()
        request = worker.requests.get(note.request)
        return Death(worker.process.pid, worker.process.exitcode, request, note)

    def _replace(self, worker: _Worker) -> None:
        """Another process in place of one that died, or that has closed its end."""
        self._check()
        if not worker.asked_to_end:
            self._take(worker)
        if worker.asked_to_end:  # the last that it has sent is the end of its stream
            return
        number = self._members.workers.index(worker)
        self._unwatch(worker)
        worker.process.join(WATCH_SECONDS)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()
        death = self._death(number, worker)
        worker.channel.close()
        # Not closed directly: while another thread reaps it, its exit code isn't known for a moment.
        end_processes([worker.process])
        try:
            stream = self._stream_state(worker, death) if self.config.streamed else None
            error = self._deaths.add(death, self.config.dataset)
            if self.config.streamed and error is not None:
                what = f"DataLoader worker {death.describe(None)}, for the second time"
                raise RuntimeError(f"{what}, so it isn't replaced. If memory runs out, use fewer workers.")
            self.progress[number].done()
            other = self._start(number, stream=stream)
        except Exception as lost:
            self._lost = lost
            self._members.workers.remove(worker)
            self._close()
            return
        self._members.workers[number] = other
        other.stream_ended = worker.stream_ended
        for missing, request in worker.requests.items():
            if missing == death.note.request and error is not None:
                lost_batch: Future[Any] = Future()
                lost_batch.set_exception(RuntimeError(error))
                nothing = Message(missing, failed=True, pickled=None, places=(), new=(), dropped=())
                self._arrivals[missing] = _Arrived(worker.inbox, nothing, lost_batch)
                continue
            other.requests[missing] = request
            self._waiting[missing] = other
            self._ask(other, missing)

    def _stream_state(self, worker: _Worker, death: Death) -> StreamState | None:
        """The state from which another process continues the stream of a worker that died, or None for the
        epoch's start. Raises RuntimeError if it isn't known."""
        for number, made_by in self._waiting.items():
            arrived = self._arrivals.get(number)
            if made_by.number == worker.number and arrived is not None:
                loaded: Future[Any] = Future()
                try:
                    loaded.set_result(self._result(arrived, worker))
                except Exception as error:
                    loaded.set_exception(error)
                arrived.future = loaded
        states = {**self._stream_states, **self.stream_ends}
        state = states.get(worker.number)
        unknown = worker.number not in states if state is None else samples_before(state[0]) is not None
        if unknown:
            raise RuntimeError(f"DataLoader worker (pid {death.pid}) {death.how}. {STREAM_LOST}")
        return state


@dataclass(eq=False)
class _Arrived:
    """A message that has come from a worker."""

    inbox: Inbox
    message: Message
    future: Future[Any] | None = None  # of what it brings, if that isn't loaded where it is asked for

    def load(self) -> Any:
        value = self.inbox.load(self.message)
        if self.message.failed:
            raise value.exception()
        return value

    def result(self) -> Any:
        return self.load() if self.future is None else self.future.result()


def _start_pinning(device: int) -> None:
    torch.set_num_threads(1)  # of this thread's copies
    torch.accelerator.set_device_index(device)  # each thread has its own


def _pinned(arrived: _Arrived) -> Any:
    return _torch_compat.pin_memory(arrived.load())
