"""What can be seen of a process and its children from outside."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from headrace.measure.machine import cpu_quota


@dataclass(frozen=True)
class ProcessLook:
    """One process, at one moment.

    Attributes:
        pid, parent: numbers.
        started: seconds since 1970; with `pid` it tells a process from a later one of the same number.
        command: with its arguments, joined by spaces.
        user: that it runs as.
        state: "running", "sleeping", "disk-sleep" (waits for a disk), "stopped", "zombie" and so on.
        threads: how many.
        cpu_seconds: of all of them so far, in user and system mode.
        memory: resident bytes; pages that processes share count in each of them.
        read_bytes: that storage was really read for, so far; None: not this user's to see.
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
    """A process and all its descendants, at one moment.

    Attributes:
        clock: `time.perf_counter()` then.
        processes: itself first; empty where it doesn't run any more.
        cores: that it may use, by affinity and cgroup quota.
    """

    clock: float
    processes: tuple[ProcessLook, ...]
    cores: float


def look(pid: int) -> TreeLook:
    """At the process `pid` and its descendants, now."""
    clock = time.perf_counter()
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return TreeLook(clock, (), 0.0)
    looks = [one for one in map(_look, family) if one is not None]
    if not looks or looks[0].pid != pid or looks[0].state == psutil.STATUS_ZOMBIE:
        return TreeLook(clock, (), 0.0)
    return TreeLook(clock, tuple(looks), cores_of(pid))


def cores_of(pid: int) -> float:
    """Cores that a process may use, by affinity and cgroup quota; at most as many as there are."""
    try:
        affinity = len(os.sched_getaffinity(pid))
    except OSError:
        affinity = os.cpu_count() or 1
    quota = cpu_quota(own=Path(f"/proc/{pid}/cgroup"))
    return float(affinity) if quota is None else min(float(affinity), quota)


def _look(process: psutil.Process) -> ProcessLook | None:
    try:
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


def _read_bytes(process: psutil.Process) -> int | None:
    try:
        return int(process.io_counters().read_bytes)
    except psutil.AccessDenied:
        return None
