"""Processes and their children, seen from outside: processor time, memory, storage."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from headrace_doctor.machine import cpu_quota, throttled_periods


class ProcessLook(NamedTuple):
    """One process at one moment."""

    started: float  # seconds since 1970
    command: str  # with its arguments, joined by spaces
    cpu_seconds: float  # processor time of all threads so far, in user and system mode
    memory: int  # resident bytes; pages that processes share count in each of them
    read_bytes: int  # that storage was really read for, so far; 0 if they aren't this user's to see


def family(root: psutil.Process) -> dict[int, ProcessLook]:
    """A process and its descendants, by their numbers; empty if it has ended."""
    looks: dict[int, ProcessLook] = {}
    with suppress(psutil.NoSuchProcess):
        if not root.is_running() or root.status() == psutil.STATUS_ZOMBIE:
            return {}
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess), process.oneshot():
                times, read = process.cpu_times(), 0
                with suppress(psutil.AccessDenied):
                    read = process.io_counters().read_bytes
                looks[process.pid] = ProcessLook(
                    started=process.create_time(),
                    command=" ".join(process.cmdline()) or process.name(),
                    cpu_seconds=times.user + times.system,
                    memory=process.memory_info().rss,
                    read_bytes=read,
                )
    return looks if root.pid in looks else {}


def cores_of(pid: int) -> float:
    """Cores that a process may use, by affinity and cgroup quota; at most as many as there are."""
    try:
        affinity = float(len(os.sched_getaffinity(pid)))
    except OSError:
        affinity = float(os.cpu_count() or 1)
    quota = cpu_quota(own=Path(f"/proc/{pid}/cgroup"))
    return affinity if quota is None else min(affinity, quota)


def own_memory(pid: int) -> int:
    """Bytes that a process has written and doesn't share, or 0 if it has ended or isn't this user's."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * int(text.partition("Private_Dirty:")[2].split()[0])


def children_memory() -> int:
    """Bytes that this process's descendants have written and don't share."""
    return sum(own_memory(child.pid) for child in psutil.Process().children(recursive=True))


def busy_seconds() -> float:
    """Processor time of all processes on the cores that this one may be put on, since the machine started."""
    every = psutil.cpu_times(percpu=True)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(every))
    # Where the host's numbers are hidden, as in some containers, those that are shown are the allowed ones.
    chosen = [every[core] for core in allowed] if max(allowed) < len(every) else every
    names = ("user", "system", "nice", "irq", "softirq")
    return float(sum(getattr(core, name, 0.0) for core in chosen for name in names))


class Times(NamedTuple):
    """Seconds by `time.perf_counter()`, and processor seconds of this process, of its descendants (with those
    that ended and were waited for), and of all processes, on the cores that this one may be put on; periods
    of the cgroup's quota, and those in which it was used up."""

    wall: float
    own: float
    children: float
    machine: float
    periods: float
    throttled: float

    def since(self, earlier: Times) -> Times:
        """The differences; a child that isn't waited for takes its count with it."""
        spent = Times(*(now - then for now, then in zip(self, earlier, strict=True)))
        return spent._replace(children=max(0.0, spent.children))


def times() -> Times:
    """The counters of this process, now."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children = ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            used = child.cpu_times()
            children += used.user + used.system
    return Times(time.perf_counter(), time.process_time(), children, busy_seconds(), *throttled_periods())


def wait_until_quiet() -> None:
    """Waits, for 10 seconds at most, until this process and its children are idle."""
    calm, before = 0, times()
    end = before.wall + 10.0
    while calm < 4 and before.wall < end:
        time.sleep(0.05)
        now = times()
        spent = now.since(before)
        calm = calm + 1 if spent.own + spent.children < 0.1 * spent.wall else 0
        before = now
