"""A thread that looks, 100 times a second, at what the other threads of its process are at.

It writes what it counted, every half second and whenever the phase changes, as a line of JSON to the end of a
file: the last line of a (pid, phase) holds all of that phase. `read_counts` reads such files.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.measure.fetch_times import FetchTimes, note_into
from headrace.measure.stacks import Stacks, name_of_thread
from headrace.measure.stages import Stage
from headrace.measure.thread_state import Schedule, ThreadState, count_running, run_delays

INTERVAL_SECONDS = 0.01
# A look costs its process up to half a millisecond: for the GIL, for cold caches. While a training step is
# timed, there are so many times fewer of them; the loader alone may be disturbed a little.
TIMED_PHASES = ("warm-up", "actual", "demand")
FEWER = 10
NOTICE_SECONDS = 0.1  # at most, until a new phase is seen to have begun
WRITE_SECONDS = 0.5
MOST_LINES = 20
LATE_SECONDS = 0.001
# Where the main thread counts by itself what it computes, looks only tell what it is blocked in.
SELDOM = 4


@dataclass
class Counts:
    """What was counted in one phase; `to_json` describes it.

    Attributes:
        stages: thread kind → stage → [looks, of these blocked, seconds, of these blocked]. A look stands for
            the seconds since the one before: looks come late while the GIL is held, so that seconds,
            not looks, are shares of time.
        ticks: (thread kind, stage) → [times that the main thread was interrupted there, periods of the timer
            that these stand for]: `computed_seconds` of the main thread are shared out by these periods.
    """

    phase: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    own_cpu_seconds: float = 0.0
    run_delay_seconds: float = 0.0
    rounds: int = 0
    late_seconds: float = 0.0
    late_over_1ms: int = 0
    late_run_delay_seconds: float = 0.0
    running_sum: int = 0
    running_rounds: int = 0
    wanting_sum: int = 0
    stages: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    computed_seconds: float = 0.0
    ticks: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    fetches: FetchTimes = field(default_factory=FetchTimes)

    def add(self, stage: Stage, seconds: float) -> None:
        """Counts one look at one thread."""
        row = self.stages.setdefault(stage.kind, {}).setdefault(stage.key, [0, 0, 0.0, 0.0])
        row[0] += 1
        row[2] += seconds
        if stage.waiting:
            row[1] += 1
            row[3] += seconds

    def add_tick(self, stage: Stage, periods: int) -> None:
        """Counts one interruption of the main thread. Apart from `add`, which another thread calls."""
        row = self.ticks.setdefault((stage.kind, stage.key), [0, 0])
        row[0] += 1
        row[1] += periods

    def add_line(self, line: str) -> None:
        """Counts where in the user's code the main thread was; "": nowhere."""
        if line:
            self.lines[line] = self.lines.get(line, 0) + 1

    def rows(self) -> dict[str, dict[str, list[float]]]:
        """`stages` and `ticks` together."""
        rows = {kind: {key: list(row) for key, row in keys.items()} for kind, keys in self.stages.items()}
        ticks = list(self.ticks.items())
        period = self.computed_seconds / max(1, sum(row[1] for _, row in ticks))
        for (kind, key), (count, periods) in ticks:
            row = rows.setdefault(kind, {}).setdefault(key, [0, 0, 0.0, 0.0])
            row[0] += count
            row[2] += periods * period
        return rows

    def to_json(self, role: str) -> dict[str, Any]:
        """One line of the file.

        Returns:
            "pid", "role", "phase"; "seconds" sampled; "cpu_seconds" of the process, and of these
            "own_cpu_seconds" of the sampler; "run_delay_seconds" that its threads, the sampler left out,
            waited for a core, summed over them; "rounds": looks; "late": {"seconds" that the sampler
            woke too late, "over_1ms": how often, "run_delay_seconds": as far as no core was free: the
            rest is the GIL's}; "threads_running": mean number of the system's threads on a core or
            waiting for one; "threads_wanting_gil": mean number of Python threads that hold or want the
            GIL (of threads in C code that has released it, some are counted too); "stages": {thread
            kind: {stage: [looks, looks blocked, seconds, seconds blocked]}}; "lines": {"file.py:41
            function": looks}: the main thread's innermost line of the user's; "samples" and "batches":
            as of `FetchTimes`.
        """
        top = sorted(dict(self.lines).items(), key=lambda item: -item[1])[:MOST_LINES]
        return {
            "pid": os.getpid(),
            "role": role,
            "phase": self.phase,
            "seconds": round(self.seconds, 6),
            "cpu_seconds": round(self.cpu_seconds, 6),
            "own_cpu_seconds": round(self.own_cpu_seconds, 6),
            "run_delay_seconds": round(self.run_delay_seconds, 6),
            "rounds": self.rounds,
            "late": {
                "seconds": round(self.late_seconds, 6),
                "over_1ms": self.late_over_1ms,
                "run_delay_seconds": round(self.late_run_delay_seconds, 6),
            },
            "threads_running": round(self.running_sum / max(1, self.running_rounds), 4),
            "threads_wanting_gil": round(self.wanting_sum / max(1, self.rounds), 4),
            "stages": {
                kind: {key: [row[0], row[1], round(row[2], 6), round(row[3], 6)] for key, row in rows.items()}
                for kind, rows in self.rows().items()
            },
            "lines": dict(top),
            **self.fetches.to_json(),
        }


