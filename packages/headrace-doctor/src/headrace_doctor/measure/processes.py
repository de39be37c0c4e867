"""Processes and their children, seen from outside: processor time, memory, storage."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from headrace_doctor.machine import cpu_quota


@dataclass(frozen=True)
class ProcessLook:
    """One process at one moment.

    Attributes:
        pid, parent: process numbers.
        started: seconds since 1970; with `pid` it tells a process from a later one of the same number.
        command: with its arguments, joined by spaces.
        user: effective user id.
        state: "running", "sleeping", "disk-sleep" (waits for a disk), "stopped", "zombie" and so on.
        threads: number of threads.
        cpu_seconds: processor time of all threads so far, in user and system mode.
        memory: resident bytes; pages that processes share count in each of them.
        read_bytes: bytes that storage was really read for, so far; None: not this user's to see.
    """

    pid: int
    parent: int
    started: float
    command: str
    user: int
    state: str
    threads: int
    cpu_seconds: float
    memory: int
    read_bytes: int | None


@dataclass(frozen=True)
class TreeLook:
    """A process and all its descendants at one moment.

    Attributes:
        clock: `time.perf_counter()` then.
        processes: the process itself first; empty if it no longer runs.
        cores: that it may use, by affinity and cgroup quota; 0 if it no longer runs.
    """

    clock: float
    processes: tuple[ProcessLook, ...]
    cores: float


def look(pid: int) -> TreeLook:
    """The process `pid` and its descendants, now."""
    clock = time.perf_counter()
    family = [pid, *descendants(pid)]
    looks = [one for one in map(_look, family) if one is not None]
    if not looks or looks[0].pid != pid or looks[0].state == psutil.STATUS_ZOMBIE:
        return TreeLook(clock, (), 0.0)
    return TreeLook(clock, tuple(looks), cores_of(pid))


def cores_of(pid: int) -> float:
    """Cores that a process may use, by affinity and cgroup quota; at most as many as there are."""
    try:
        affinity = float(len(os.sched_getaffinity(pid)))
    except OSError:
        affinity = float(os.cpu_count() or 1)
    quota = cpu_quota(own=Path(f"/proc/{pid}/cgroup"))
    return affinity if quota is None else min(affinity, quota)


def descendants(pid: int) -> list[int]:
    """Process numbers of a process's children, of their children and so on; none of one that has ended."""
    found: list[int] = []
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        with suppress(psutil.NoSuchProcess):
            found = [child.pid for child in psutil.Process(pid).children(recursive=True)]
        return found
    left = [pid]
    while left:
        folder = Path(f"/proc/{left.pop()}/task")
        tasks: list[str] = []
        with suppress(OSError):  # it has ended meanwhile
            tasks = os.listdir(folder)
        for task in tasks:
            with suppress(OSError):
                children = [int(child) for child in (folder / task / "children").read_text().split()]
                found += children
                left += children
    return found


def _look(pid: int) -> ProcessLook | None:
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times = process.cpu_times()
            return ProcessLook(
                pid=process.pid,
                parent=process.ppid(),
                started=process.create_time(),
                command=" ".join(process.cmdline()) or process.name(),
                user=process.uids().effective,
                state=process.status(),
                threads=process.num_threads(),
                cpu_seconds=times.user + times.system,
                memory=process.memory_info().rss,
                read_bytes=_read_bytes(process),
            )
    except psutil.NoSuchProcess:
        return None


def _read_bytes(process: Any) -> int | None:
    try:
        return int(process.io_counters().read_bytes)
    except psutil.AccessDenied:
        return None


def own_memory(pid: int) -> int:
    """Bytes that a process has written and shares with no other; 0: it has ended, or isn't this user's.

    Pages of files, which were only read, don't count: the system takes them back when it needs to.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * int(text.partition("Private_Dirty:")[2].split()[0])


def children_memory() -> int:
    """The same of all of this process's descendants."""
    return sum(map(own_memory, descendants(os.getpid())))


def busy_seconds() -> float:
    """Processor time of all processes on the cores that this one may be put on, since the machine started."""
    every = psutil.cpu_times(percpu=True)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(every))
    # Where the host's numbers are hidden, as in some containers, those that are shown are the allowed ones.
    chosen = [every[core] for core in allowed] if max(allowed) < len(every) else every
    names = ("user", "system", "nice", "irq", "softirq")
    return float(sum(getattr(core, name, 0.0) for core in chosen for name in names))


class Times(NamedTuple):
    """Counters of time, all in seconds.

    Attributes:
        wall: by `time.perf_counter()`.
        own: processor time of this process.
        children: that of its descendants, including those that ended and were waited for.
        machine: that of all processes, on the cores that this one may be put on.
    """

    wall: float
    own: float
    children: float
    machine: float

    def since(self, earlier: Times) -> Times:
        """The differences; a child that isn't waited for takes its count with it."""
        spent = Times(*(now - then for now, then in zip(self, earlier, strict=True)))
        return spent._replace(children=max(0.0, spent.children))


def times() -> Times:
    """Of this process, now."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children = ended.ru_utime + ended.ru_stime
    for child in descendants(os.getpid()):
        try:
            used = psutil.Process(child).cpu_times()
        except psutil.NoSuchProcess:
            continue
        children += used.user + used.system
    return Times(time.perf_counter(), time.process_time(), children, busy_seconds())


def wait_until_quiet() -> None:
    """Waits until this process and its children are idle, as workers are once enough batches are ready; for
    10 seconds at most."""
    end = time.perf_counter() + 10.0
    calm = 0
    before = times()
    while calm < 4 and time.perf_counter() < end:
        time.sleep(0.05)
        now = times()
        spent = now.since(before)
        calm = calm + 1 if spent.own + spent.children < 0.1 * spent.wall else 0
        before = now
