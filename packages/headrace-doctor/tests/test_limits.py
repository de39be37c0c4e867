"""Cores, memory and files as control groups, affinity and limits allow them, not as the host has them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import psutil
import pytest

from headrace_doctor.machine import (
    FileLimit,
    available_memory,
    cpu_quota,
    file_limit,
    memory_limit,
    shared_memory,
    usable_cores,
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A process in /job/step, in both versions of control groups."""
    write(tmp_path / "own", "5:cpu,cpuacct:/job/step\n4:memory:/job/step\n0::/job/step\n")
    return tmp_path / "own"


def test_quotas_of_both_versions(tmp_path: Path, own: Path) -> None:
    groups = tmp_path / "cg"
    write(groups / "job/step/cpu.max", "max 100000\n")
    assert cpu_quota(groups, own) is None
    write(groups / "cpu/job/step/cpu.cfs_quota_us", "-1\n")
    write(groups / "cpu/job/step/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(groups, own) is None
    write(groups / "cpu/job/cpu.cfs_quota_us", "300000\n")
    write(groups / "cpu/job/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(groups, own) == 3.0
    write(groups / "job/cpu.max", "150000 100000\n")
    assert cpu_quota(groups, own) == 1.5


@pytest.mark.parametrize(("quota", "cores"), [(None, 6), (0.5, 1), (2.3, 3), (50.0, 6)])
def test_cores_are_the_less_of_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr("headrace_doctor.machine.cpu_quota", lambda: quota)
    assert usable_cores() == cores


def test_memory_of_both_versions(tmp_path: Path, own: Path) -> None:
    groups = tmp_path / "cg"
    assert memory_limit(groups, own) is None
    assert available_memory(groups, own) <= psutil.virtual_memory().total
    write(groups / "job/step/memory.max", "max\n")
    write(groups / "memory/job/step/memory.limit_in_bytes", "9223372036854771712\n")
    assert memory_limit(groups, own) is None, "both say: no limit"
    write(groups / "memory/job/memory.limit_in_bytes", "700000000\n")
    assert memory_limit(groups, own) == 700_000_000
    write(groups / "job/memory.max", "5000000\n")
    write(groups / "job/memory.current", "2000000\n")
    assert memory_limit(groups, own) == 5_000_000
    assert available_memory(groups, own) == 3_000_000


def test_room_in_shared_memory(tmp_path: Path) -> None:
    assert shared_memory(tmp_path / "nothing") is None
    here = shared_memory(tmp_path)
    assert here is not None
    assert 0 < here.free <= here.total


def test_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    assert file_limit() == FileLimit(1024, None)
