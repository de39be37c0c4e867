"""The counters on the Python side of a loader; native code counts for itself."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.engine.tally import Histogram
from headrace.errors import ConfigError
from headrace.records import (
    BatchTimes,
    EpochStats,
    NativeStats,
    QueueFill,
    SampleFailure,
    StageStats,
    TraceEvent,
)

log = logging.getLogger("headrace")

KEPT_EPOCHS = 32
# The latest are kept: about 50 MB, and a file of up to 130 MB.
MAX_EVENTS = 100_000


class Meter:
    """Counts since the loader was made. Any thread may add to them and read them."""

    # Of all meters. Reentrant: an epoch may end inside a garbage collection, in a thread that holds it.
    lock = threading.RLock()

    def __init__(self) -> None:
        self.batches = 0  # that the user received
        self.samples = 0
        self.startup_seconds = 0.0  # waited for the first batches of epochs
        self.ended_waits = Histogram()  # of steps of epochs that have ended
        self.epochs_begun = 0
        self.recorder: Recorder | None = None  # of a trace
        # Of pools of native threads, the one in use first. Not kept: threads end with their loader.
        self._native: tuple[weakref.WeakMethod[Callable[[], NativeStats | None]], ...] = ()
        self._added: dict[str, StageStats] = {}
        self._epochs: deque[EpochMeter] = deque(maxlen=KEPT_EPOCHS)

    def begin_epoch(self, number: int) -> EpochMeter:
        """The meter of the batches of epoch `number`. To be called before its first batch is started."""
        with self.lock:
            self.epochs_begun += 1
            epoch = EpochMeter(self, number)
            self._epochs.append(epoch)
            return epoch

    def count_native(self, stats: Callable[[], NativeStats | None]) -> None:
        """From now on a pool of native threads is in use whose totals the bound method `stats` gives."""
        method = weakref.WeakMethod(stats)
        self._native = (method, *(each for each in self._native if each != method))

    def native(self) -> NativeStats | None:
        """Totals of all native threads, and the numbers of those in use, or None if none were started."""
        methods = [method for each in self._native if (method := each()) is not None]
        totals = [stats for method in methods if (stats := method()) is not None]
        return sum(totals[1:], totals[0]) if totals else None

    @property
    def waits(self) -> Histogram:
        """Waits of all steps but the first ones of epochs, in seconds."""
        waits = Histogram()
        with self.lock:
            waits.merge(self.ended_waits)
            for epoch in self._epochs:
                if epoch.running:
                    waits.merge(epoch.waits)
        return waits

    def add(self, stage: str, samples: int, seconds: float, *, nbytes: int = 0, threads: int = 1) -> None:
        """`samples` went through `stage`, which took a thread `seconds`. See `StageStats`."""
        with self.lock:
            old = self._added.get(stage)
            if old is not None:
                samples, seconds, nbytes = samples + old.samples, seconds + old.seconds, nbytes + old.bytes
            self._added[stage] = StageStats(stage, samples, seconds, nbytes, threads)

    @contextmanager
    def timed(self, stage: str, samples: int, *, threads: int = 1) -> Iterator[None]:
        """Adds what happens inside to `stage`, and to what is traced."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            end = time.perf_counter_ns()
            self.add(stage, samples, (end - start) / 1e9, threads=threads)
            if self.recorder is not None:
                self.recorder.add(stage, start, end)

    def stages(self) -> tuple[StageStats, ...]:
        """Costs so far, native stages first."""
        if not (self._native or self._added):  # as in a loader of Python's samples, whose every epoch asks
            return ()
        native = self.native()
        with self.lock:
            added = tuple(self._added.values())
        return added if native is None else (*_native_stages(native), *added)

    def epochs(self) -> tuple[EpochStats, ...]:
        """Statistics of the epochs started last, oldest first."""
        now = self.stages()
        with self.lock:
            return tuple(epoch.stats(now) for epoch in self._epochs)

    @contextmanager
    def recording(self) -> Iterator[Recorder]:
        """Records what happens inside. Raises ConfigError if another trace is being recorded."""
        with self.lock:
            if self.recorder is not None:
                raise ConfigError("This loader is being traced already: end that trace first.")
            self.recorder = recorder = Recorder()
        try:
            yield recorder
        finally:
            self.recorder = None


