"""A process and its children, seen from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from headrace_doctor.measure import outside as module
from headrace_doctor.measure import processes
from headrace_doctor.measure.outside import Outside, own_memory
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
    parent = psutil.Process(family.pid)
    for process in (*parent.children(), parent):
        process.kill()
    family.communicate()
    # On a busy machine they may get no core for as long as an interval.
    assert sum(usage["cpu"] for usage in outside.usage(began)) > 0.02
    for usage in outside.usage(began):
        assert 64e6 <= usage["workers_memory"] <= usage["memory"]
        assert usage["phase"] == "actual"
        assert usage["time"] > 0
    assert outside.usage(time.perf_counter()) == []
    assert outside.memory["allowed"] > 0


def test_a_process_that_has_ended_holds_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    ended = psutil.Process(process.pid)
    process.wait()
    assert own_memory(process.pid) == 0
    assert processes.family(ended) == {}


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
