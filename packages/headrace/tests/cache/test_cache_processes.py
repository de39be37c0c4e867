"""Several processes on one cache, and those that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

import headrace
from headrace.cache import Cache, Claim
from support.cache_records import BLOCK, bytes_on_disk, content, put, record
from support.processes import exit_of_fork

TESTS = Path(__file__).parents[4] / "tests"
USER = TESTS / "support" / "cache_user.py"
SOURCES = f"{Path(headrace.__file__).parent.parent}{os.pathsep}{TESTS}"
LONG = 60.0  # seconds that nothing here takes


User = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def user() -> Iterator[User]:
    """Starts a process that needs all `records` in each epoch; see cache_user.py."""
    started: list[subprocess.Popen[str]] = []

    def start(
        folder: Path, capacity: int, records: int, batch: int, seed: int, epochs: int, dataset: str = "memory"
    ) -> subprocess.Popen[str]:
        numbers = map(str, (capacity, records, batch, seed, epochs))
        process = subprocess.Popen(
            [sys.executable, USER, folder, *numbers, folder.parent / "fetched", dataset],
            env={**os.environ, "PYTHONPATH": SOURCES},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:  # a test that failed
            process.kill()
            process.communicate()


class Children:
    """Processes that a test forks."""

    def __init__(self) -> None:
        self.left: list[int] = []

    def fork(self, work: Callable[[], Any]) -> int:
        """One that does `work`, and never comes back to the test."""
        pid = os.fork()
        if pid == 0:
            try:
                work()
            finally:
                os._exit(1)
        self.left.append(pid)
        return pid

    def kill(self, pid: int) -> None:
        """It, and nobody else."""
        self.left.remove(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.fixture
def children() -> Iterator[Children]:
    """All of which have ended after the test."""
    made = Children()
    yield made
    for pid in list(made.left):
        made.kill(pid)


def finish(users: list[subprocess.Popen[str]]) -> None:
    for process in users:
        _, errors = process.communicate(timeout=LONG)
        assert process.returncode == 0, errors


def fetched(folder: Path) -> Counter[int]:
    """How often each record was."""
    return Counter(map(int, (folder.parent / "fetched").read_text().split()))


def bytes_at_a_moment(folder: Path, users: list[subprocess.Popen[str]]) -> int:
    """Of the records on disk, while all processes are stopped."""
    for process in users:
        process.send_signal(signal.SIGSTOP)
    until(lambda: all(p.poll() is not None or psutil.Process(p.pid).status() == "stopped" for p in users))
    total = bytes_on_disk(folder)
    for process in users:
        process.send_signal(signal.SIGCONT)
    return total


def until(holds) -> None:
    """Wait for it."""
    deadline = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_two_processes_fetch_each_record_once(user: User, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    finish([user(folder, 10_000 * BLOCK, 400, 16, seed, 2) for seed in (1, 2)])
    assert fetched(folder) == Counter(range(400))


def test_the_bound_holds_while_several_work(user: User, tmp_path: Path) -> None:
    """300 records of 525 blocks, looked at from outside, of two jobs with data of their own."""
    folder = tmp_path / "cache"
    blocks = 150
    users = [user(folder, blocks * BLOCK, 300, 8, seed, 2, f"data {seed % 2}") for seed in range(3)]
    most = 0
    while any(process.poll() is None for process in users):
        most = max(most, bytes_at_a_moment(folder, users))
        time.sleep(0.01)
    finish(users)
    assert blocks // 2 * BLOCK < most <= blocks * BLOCK
    assert all(count <= 6 for count in fetched(folder).values())


def test_kills_at_random_moments_leave_it_usable_and_bounded(user: User, tmp_path: Path) -> None:
    """Twenty, while another process continues."""
    folder = tmp_path / "cache"
    random = Random(0)
    capacity = 200 * BLOCK
    steady = user(folder, capacity, 300, 8, 0, 10_000)
    until(lambda: (tmp_path / "fetched").exists())
    for kill in range(20):
        victim = user(folder, capacity, 300, 8, 1 + kill, 10_000, f"data {kill % 2}")
        assert victim.stdout is not None
        assert victim.stdout.readline() == "open\n", victim.stderr and victim.stderr.read()
        time.sleep(random.random() * 0.1)
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        assert bytes_at_a_moment(folder, [steady]) <= capacity
        assert steady.poll() is None, steady.communicate()
    steady.kill()
    steady.communicate()
    finish([user(folder, capacity, 300, 8, 99, 2)])
    with_nobody = Cache(folder, capacity)
    stats = with_nobody.stats()
    assert bytes_on_disk(folder) == stats.bytes <= capacity
    # Nobody uses anything: all of it can go.
    put(with_nobody, list(range(1000, 1200)), "new")
    assert with_nobody.stats().records == 200
    with_nobody.close()
    assert list(folder.glob("datasets/*/*/*.*")) == [], "claims or parts are left"


def test_another_process_fetches_the_records_of_a_killed_one(children: Children, tmp_path: Path) -> None:
    """What it had written of them is never taken for whole."""
    folder = tmp_path / "cache"
    ready, told = os.pipe()

    def work() -> None:
        one = Cache(folder, 2 * BLOCK)
        put(one, [0], "its own")
        one.claim([record(1)])
        (claimed,) = folder.glob("datasets/*/*/*.claim")
        claimed.with_suffix(".part").write_bytes(content(1)[:1000])
        os.write(told, b".")
        signal.pause()

    child = children.fork(work)
    os.close(told)
    assert os.read(ready, 1)
    cache = Cache(folder, 2 * BLOCK)
    assert cache.claim([record(1), record(2)]) == [Claim("other"), Claim("full")]
    children.kill(child)
    # Neither the place of what it was fetching nor what it used is lost.
    assert cache.claim([record(1), record(2)]) == [Claim("mine"), Claim("mine")]
    (path, _) = cache.add([record(1), record(2)], [content(1), content(2)])
    assert path is not None
    assert Path(path).read_bytes() == content(1)
    assert bytes_on_disk(folder) == cache.stats().bytes == 2 * BLOCK
    cache.close()
    os.close(ready)


def test_a_forked_child_is_another_client(tmp_path: Path) -> None:
    """It can't lose what the parent uses or fetches; the parent continues."""
    cache = Cache(tmp_path, 3 * BLOCK)
    put(cache, [0])
    cache.claim([record(1)])

    def use() -> None:
        assert cache.claim([record(0), record(1)])[1] == Claim("other")
        put(cache, [2])

    assert exit_of_fork(use) == 0
    assert cache.add([record(1)], [content(1)]) != [None]
    assert [claim.state for claim in cache.claim([record(n) for n in range(3)])] == ["ready"] * 3
    cache.close()


def test_a_child_that_outlives_its_parent_keeps_the_parents_data_for_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    ready, told = os.pipe()
    parent = os.fork()
    if parent == 0:
        one = Cache(folder, 2 * BLOCK)
        put(one, [0, 1])
        grandchild = os.fork()
        if grandchild == 0:
            signal.pause()
        os.write(told, f"{grandchild}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    grandchild = int(os.read(ready, 100))
    os.waitpid(parent, 0)
    cache = Cache(folder, 2 * BLOCK)
    try:
        assert cache.claim([record(2, dataset="other")]) == [Claim("mine")]
    finally:
        os.kill(grandchild, signal.SIGKILL)
    cache.close()
    os.close(ready)
    os.close(told)