def _renew_lock() -> None:
    # Another thread of the parent (a reader of stats, a Pillow thread) may hold it, and isn't in the child.
    Meter.lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class EpochMeter:
    """One epoch's counts. Made by `Meter.begin_epoch`; `received` and `end` are for the epoch's iterator."""

    waits = Histogram()  # of all steps but the first, in seconds; an epoch with such a step has its own
    _depth = 0
    _batches = 0
    _samples = 0
    _startup_seconds = 0.0
    _ready = _in_flight = 0  # sums over the steps
    # Costs of the loader's stages when the epoch ended, and how it did, or None before.
    _ended: tuple[tuple[StageStats, ...], str] | None = None

    def __init__(self, meter: Meter, number: int) -> None:
        self._meter: Meter | None = meter  # None after the end: the meter has this one, and is to die with it
        self._iterator = meter.epochs_begun
        self._number = number
        self._before = meter.stages()
        self._begun = self._last = time.perf_counter()

    def received(
        self,
        samples: int,
        asked: float,
        in_flight: int = 0,
        ready: int = 0,
        depth: int = 0,
        number: int = 0,
        times: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """One batch is handed to the user.

        Args:
            asked: `time.perf_counter()` when the user called next() for it.
            in_flight, ready, depth: see `headrace.records.QueueFill`.
            number, times: for a trace; see `headrace.records.BatchTimes`.
        """
        meter, now = self._meter, time.perf_counter()
        if meter is None:
            return
        waited = now - asked
        with meter.lock:
            self._batches += 1
            self._samples += samples
            self._last = now
            meter.batches += 1
            meter.samples += samples
            if self._batches > 1:
                if self._batches == 2:
                    self.waits = Histogram()
                self.waits.add(waited)
            else:
                self._startup_seconds = now - self._begun
                meter.startup_seconds += self._startup_seconds
            if depth:
                self._depth = depth
                self._ready += ready
                self._in_flight += in_flight
        recorder = meter.recorder
        if recorder is not None:
            batch = BatchTimes(self._number, self._iterator, number or self._batches, samples, *times)
            recorder.add("wait", int(1e9 * asked), int(1e9 * now), batch, (ready, in_flight))

    def add_copies(self, samples: int, nbytes: int, seconds: float) -> None:
        """Bytes were sent to the device; copies that took the device `seconds` are over."""
        if self._meter is not None:
            self._meter.add("transfer", samples, seconds, nbytes=nbytes)

    def end(self, *, finished: bool) -> None:
        """No more batches come; `finished`: as all of them came. Does nothing the second time."""
        meter, self._meter = self._meter, None
        if meter is None:
            return
        now, after = time.perf_counter(), meter.stages()
        with meter.lock:
            if finished:
                self._last = now
            if self._batches > 1:
                meter.ended_waits.merge(self.waits)
            self._ended = after, "finished" if finished else "stopped"

    def stats(self, now: tuple[StageStats, ...]) -> EpochStats:
        """So far; `now`: the loader's stages so far. The caller holds the meter's lock."""
        stages, state = self._ended or (now, "running")
        waits, steps = self.waits, max(1, self._batches)
        return EpochStats(
            number=self._number,
            state=state,
            batches=self._batches,
            samples=self._samples,
            seconds=self._last - self._begun,
            startup_seconds=self._startup_seconds,
            stall_seconds=waits.total,
            stall_median_seconds=waits.quantile(0.5),
            stall_p95_seconds=waits.quantile(0.95),
            stall_max_seconds=waits.largest,
            stages=_since(self._before, stages),
            queue=QueueFill(self._depth, self._ready / steps, self._in_flight / steps),
        )

    @property
    def running(self) -> bool:
        """True if more batches may come."""
        return self._ended is None


def _native_stages(native: NativeStats) -> tuple[StageStats, ...]:
    sizes = {"read": native.bytes_read, "decode": 3 * native.pixels_decoded}
    decoding = max(1, native.decode_threads)
    threads = {"read": native.read_threads or decoding}
    return tuple(
        StageStats(name, native.samples, nanoseconds / 1e9, sizes.get(name, 0), threads.get(name, decoding))
        for name, nanoseconds in native.nanoseconds.items()
    )


def _since(before: tuple[StageStats, ...], now: tuple[StageStats, ...]) -> tuple[StageStats, ...]:
    old = {stage.name: stage for stage in before}
    return tuple(_difference(stage, old.get(stage.name)) for stage in now)


def _difference(now: StageStats, before: StageStats | None) -> StageStats:
    if before is None or now.samples < before.samples:  # a forked child's threads count from 0
        return now
    samples, seconds = now.samples - before.samples, now.seconds - before.seconds
    return StageStats(now.name, samples, max(0.0, seconds), max(0, now.bytes - before.bytes), now.threads)


@dataclass
class Failures:
    """Every sample that was skipped or replaced, oldest first; each is logged the first time."""

    records: list[SampleFailure] = field(default_factory=list)
    _logged: set[str] = field(default_factory=set)

    def add(self, failure: SampleFailure) -> None:
        """Appends a failure, and logs it if its sample hasn't failed before."""
        self.records.append(failure)
        index = str(failure.index)  # of a sampler's own, which may be a list
        if index not in self._logged:
            self._logged.add(index)
            place = f" ({failure.path})" if failure.path else ""
            log.warning("sample %s%s %s: %s", index, place, failure.action, failure.cause)


class Recorder:
    """A ring of events. Any thread may add to it."""

    def __init__(self) -> None:
        self.events: deque[TraceEvent] = deque(maxlen=MAX_EVENTS)  # the latest, in the order of their ends
        self.threads: dict[int, str] = {}  # names, by the threads' numbers as the system knows them

    def add(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        batch: BatchTimes | None = None,
        queue: tuple[int, int] = (0, 0),
    ) -> None:
        """See `TraceEvent`; the thread is the one that calls."""
        thread = threading.get_native_id()
        if thread not in self.threads:
            self.threads[thread] = threading.current_thread().name
        self.events.append(TraceEvent(name, thread, start_ns, end_ns, batch, queue))
