"""A process and its children, seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from headrace_doctor.measure import outside as module
from headrace_doctor.measure import processes
from headrace_doctor.measure.nvml import Gpu
from headrace_doctor.measure.outside import Outside, busiest_gpu, own_memory
from headrace_doctor.measure.processes import TreeLook
from headrace_doctor.measure.sampler import announce_phase

# A parent that sleeps, and a child that computes and holds 64 MB.
FAMILY = """
import subprocess, sys
child = "held = bytearray(64_000_000)\\nprint('ready', flush=True)\\nwhile True: pass"
process = subprocess.Popen([sys.executable, "-c", child])
try:
    process.wait(60)
except subprocess.TimeoutExpired:
    process.kill()
"""


@pytest.fixture
def family() -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_children_are_seen_with_their_parent(
    family: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.1)
    announce_phase(tmp_path, "actual")
    began = time.perf_counter()
    outside = Outside(family.pid, tmp_path)
    while len(outside.usage(began)) < 3:
        time.sleep(0.05)
    outside.stop()
    for process in module.look(family.pid).processes:
        os.kill(process.pid, signal.SIGKILL)
    family.communicate()
    for usage in outside.usage(began):
        assert usage["cpu"] > 0.02
        assert 64e6 <= usage["workers_memory"] <= usage["memory"]
        assert usage["phase"] == "actual"
        assert usage["time"] > 0
    assert outside.usage(time.perf_counter()) == []
    assert outside.memory["allowed"] > 0


def test_a_process_that_has_ended_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert own_memory(process.pid) == 0
    Outside(process.pid, tmp_path).stop()


def test_a_child_that_ends_while_children_are_counted_is_left_out(
    family: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (child,) = processes.descendants(family.pid)
    listed = os.listdir

    def list_folder(path: Path) -> list[str]:
        if f"/{child}/" in f"{path}":
            raise FileNotFoundError(path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", list_folder)
    assert processes.descendants(family.pid) == [child]
    for pid in (family.pid, child):
        os.kill(pid, signal.SIGKILL)
    family.communicate()
    assert processes.descendants(family.pid) == []


def test_only_cores_that_may_be_used_are_counted_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    core = namedtuple("core", ["user", "system", "idle", "softirq"])
    cores = [core(10.0 * number, 1.0, 50.0, 0.5) for number in range(4)]
    monkeypatch.setattr(
        psutil, "cpu_times", lambda percpu=False: cores if percpu else core(60.0, 4.0, 200.0, 2.0)
    )
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 3}, raising=False)
    assert processes.busy_seconds() == 10 + 30 + 2 * 1.5
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {60, 61, 62, 63}, raising=False)
    assert processes.busy_seconds() == 60 + 4 * 1.5


def test_children_that_are_gone_took_no_negative_time() -> None:
    before = processes.Times(1.0, 2.0, 9.0, 20.0)
    assert processes.Times(2.0, 3.0, 4.0, 24.0).since(before) == (1.0, 1.0, 0.0, 4.0)


def test_the_gpu_of_these_processes_is_the_one_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = (Gpu(10, 0.9, (1,)), Gpu(20, 0.4, (7, 8)))
    monkeypatch.setattr(module, "gpus", lambda: looks)
    assert busiest_gpu({7}) == (0.4, 20)
    assert busiest_gpu({99}) == (0.9, 10)  # nobody knows whose they are
    monkeypatch.setattr(module, "gpus", tuple)
    assert busiest_gpu({7}) == (None, None)


def test_pages_are_counted_seldom_and_growth_in_between_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = []

    def slowly(pid: int) -> int:
        counted.append(pid)
        time.sleep(0.1)  # the next count is 20 seconds away
        return 1_000_000

    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.05)
    monkeypatch.setattr(module, "own_memory", slowly)
    announce_phase(tmp_path, "actual")
    read = "sys.stdin.readline()"
    grows = f"import sys; {read}; held = bytearray(64_000_000); print(flush=True); {read}"
    process = subprocess.Popen(
        [sys.executable, "-c", grows], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    began = time.perf_counter()
    outside = Outside(process.pid, tmp_path)
    while len(outside.usage(began)) < 2:
        time.sleep(0.05)
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()
    grown = time.perf_counter()
    while len(outside.usage(grown)) < 2:
        time.sleep(0.05)
    outside.stop()
    process.communicate("\n")
    assert counted == [process.pid]
    rows = outside.usage(began)
    assert rows[-1]["memory"] - rows[0]["memory"] >= 63e6


def test_each_phase_is_reported_once_when_it_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.05)
    told: list[str] = []
    outside = Outside(os.getpid(), tmp_path, told.append)
    for phase in ("actual", "", "actual", "demand"):
        announce_phase(tmp_path, phase)
        seen = len(outside.usage(0.0))
        while len(outside.usage(0.0)) < seen + 3:
            time.sleep(0.02)
    outside.stop()
    assert told == ["actual", "demand"]


def test_a_child_that_starts_between_counts_has_no_pages_of_its_own_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To count them takes too long where a loader starts its workers again every few seconds."""
    counted: list[int] = []

    def count(pid: int) -> int:
        counted.append(pid)
        return 5_000_000

    monkeypatch.setattr(module, "own_memory", count)
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 3600.0)
    outside = Outside(os.getpid(), tmp_path)
    process = module.look(os.getpid()).processes[0]
    first = TreeLook(0.0, (process,), 2.0)
    second = TreeLook(0.0, (process, replace(process, pid=process.pid + 1, memory=7_000_000)), 2.0)
    third = TreeLook(0.0, (process, replace(process, pid=process.pid + 1, memory=9_000_000)), 2.0)
    monkeypatch.setattr(module, "SHARE_OF_TIME", 1e-9)
    owned = [outside._own_memory(tree) for tree in (first, second, third)]
    outside.stop()
    assert counted == [process.pid]
    assert owned[1:] == [
        {process.pid: 5_000_000, process.pid + 1: 0},
        {process.pid: 5_000_000, process.pid + 1: 2_000_000},
    ]
