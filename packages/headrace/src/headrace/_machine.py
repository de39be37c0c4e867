"""Cores and memory that this process may really use, as opposed to what the host has."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
SCHEDULING = Path("/proc/thread-self/schedstat")


def usable_cores() -> int:
    """Cores by affinity and cgroup quota (v1 and v2), at least 1; a part of a core counts as one. Inside a
    container `os.cpu_count()` reports the host's."""
    affinity = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def cpu_quota(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> float | None:
    """Cores' worth of time that the cgroup and its ancestors allow, or None without a limit."""
    limits = [_v2_quota(group) for group in _groups(root, own, "")]
    limits += [
        _v1_quota(group) for name in ("cpu", "cpu,cpuacct") for group in _groups(root / name, own, "cpu")
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def available_memory(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> int:
    """Bytes that can be taken now without swapping: the host's, or what the cgroup leaves if that is less."""
    limits = [_host_memory()]
    for group in _groups(root, own, ""):
        limits += _left(group / "memory.max", group / "memory.current")
    for group in _groups(root / "memory", own, "memory"):
        limits += _left(group / "memory.limit_in_bytes", group / "memory.usage_in_bytes")
    return max(0, min(limits))


def queued_ns(path: Path = SCHEDULING) -> int | None:
    """Time that the calling thread has had no core while it could have run, in nanoseconds, or None if the
    operating system doesn't tell. Takes 6 µs."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        fields = os.read(file, 64).split()
    finally:
        os.close(file)
    # A kernel that doesn't count says that the thread has never been on a core.
    return int(fields[1]) if len(fields) == 3 and fields[0] != b"0" else None


def _host_memory() -> int:
    """Bytes that the host can give without swapping."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", _read(Path("/proc/meminfo")), re.MULTILINE)
    return 1024 * int(match[1]) if match else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _groups(root: Path, own: Path, controller: str) -> Iterator[Path]:
    """This process's group for `controller` ("" for v2) and its ancestors, as directories below `root`."""
    for line in _read(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            group = root / path.lstrip("/")
            yield from (group, *(parent for parent in group.parents if parent.is_relative_to(root)))
            return
    yield root  # inside a container the own group is often mounted as the root


def _v2_quota(group: Path) -> float | None:
    fields = _read(group / "cpu.max").split()
    return None if len(fields) != 2 or fields[0] == "max" else int(fields[0]) / int(fields[1])


def _v1_quota(group: Path) -> float | None:
    quota, period = _read(group / "cpu.cfs_quota_us").strip(), _read(group / "cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota and period and int(quota) > 0 else None


def _left(limit_file: Path, usage_file: Path) -> list[int]:
    limit, usage = _read(limit_file).strip(), _read(usage_file).strip()
    return [int(limit) - int(usage)] if limit.isdigit() and usage.isdigit() else []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # no such controller here
