"""Cores and memory as control groups and affinity allow them, not as the host has them."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from headrace._machine import available_memory, cpu_quota, queued_ns, usable_cores


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A process in /job/step, in both versions of control groups."""
    write(tmp_path / "own", "5:cpu,cpuacct:/job/step\n4:memory:/job/step\n0::/job/step\n")
    return tmp_path / "own"


def test_no_limit_anywhere(tmp_path: Path, own: Path) -> None:
    write(tmp_path / "cg/job/step/cpu.max", "max 100000\n")
    assert cpu_quota(tmp_path / "cg", own) is None
    assert cpu_quota(tmp_path / "nowhere", tmp_path / "nothing") is None


def test_the_tightest_group_on_the_way_up_counts(tmp_path: Path, own: Path) -> None:
    write(tmp_path / "cg/job/step/cpu.max", "400000 100000\n")
    write(tmp_path / "cg/job/cpu.max", "150000 100000\n")
    assert cpu_quota(tmp_path / "cg", own) == 1.5


def test_version_one_quotas(tmp_path: Path, own: Path) -> None:
    write(tmp_path / "cg/cpu,cpuacct/job/step/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "cg/cpu,cpuacct/job/step/cpu.cfs_period_us", "100000\n")
    write(tmp_path / "cg/cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n")
    write(tmp_path / "cg/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(tmp_path / "cg", own) == 3.0


def test_inside_a_container_the_own_group_is_the_root(tmp_path: Path) -> None:
    write(tmp_path / "own", "0::/\n")
    write(tmp_path / "cg/cpu.max", "200000 100000\n")
    assert cpu_quota(tmp_path / "cg", tmp_path / "own") == 2.0


@pytest.mark.parametrize(("quota", "cores"), [(None, 6), (0.5, 1), (2.3, 3), (50.0, 6)])
def test_cores_are_the_less_of_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr("headrace._machine.cpu_quota", lambda: quota)
    assert usable_cores() == cores


def test_memory_is_what_the_group_leaves(tmp_path: Path, own: Path) -> None:
    assert available_memory(tmp_path / "cg", own) <= psutil.virtual_memory().total
    write(tmp_path / "cg/job/memory.max", "5000000\n")
    write(tmp_path / "cg/job/memory.current", "2000000\n")
    write(tmp_path / "cg/job/step/memory.max", "max\n")
    assert available_memory(tmp_path / "cg", own) == 3_000_000
    write(tmp_path / "cg/memory/job/step/memory.limit_in_bytes", "900000\n")
    write(tmp_path / "cg/memory/job/step/memory.usage_in_bytes", "1000000\n")
    assert available_memory(tmp_path / "cg", own) == 0


def test_a_system_that_does_not_tell_of_waiting_for_a_core(tmp_path: Path) -> None:
    assert queued_ns(tmp_path / "none") is None
    write(tmp_path / "not counted", "0 0 0\n")
    assert queued_ns(tmp_path / "not counted") is None
    write(tmp_path / "counted", "2035 817 3\n")
    assert queued_ns(tmp_path / "counted") == 817
