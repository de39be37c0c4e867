"""Cores, memory and files as control groups, affinity and limits allow them, not as the host has them.

Each package has a module for that, since neither may import the other's.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import _machine as of_the_loader
from headrace_doctor import machine as of_the_doctor

BOTH = pytest.mark.parametrize("machine", [of_the_loader, of_the_doctor], ids=["loader", "doctor"])


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A process in /job/step, in both versions of control groups."""
    write(tmp_path / "own", "5:cpu,cpuacct:/job/step\n4:memory:/job/step\n0::/job/step\n")
    return tmp_path / "own"


@BOTH
def test_the_tightest_quota_on_the_way_up_counts(machine: Any, tmp_path: Path, own: Path) -> None:
    groups = tmp_path / "cg"
    assert machine.cpu_quota(tmp_path / "nowhere", tmp_path / "nothing") is None
    write(groups / "job/step/cpu.max", "max 100000\n")
    assert machine.cpu_quota(groups, own) is None
    write(groups / "cpu,cpuacct/job/step/cpu.cfs_quota_us", "-1\n")
    (groups / "cpu").symlink_to("cpu,cpuacct")
    write(groups / "cpu,cpuacct/job/step/cpu.cfs_period_us", "100000\n")
    assert machine.cpu_quota(groups, own) is None
    write(groups / "cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n")
    write(groups / "cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
    assert machine.cpu_quota(groups, own) == 3.0
    write(groups / "job/cpu.max", "150000 100000\n")
    write(groups / "job/step/cpu.max", "400000 100000\n")
    assert machine.cpu_quota(groups, own) == 1.5


def test_the_group_whose_quota_is_used_up_most_often_counts(tmp_path: Path, own: Path) -> None:
    groups = tmp_path / "cg"
    assert of_the_doctor.throttled_periods(groups, own) == (0, 0)
    write(groups / "job/cpu.stat", "usage_usec 9\nnr_periods 40\nnr_throttled 30\nthrottled_usec 5\n")
    write(groups / "job/step/cpu.stat", "usage_usec 9\n")  # without a limit of its own
    assert of_the_doctor.throttled_periods(groups, own) == (40, 30)


@BOTH
def test_inside_a_container_the_own_group_is_the_root(machine: Any, tmp_path: Path) -> None:
    write(tmp_path / "own", "0::/\n")
    write(tmp_path / "cg/cpu.max", "200000 100000\n")
    assert machine.cpu_quota(tmp_path / "cg", tmp_path / "own") == 2.0


@BOTH
@pytest.mark.parametrize(("quota", "cores"), [(None, 6), (0.5, 1), (2.3, 3), (50.0, 6)])
def test_cores_are_the_less_of_affinity_and_quota(
    machine: Any, monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert machine.usable_cores() == cores


@BOTH
def test_memory_is_what_the_group_leaves(machine: Any, tmp_path: Path, own: Path) -> None:
    groups = tmp_path / "cg"
    assert machine.available_memory(groups, own) <= psutil.virtual_memory().total
    write(groups / "job/memory.max", "5000000\n")
    write(groups / "job/memory.current", "2000000\n")
    write(groups / "job/step/memory.max", "max\n")
    assert machine.available_memory(groups, own) == 3_000_000
    write(groups / "memory/job/step/memory.limit_in_bytes", "900000\n")
    write(groups / "memory/job/step/memory.usage_in_bytes", "1000000\n")
    assert machine.available_memory(groups, own) == 0


def test_the_limit_of_memory_in_both_versions(tmp_path: Path, own: Path) -> None:
    groups = tmp_path / "cg"
    assert of_the_doctor.memory_limit(groups, own) is None
    write(groups / "job/step/memory.max", "max\n")
    write(groups / "memory/job/step/memory.limit_in_bytes", "9223372036854771712\n")
    assert of_the_doctor.memory_limit(groups, own) is None, "both say: no limit"
    write(groups / "memory/job/memory.limit_in_bytes", "700000000\n")
    assert of_the_doctor.memory_limit(groups, own) == 700_000_000
    write(groups / "job/memory.max", "5000000\n")
    assert of_the_doctor.memory_limit(groups, own) == 5_000_000


def test_room_in_shared_memory(tmp_path: Path) -> None:
    assert of_the_doctor.shared_memory(tmp_path / "nothing") is None
    here = of_the_doctor.shared_memory(tmp_path)
    assert here is not None
    assert 0 < here.free <= here.total


def test_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    assert of_the_doctor.file_limit() == of_the_doctor.FileLimit(1024, None)


def test_a_system_that_does_not_report_the_wait_for_a_core(tmp_path: Path) -> None:
    assert of_the_loader.queued_ns(tmp_path / "none") is None
    write(tmp_path / "not counted", "0 0 0\n")
    assert of_the_loader.queued_ns(tmp_path / "not counted") is None
    write(tmp_path / "counted", "2035 817 3\n")
    assert of_the_loader.queued_ns(tmp_path / "counted") == 817
