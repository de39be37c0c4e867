"""A thread that samples the stacks of the other threads of its process, up to 100 times a second.

Every few seconds, and when the phase changes, it appends its counts to a file, as a line of JSON.
"""

from __future__ import annotations

import bisect
import functools
import gc
import json
import math
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from headrace_doctor.machine import BINDING_VARIABLES
from headrace_doctor.measure.hooks import TORCHS, Begin
from headrace_doctor.measure.observed import PARTS, SUPPLY
from headrace_doctor.measure.stages import Place, Stage, is_whole, stage_of, walk
from headrace_doctor.measure.subject import is_headrace

PHASE_FILE = "phase"
# A stack sample costs its process up to a millisecond: there are few while a training step is timed.
FINE_SECONDS, COARSE_SECONDS = 0.01, {"main": 0.1, "worker": 0.5}
# A thread is seen where it lets go of the GIL: by default up to 5 ms after it was asked to, at a call into C,
# which would be taken for the code before it. With this it lets go sooner.
FINE_SWITCH_SECONDS = 0.00002
NOTICE_SECONDS = 0.1  # until a new phase is noticed
FINE_WRITE_SECONDS, COARSE_WRITE_SECONDS = 0.5, 2.0
MOST_LINES, MOST_SLOWEST = 20, 10
MOST_WALKS = 3  # of all stacks, in one look
# Libraries whose functions start threads of their own, also within a worker process.
THREADED = ("cv2", "numpy", "scipy", "numexpr", "numba", "sklearn", "torch")
# Processor time below which a native thread counts as idle, between two writes.
NATIVE_THREAD_SECONDS = 0.002
LATE_SECONDS = 0.001  # a look that comes so late has waited for the GIL
# Upper edges of the histogram's bins, seconds: each half an octave above the one before, from 10 µs to 160 s.
EDGES = tuple(1e-5 * 2 ** (step / 2) for step in range(49))


@dataclass
class Counts:
    """The counts of one phase."""

    phase: str
    seconds: float = 0.0  # time that the phase was sampled for
    rounds: int = 0  # number of looks
    own_cpu_seconds: float = 0.0  # processor time that the sampler took
    cpu_seconds: float = 0.0  # processor time of the process's other threads
    held_seconds: float = 0.0  # time that one of these waited for a core, at most
    asleep_seconds: float = 0.0  # time that the main thread neither was on a core nor waited for one
    late_rounds: int = 0  # looks that came late, but not for want of a core
    cores: list[int] = field(default_factory=list)  # that the main thread may be put on, at last
    bound_by: str = ""  # what bound it to these, if it is known
    native_cpu_seconds: float = 0.0  # of threads that Python does not know, as those of OpenMP or OpenCV
    native_threads: int = 0  # number of such threads that used any
    gc_seconds: float = 0.0  # time in Python's garbage collector
    gc_longest: float = 0.0  # of that, in one collection
    libraries: list[str] = field(default_factory=list)  # imported ones of `THREADED`
    # Kind of thread → stage → [samples, of these blocked, seconds, of these blocked]. A sample stands for the
    # seconds since the one before: while the GIL is held, samples come late.
    stages: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    # Kind of thread → seconds that its threads computed and held the GIL, before they were seen to wait.
    unseen: dict[str, float] = field(default_factory=dict)
    # Stage of the main thread, or kind of another thread while it computes → line of the user's code → looks;
    # see `stages.stage_of`.
    lines: dict[str, dict[str, int]] = field(default_factory=dict)
    durations: list[int] = field(default_factory=lambda: [0] * (len(EDGES) + 1))  # of samples, by `EDGES`
    slowest: list[tuple[float, Any]] = field(default_factory=list)  # (seconds, index), longest first

    def add(self, stage: Stage, seconds: float) -> None:
        """Counts one look at one thread."""
        row = self.stages.setdefault(stage.kind, {}).setdefault(stage.key, [0, 0, 0.0, 0.0])
        for i, more in enumerate((1, stage.waiting, seconds, stage.waiting * seconds)):
            row[i] += more

    def shared_out(self) -> dict[str, dict[str, list[float]]]:
        """The stages with the unseen seconds, divided as what the threads computed when they were seen."""
        shared = {}
        for kind, stages in self.stages.items():
            computing = {key: row[2] - row[3] for key, row in stages.items()}
            more = self.unseen.get(kind, 0.0) / max(1e-9, sum(computing.values()))
            shared[kind] = {
                key: [looks, waiting, seconds + more * computing[key], waited]
                for key, (looks, waiting, seconds, waited) in stages.items()
            }
        return shared

    def add_sample(self, index: Any, seconds: float) -> None:
        """Counts a sample that was made; the index is None for an iterable dataset."""
        self.durations[bisect.bisect_left(EDGES, seconds)] += 1
        if len(self.slowest) < MOST_SLOWEST or seconds > self.slowest[-1][0]:
            known = index if index is None or isinstance(index, (int, str)) else repr(index)[:200]
            row = (round(seconds, 6), known)
            self.slowest = sorted([*self.slowest, row], key=lambda one: -one[0])[:MOST_SLOWEST]

    def to_json(self, role: str) -> dict[str, Any]:
        """One line of the file: the attributes, "pid" and "role"; the durations of samples in "samples": as
        "bins" of [upper edge in seconds, samples], and the "slowest"."""
        fields = vars(self).copy()
        edges = [*(round(edge, 6) for edge in EDGES), None]
        bins = [[edge, n] for edge, n in zip(edges, fields.pop("durations"), strict=True) if n]
        samples = {"bins": bins, "slowest": fields.pop("slowest")}
        lines = {key: dict(Counter(rows).most_common(MOST_LINES)) for key, rows in self.lines.items()}
        del fields["unseen"]
        fields |= {"stages": self.shared_out(), "lines": lines, "samples": samples}
        return {**fields, "pid": os.getpid(), "role": role}