class Sampler:
    """Samples this process's threads, itself left out.

    Args:
        path: of the file that lines are added to.
        role: of this process, written on each line: "main", "worker".
        interval_seconds: between looks, on average; they come at random moments, so as not to keep time with
            a loop of the user's. `FEWER` times as long in `TIMED_PHASES`.
        phase_file: a file with the phase's name, read whenever it is replaced; None: `phase` alone says it.
    """

    def __init__(
        self,
        path: Path,
        role: str,
        interval_seconds: float = INTERVAL_SECONDS,
        phase_file: Path | None = None,
    ) -> None:
        self._path = path
        self._role = role
        self._most_often = self._interval = interval_seconds
        self._phase_file = phase_file
        self._phase_sign: tuple[int, int] | None = None
        self._asked = ""
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._phases: dict[str, Counts] = {}
        self._stacks = Stacks()
        self._known: dict[int, _Known] = {}
        self._ticking = False
        self._tick_origin, self._periods = 0.0, 0
        self._blocked = 0.0

    def start(self) -> None:
        """Starts the thread. Once."""
        self._read_phase()
        self._begin(self._asked)
        self._thread = threading.Thread(target=self._run, name="headrace-sampler", daemon=True)
        self._thread.start()

    def phase(self, name: str) -> None:
        """Counts under another name from the next look on; on a known name, adds to what was counted."""
        self._asked = name

    def stop(self) -> None:
        """Ends the thread; all that was counted is in the file then. Does nothing in a forked child."""
        thread, self._thread = self._thread, None
        self._stopping = True
        if self._ticking:
            # The handler stays: without one, a last signal would end the process.
            signal.setitimer(signal.ITIMER_PROF, 0)
        if thread is not None and thread.is_alive():
            thread.join()

    def tick(self) -> None:
        """From now on, what the main thread computes is counted by itself: as this process makes samples.

        A thread that comes by sees the main thread where it lets go of the GIL or of the core, rather than
        where it spends its time. A timer of the process's computing time (SIGPROF) interrupts it anywhere.
        Does nothing if another thread calls, if the script uses SIGPROF itself, or if this was done before.
        """
        handler = signal.getsignal(signal.SIGPROF)
        ours = isinstance(getattr(handler, "__self__", None), Sampler)  # of this process or of its parent
        main = threading.current_thread() is threading.main_thread()
        if self._ticking or not main or not (ours or handler == signal.SIG_DFL):
            return
        self._computed = time.thread_time()
        signal.signal(signal.SIGPROF, self._tick)
        signal.siginterrupt(signal.SIGPROF, False)  # no system call of the user's fails for it
        self._set_timer()
        self._ticking = True

    def _tick(self, _: int, frame: FrameType | None) -> None:
        """Runs in the main thread, between two instructions of Python; after a call into C, not within."""
        # One that comes late, after C, stands for those that the call has swallowed, and for no more: the
        # time since the one before would be too much for it, and too little for the one after.
        periods = int((time.process_time() - self._tick_origin) / self._interval)
        passed, self._periods = periods - self._periods, periods
        computed = time.thread_time()
        counts = self._counts
        counts.computed_seconds += computed - self._computed
        self._computed = computed
        if frame is not None and passed and not self._stopping:
            stage, line = self._stacks.stage(frame, "running", "")
            if stage is not None:
                counts.add_tick(stage, passed)
                counts.add_line(line)

    def _run(self) -> None:
        jitter = random.Random()  # not the user's random numbers
        self._tid = threading.get_native_id()
        self._own = Schedule(self._tid)
        self._main = Schedule(threading.main_thread().native_id or self._tid)
        self._main_used = self._main.used()
        self._mark = self._marks()
        written = last = time.perf_counter()
        self._count_at = last
        delay = self._own.delay()
        try:
            while not self._stopping:
                pause = self._interval * (SELDOM if self._ticking else 1) * (0.5 + jitter.random())
                due = time.perf_counter() + pause
                late = self._rest(due)
                now = time.perf_counter()
                waited = self._own.delay() if late > LATE_SECONDS else delay
                with _no_collection():
                    self._look(now - last, late, min(waited - delay, late))
                last, delay = now, waited
                if self._asked != self._counts.phase or now - written > WRITE_SECONDS:
                    ending, written = self._counts, now
                    # First, or what other threads count while the line is written would be lost.
                    if self._asked != ending.phase:
                        self._begin(self._asked)
                    self._write(ending)
            self._write(self._counts)
        finally:
            note_into(None)
            self._own.close()
            self._main.close()
            for known in self._known.values():
                known.state.close()

    def _rest(self, due: float) -> float:
        """Sleeps until then, or until another phase begins.

        Returns:
            Seconds that it woke up late.
        """
        while (left := due - time.perf_counter()) > 0:
            time.sleep(min(left, NOTICE_SECONDS))
            self._read_phase()
            if self._asked != self._counts.phase or self._stopping:
                return 0.0
        return -left

    def _look(self, seconds: float, late: float, late_run_delay: float) -> None:
        counts = self._counts
        main = threading.main_thread().ident
        if main in self._known:  # first of all, while it is still what it was at the moment of waking up
            self._known[main].blocked = self._known[main].state.look()
        frames = sys._current_frames()
        counts.seconds += seconds
        counts.rounds += 1
        counts.late_seconds += late
        counts.late_over_1ms += late > LATE_SECONDS
        counts.late_run_delay_seconds += late_run_delay
        if frames.keys() != self._known.keys():
            self._meet(frames)
        wanting = 0
        for ident, innermost in frames.items():
            known = self._known.get(ident)
            if known is None or known.native_id == self._tid:
                continue
            if ident == main and self._ticking:
                wanting += self._look_if_blocked(known, innermost, seconds)
                continue
            stage, line = known.stage(innermost, self._stacks, fresh=ident != main)
            if stage is not None:
                counts.add(stage, seconds)
                wanting += not stage.waiting and known.blocked in ("running", "futex", "blocked")
            if ident == main:
                counts.add_line(line)
        # Had nobody held the GIL, this thread wouldn't be late: nobody wanted it.
        if late - late_run_delay >= LATE_SECONDS:
            counts.wanting_sum += max(1, wanting)
        self._count_running(counts)

    def _look_if_blocked(self, main: _Known, innermost: FrameType, seconds: float) -> bool:
        """Counts what the main thread hasn't computed, nor waited for a core, where it is seen blocked.

        Returns:
            It isn't blocked.
        """
        used = self._main.used()
        self._blocked += seconds - (used - self._main_used)
        self._main_used = used
        if main.blocked == "running":
            return True
        stage, line = main.stage(innermost, self._stacks, fresh=False)
        if stage is None or not stage.waiting:
            return True
        if self._blocked > 0:
            self._counts.add(stage, self._blocked)
            self._counts.add_line(line)
            self._blocked = 0.0
        return False

    def _meet(self, frames: dict[int, FrameType]) -> None:
        """Takes up threads that are new, and drops those that have ended.

        A thread that is just starting runs Python before `threading` knows its ids: left for the next look.
        """
        for ident in self._known.keys() - frames.keys():
            self._known.pop(ident).state.close()
        threads = threading.enumerate()
        starting = any(thread.native_id is None for thread in threads)
        by_ident = {thread.ident: thread for thread in threads}
        main = threading.main_thread()
        for ident in frames.keys() - self._known.keys():
            thread = by_ident.get(ident)
            if thread is None and not starting:
                self._known[ident] = _Known("native", -1)
            elif thread is not None and thread.native_id is not None:
                name = "" if thread is main else name_of_thread(thread.name)
                self._known[ident] = _Known(name, thread.native_id)

    def _count_running(self, counts: Counts) -> None:
        """Counts threads on cores; seldom, to take a thousandth of the time, however many there are."""
        before = time.perf_counter()
        if before >= self._count_at:
            counts.running_sum += count_running(but=self._tid)
            counts.running_rounds += 1
            after = time.perf_counter()
            self._count_at = after + max(0.05, 1000 * (after - before))

    def _marks(self) -> tuple[float, float, dict[int, float]]:
        delays = run_delays()
        delays.pop(self._tid, None)
        return time.process_time(), time.thread_time(), delays

    def _read_phase(self) -> None:
        if self._phase_file is None:
            return
        try:
            about = os.stat(self._phase_file)
            sign = about.st_ino, about.st_mtime_ns
            if sign != self._phase_sign:
                self._phase_sign, self._asked = sign, self._phase_file.read_text()
        except FileNotFoundError:
            return  # no phase has begun

    def _pace(self, phase: str) -> None:
        """Looks as often as the phase allows."""
        timed = phase.partition(" ")[0] in TIMED_PHASES
        interval = self._most_often * (FEWER if timed else 1)
        if interval != self._interval:
            self._interval = interval
            if self._ticking:
                self._set_timer()

    def _set_timer(self) -> None:
        self._tick_origin = time.process_time()
        self._periods = 0
        signal.setitimer(signal.ITIMER_PROF, self._interval, self._interval)

    def _begin(self, phase: str) -> None:
        self._pace(phase)
        self._counts = self._phases.setdefault(phase, Counts(phase))
        note_into(self._counts.fetches, self.tick)

    def _write(self, counts: Counts) -> None:
        before, self._mark = self._mark, self._marks()
        counts.cpu_seconds += self._mark[0] - before[0]
        counts.own_cpu_seconds += self._mark[1] - before[1]
        counts.run_delay_seconds += sum(
            max(0.0, delay - before[2].get(thread, 0.0)) for thread, delay in self._mark[2].items()
        )
        line = (json.dumps(counts.to_json(self._role)) + "\n").encode()
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps the garbage collector from running in this thread, while it has its hands on others' frames.

    Before Python 3.12 it may run in the midst of making a frame object, and give way to other threads there.
    """
    collects = sys.version_info < (3, 12) and gc.isenabled()
    if collects:
        gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class _Known:
    """A thread that has been seen before."""

    def __init__(self, name: str, native_id: int) -> None:
        self.name = name
        self.native_id = native_id
        self.state = ThreadState(native_id)
        self.blocked = self.state.look()
        self._seen: tuple[Any, int] | None = None
        self._idle: tuple[Stage | None, str] = None, ""

    def stage(self, innermost: FrameType, stacks: Stacks, fresh: bool) -> tuple[Stage | None, str]:
        """What it is at, and the innermost line of the user's; the same as before where it hasn't moved.

        Args:
            innermost: its innermost frame.
            stacks: that tell.
            fresh: ask the system what the thread does; else `blocked` has been asked already.
        """
        seen = innermost.f_code, innermost.f_lasti
        if fresh:
            if seen == self._seen:
                return self._idle
            self.blocked = self.state.look()
        told = stacks.stage(innermost, self.blocked, self.name)
        idle = fresh and told[0] is not None and told[0].key == "idle"
        self._seen, self._idle = (seen, told) if idle else (None, (None, ""))
        return told


def read_counts(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The last line of each (pid, phase) in samplers' files, as `Counts.to_json` describes it.

    A line that was cut short, as its writer was killed, is left out.
    """
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for path in paths:
        for text in path.read_bytes().split(b"\n"):
            if not text.endswith(b"}"):
                continue
            try:
                line = json.loads(text)
            except ValueError:
                continue
            found[line["pid"], line["phase"]] = line
    return list(found.values())
