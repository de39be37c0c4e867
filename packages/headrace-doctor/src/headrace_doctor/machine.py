"""Cores, memory and files that this process may really use: psutil reports those of the host."""

from __future__ import annotations

import math
import os
import platform
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
SHARED_MEMORY = Path("/dev/shm")
# With one of these, OpenMP binds the thread that imports torch, and all workers that it forks, to a core.
BINDING_VARIABLES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


@dataclass(frozen=True)
class Space:
    """Room on a file system, in bytes."""

    total: int
    free: int


@dataclass(frozen=True)
class FileLimit:
    """Files that a process may have open, or None without a limit.

    Attributes:
        soft: the limit in force.
        hard: how far the process itself may raise it.
    """

    soft: int | None
    hard: int | None


def usable_cores() -> int:
    """Cores by affinity and cgroup quota, at least 1; a part of a core counts as one."""
    quota, affinity = cpu_quota(), affine_cores()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def affine_cores() -> int:
    """Cores that the process may be put on, whatever share of their time it gets.

    If OpenMP may have bound its first thread, they are those of the processes that have started it.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    counts = [len(os.sched_getaffinity(0))]
    bound = any(name in os.environ for name in BINDING_VARIABLES)
    for parent in psutil.Process().parents() if bound else ():
        with suppress(OSError):
            counts.append(len(os.sched_getaffinity(parent.pid)))
    return max(counts)


def processor_name() -> str:
    """The processor's model, or the machine's architecture if the system has no name for it."""
    lines = _read(Path("/proc/cpuinfo")).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def cpu_quota(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> float | None:
    """Cores' worth of time that the cgroup and its ancestors allow, or None without a limit."""
    texts = [_read(group / "cpu.max").split() for group in _groups(root, own, "")]
    for group in _groups(root / "cpu", own, "cpu"):
        texts.append([_read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")])
    limits = [list(map(int, text)) for text in texts if len(text) == 2 and "".join(text).isdigit()]
    return min((quota / period for quota, period in limits), default=None)


def throttled_periods(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> tuple[int, int]:
    """(periods of the cgroup's quota, those in which it was used up) so far, or zeros without a quota."""
    groups = [*_groups(root, own, ""), *_groups(root / "cpu", own, "cpu")]
    rows = [dict(line.split() for line in _read(group / "cpu.stat").splitlines()) for group in groups]
    counts = [(int(row.get("nr_periods", 0)), int(row.get("nr_throttled", 0))) for row in rows]
    return max(counts, key=lambda count: count[1], default=(0, 0))


def available_memory(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> int:
    """Bytes that can be taken now without swapping: the host's, or what the cgroup leaves if that is less."""
    left = [limit - usage for limit, usage in _memory(root, own)]
    return max(0, min([int(psutil.virtual_memory().available), *left]))


def memory_limit(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> int | None:
    """Bytes that the cgroup allows, or None if that is no less than the host's memory."""
    limits = [limit for limit, _ in _memory(root, own)]
    return min((limit for limit in limits if limit < psutil.virtual_memory().total), default=None)


def shared_memory(path: Path = SHARED_MEMORY) -> Space | None:
    """Room for the batches that worker processes hand over, or None without such a file system."""
    try:
        usage = psutil.disk_usage(str(path))
    except OSError:
        return None
    return Space(usage.total, usage.free)


def file_limit() -> FileLimit:
    """The limits of this process, which its children inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FileLimit(*(None if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard)))


def _memory(root: Path, own: Path) -> Iterator[tuple[int, int]]:
    """(limit, usage) of the process's groups of memory."""
    v1 = "memory.limit_in_bytes", "memory.usage_in_bytes"
    groups = [(group, ("memory.max", "memory.current")) for group in _groups(root, own, "")]
    groups += [(group, v1) for group in _groups(root / "memory", own, "memory")]
    for group, names in groups:
        limit, usage = (_read(group / name).strip() for name in names)
        if limit.isdigit():
            yield int(limit), int(usage or 0)


def _groups(root: Path, own: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's group for `controller` ("" for version 2) and of its ancestors."""
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            group = root / path.lstrip("/")
            yield from (group, *(parent for parent in group.parents if parent.is_relative_to(root)))
            return
    yield root  # inside a container the own group is often mounted as the root


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # no such controller here