class Sampler:
    """Samples this process's threads but itself; the process's role is "main" or "worker"."""

    current: Sampler | None = None  # that of this process

    def __init__(self, folder: Path, role: str) -> None:
        self._folder = folder
        self._path = folder / f"{role}-{os.getpid()}.jsonl"
        self._role = role
        self._phases: dict[str, Counts] = {}
        self._switch = sys.getswitchinterval()
        self._collection_began = 0.0
        self._times: dict[int, tuple[float, float] | None] = {}  # of each thread, see `thread_times`
        self._delay = 0.0  # seconds that this thread has waited for a core
        self.bound_by = ", ".join(name for name in BINDING_VARIABLES if name in os.environ)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-sampler", daemon=True)

    def start(self) -> None:
        """Starts the thread, once."""
        self._begin(read_phase(self._folder))
        Sampler.current = self
        gc.callbacks.append(self._collected)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, which writes all counts. Does nothing in a forked child."""
        Sampler.current = None
        with suppress(ValueError):
            gc.callbacks.remove(self._collected)
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def add_sample(self, index: Any, seconds: float) -> None:
        """Counts a sample that this process made."""
        self._counts.add_sample(index, seconds)

    def _collected(self, when: str, _info: dict[str, int]) -> None:
        if when == "start":
            self._collection_began = time.perf_counter()
        elif self._collection_began:
            seconds = time.perf_counter() - self._collection_began
            self._counts.gc_seconds += seconds
            self._counts.gc_longest = max(self._counts.gc_longest, seconds)

    def _run(self) -> None:
        jitter = random.Random()  # not the user's random numbers
        self._mark = self._marks()
        written = last = time.perf_counter()
        while not self._stopping.is_set():
            due = last + self._interval * (0.5 + jitter.random())
            while (left := due - time.perf_counter()) > 0 and not self._stopping.is_set():
                if read_phase(self._folder) != self._counts.phase:
                    break
                time.sleep(min(left, NOTICE_SECONDS))
            now = time.perf_counter()
            with _no_collection():  # stacks first: while this thread reads a file, the others go on
                self._look(_stacks(), now - last, now - due)
            last, phase = now, read_phase(self._folder)
            if phase != self._counts.phase or now - written > self._write_seconds:
                ending, written = self._counts, now
                # First, or what other threads count while the line is written would be lost.
                self._begin(phase)
                self._write(ending)
        sys.setswitchinterval(self._switch)
        self._write(self._counts)

    def _begin(self, phase: str) -> None:
        self._counts = self._phases.setdefault(phase, Counts(phase))
        kind = phase.partition(" ")[0]
        fine = kind == SUPPLY or (kind == PARTS and self._role == "main")
        self._interval = FINE_SECONDS if fine else COARSE_SECONDS[self._role]
        self._write_seconds = FINE_WRITE_SECONDS if fine else COARSE_WRITE_SECONDS
        sys.setswitchinterval(min(FINE_SWITCH_SECONDS, self._switch) if fine else self._switch)

    def _look(self, stacks: dict[int, tuple[Place, ...]], seconds: float, late: float) -> None:
        """Counts stacks, taken `seconds` after those before and `late` seconds later than planned."""
        counts = self._counts
        counts.seconds += seconds
        counts.rounds += 1
        own = threading.get_native_id()
        delay, self._delay = self._delay, thread_times([own]).get(own, (0.0, 0.0))[1]
        counts.late_rounds += late - (self._delay - delay) > LATE_SECONDS
        main = threading.main_thread()
        threads = {thread.ident: thread for thread in threading.enumerate()}
        for ident, walked in stacks.items():
            thread = threads.get(ident)
            if thread is self._thread or thread is None or thread.native_id is None:
                continue
            name = "" if thread is main else re.sub(r"[-_ ]?\d+", "", thread.name)
            stage, line = stage_of(walked, state_of(thread.native_id), name)
            taken, (computed, held) = seconds, self._times_since_last_look(thread.native_id)
            if stage.kind == "send" and not stage.waiting:  # or it waits for the GIL, which looks the same
                taken = min(seconds, computed)
            elif stage.waiting and late > LATE_SECONDS and late < 2 * (computed + held) < math.inf:
                # It held the GIL when the look was due, as a long call into C does, on a core or not.
                counts.unseen[stage.kind] = counts.unseen.get(stage.kind, 0.0) + seconds
                continue
            counts.add(stage, taken)
            if line and (thread is main or (stage.kind.startswith("other:") and not stage.waiting)):
                rows = counts.lines.setdefault(stage.key if thread is main else stage.kind, {})
                rows[line] = rows.get(line, 0) + 1

    def _times_since_last_look(self, thread: int) -> tuple[float, float]:
        """Seconds that a thread ran, and waited for a core, since the last look; infinite if not known."""
        before = self._times.get(thread)
        now = self._times[thread] = thread_times([thread]).get(thread)
        return (now[0] - before[0], now[1] - before[1]) if now and before else (math.inf, math.inf)

    def _marks(self) -> tuple[float, float, dict[int, tuple[float, float]]]:
        others = {int(name) for name in os.listdir("/proc/self/task")} - {threading.get_native_id()}
        return time.perf_counter(), time.thread_time(), thread_times(others)

    def _write(self, counts: Counts) -> None:
        (then, own, before), self._mark = self._mark, self._marks()
        counts.own_cpu_seconds += self._mark[1] - own
        known = {thread.native_id for thread in threading.enumerate()}
        native, longest = 0, 0.0
        for thread, (cpu, delay) in self._mark[2].items():
            cpu_before, delay_before = before.get(thread, (0.0, 0.0))
            used = max(0.0, cpu - cpu_before)
            counts.cpu_seconds += used
            longest = max(longest, delay - delay_before)
            if thread == threading.main_thread().native_id:
                counts.asleep_seconds += max(0.0, self._mark[0] - then - used - (delay - delay_before))
            if thread not in known and used > NATIVE_THREAD_SECONDS:
                counts.native_cpu_seconds += used
                native += 1
        counts.held_seconds += longest
        counts.cores = sorted(affinity())
        counts.bound_by = self.bound_by
        counts.native_threads = max(counts.native_threads, native)
        counts.libraries = [name for name in THREADED if name in sys.modules]
        with open(self._path, "ab", buffering=0) as file:
            file.write((json.dumps(counts.to_json(self._role)) + "\n").encode())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps the garbage collector from running while this thread holds others' frames: before Python 3.12 it
    may run amid the making of a frame object, and give way to other threads."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _stacks() -> dict[int, tuple[Place, ...]]:
    """The stack of each thread, walked again if a generator gave its value meanwhile and lost its callers."""
    for _ in range(MOST_WALKS):
        stacks = {ident: walk(innermost) for ident, innermost in sys._current_frames().items()}
        if all(map(is_whole, stacks.values())):
            break
    return stacks


def state_of(native_id: int) -> str:
    """The letter of a thread's state in /proc, as "R", "S" and "D", or "R" if it has ended."""
    with suppress(OSError), open(f"/proc/self/task/{native_id}/stat", "rb", buffering=0) as file:
        return file.read(400).rpartition(b")")[2][1:2].decode()
    return "R"


def thread_times(threads: Iterable[int]) -> dict[int, tuple[float, float]]:
    """(seconds on a core, seconds waiting for one) of each of these threads of this process, if known."""
    times = {}
    for thread in threads:
        with suppress(OSError), open(f"/proc/self/task/{thread}/schedstat", "rb", buffering=0) as file:
            fields = file.read(100).split()
            if len(fields) == 3:
                times[thread] = int(fields[0]) / 1e9, int(fields[1]) / 1e9
    return times


def announce_phase(folder: Path, name: str) -> None:
    """Makes `name` the phase; samplers follow at their next look."""
    new = folder / f"{PHASE_FILE}.{os.getpid()}.{threading.get_ident()}"
    new.write_text(name)
    new.replace(folder / PHASE_FILE)


def read_phase(folder: Path) -> str:
    """The phase announced last, or "" before the first."""
    try:
        return (folder / PHASE_FILE).read_text()
    except FileNotFoundError:
        return ""


def affinity() -> set[int]:
    """The cores that this process's main thread may be put on; empty if the system does not tell."""
    return os.sched_getaffinity(os.getpid()) if hasattr(os, "sched_getaffinity") else set()


def read_counts(folder: Path) -> list[dict[str, Any]]:
    """The counts of each process and phase, as `Counts.to_json` gives them, without a line that was cut short
    as its writer was killed."""
    last: dict[tuple[int, str], dict[str, Any]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_bytes().split(b"\n"):
            with suppress(ValueError):
                line = json.loads(text)
                last[line["pid"], line["phase"]] = line
    return list(last.values())


class TimedDataset:
    """A dataset whose samples are timed; all else is the dataset's own."""

    def __init__(self, dataset: Any) -> None:
        vars(self)["_dataset"] = dataset

    def __getitem__(self, index: Any) -> Any:
        began = time.perf_counter()
        sample = self._dataset[index]
        _note(index, time.perf_counter() - began)
        return sample

    def __iter__(self) -> Iterator[Any]:
        began = time.perf_counter()
        for sample in self._dataset:
            _note(None, time.perf_counter() - began)
            yield sample
            began = time.perf_counter()

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # asked for before it is there, as when this is copied
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return TimedDataset, (self._dataset,)

    # A worker_init_fn may ask what get_worker_info().dataset is an instance of.
    __class__ = property(lambda self: type(self._dataset))


def _note(index: Any, seconds: float) -> None:
    if Sampler.current is not None:
        Sampler.current.add_sample(index, seconds)


def sample_worker(folder: Path, init: Callable[[int], object] | None, worker_id: int) -> None:
    """Starts the sampler of a worker, then calls the user's worker_init_fn."""
    sampler = Sampler(folder, "worker")
    sampler.start()
    Finalize(None, sampler.stop, exitpriority=0)
    if init is not None:
        before = affinity()
        init(worker_id)
        if affinity() != before:
            sampler.bound_by = f"worker_init_fn={getattr(init, '__name__', type(init).__name__)}"


def begin_sampled(folder: Path, loader: DataLoader[Any], original: Begin) -> Iterator[Any]:
    """iter(loader) with its samples timed, and with a sampler in each worker.

    Headrace's loader counts its stages itself. A class with an ``__iter__`` of its own comes here again, by
    torch's.
    """
    if original is not TORCHS or is_headrace(loader) or issubclass(type(loader.dataset), TimedDataset):
        return original(loader)
    dataset, init = loader.dataset, loader.worker_init_fn
    # The loader refuses other datasets by setattr(); this one yields the same samples.
    vars(loader)["dataset"] = TimedDataset(dataset)
    loader.worker_init_fn = functools.partial(sample_worker, folder, init)
    try:
        return original(loader)
    finally:
        vars(loader)["dataset"], loader.worker_init_fn = dataset, init


@contextmanager
def sampled(folder: Path) -> Iterator[Callable[[str], None]]:
    """Samples this process meanwhile, with files in `folder`. Yields a function that announces a phase."""
    announce_phase(folder, "")
    sampler = Sampler(folder, "main")
    sampler.start()
    try:
        yield functools.partial(announce_phase, folder)
    finally:
        sampler.stop()
