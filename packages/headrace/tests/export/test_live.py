"""What a job answers from outside: the truth, to its own user only, and at no risk for the job."""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.export import live
from headrace.export.live import Job, address, jobs
from support.jpegs import image_folder
from support.python import start_python

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def names(pid: int) -> set[str]:
    """Of the sockets that a process of this user's listens on."""
    own = f"@headrace/{os.geteuid()}/{pid}-"
    lines = Path("/proc/net/unix").read_text().splitlines()
    return {"\0" + line.split()[-1][1:] for line in lines if line.split()[-1].startswith(own)}


def ask(pid: int) -> dict[str, Any]:
    [job] = [job for job in jobs() if job.pid == pid]
    answer = job.ask()
    assert answer is not None
    return answer


def own_answer(dataset: Dataset[Any]) -> list[dict[str, Any]]:
    """Of this process, of its loaders over datasets of this one's class."""
    return [one for one in ask(os.getpid())["loaders"] if one["dataset"] == type(dataset).__name__]


class Rows(TensorDataset):
    """Of this module's own class: loaders of other tests may still be alive."""


class Script:
    """A program that runs until it is to continue, and prints a line of JSON for each thing it reports."""

    def __init__(self, text: str, **environment: str) -> None:
        self.process = start_python(
            text, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment}
        )

    def says(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.close()


@pytest.fixture
def script() -> Iterator[Callable[..., Script]]:
    begun: list[Script] = []

    def begin(text: str, **environment: str) -> Script:
        begun.append(Script(text, **environment))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()


def test_the_answer_is_what_stats_says(tmp_path: Path) -> None:
    steps = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()])
    dataset = ImageFolder(str(image_folder(tmp_path, 24, side=60)), steps)
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    stats = loader.stats()
    [answer] = [one for one in own_answer(dataset) if one["memory_allowed"] == loader.memory_budget]
    for name in ("batches", "samples", "startup_seconds", "stall_seconds", "epochs_begun", "memory_allowed"):
        assert answer[name] == getattr(stats, name)
    epoch = answer["epoch"]
    assert (epoch["state"], epoch["number"], epoch["batches"], epoch["length"]) == ("running", 0, 3, 6)
    assert epoch["stall_share"] == stats.epochs[-1].stall_share
    assert epoch["depth"] == 4
    assert [stage["name"] for stage in answer["stages"]] == [stage.name for stage in stats.stages]
    assert answer["waiting_seconds"] == 0


def test_a_resumed_epoch_reports_skipped_batches() -> None:
    dataset = Rows(torch.arange(40))
    first = headrace.DataLoader(dataset, 4, shuffle=True, num_workers=0)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    state = first.state_dict()
    del first, iterator
    gc.collect()
    loader = headrace.DataLoader(dataset, 4, shuffle=True, num_workers=0)
    loader.load_state_dict(state)
    iterator = iter(loader)
    next(iterator)
    [answer] = own_answer(dataset)
    assert (answer["epoch"]["skipped"], answer["epoch"]["batches"], answer["epoch"]["length"]) == (3, 1, 10)


class Stuck(Dataset[int]):
    """The second sample comes once it is let go."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        if index == 1:
            self.reached.set()
            self.go.wait()
        return index


def test_a_step_that_waits_is_seen_to_wait() -> None:
    dataset = Stuck()
    loader = headrace.DataLoader(dataset, num_workers=0)
    loop = threading.Thread(target=lambda: list(loader))
    loop.start()
    dataset.reached.wait()
    [first], [second] = own_answer(dataset), own_answer(dataset)
    dataset.go.set()
    loop.join()
    [after] = own_answer(dataset)
    assert 0 < first["waiting_seconds"] < second["waiting_seconds"]
    assert first["batches"] == second["batches"] == 1
    assert (after["waiting_seconds"], after["batches"], after["epoch"]["state"]) == (0, 3, "finished")


# In a process of its own: what other tests open or close meanwhile must not count.
THOUSAND = """
import gc, os, torch, headrace
from headrace.export import live
from torch.utils.data import TensorDataset

def left():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), len(live._loaders)

dataset = TensorDataset(torch.arange(4))
list(headrace.DataLoader(dataset))
before = left()
for _ in range(1000):
    list(headrace.DataLoader(dataset))
assert left() == before, (left(), before)
with open("/proc/net/unix") as file:
    own = [line for line in file if f"@headrace/{os.geteuid()}/{os.getpid()}-" in line]
assert len(own) == 1, own
"""


def test_a_thousand_loaders_leave_nothing_and_are_not_kept() -> None:
    done = subprocess.run([sys.executable, "-c", THOUSAND], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_who_never_reads_keeps_nobody_out() -> None:
    loader = headrace.DataLoader(Rows(torch.arange(8)), num_workers=0)
    list(loader)
    [name] = names(os.getpid())
    mute = [socket.socket(socket.AF_UNIX) for _ in range(5)]
    for connection in mute:
        connection.connect(name)
    assert ask(os.getpid())["format"] == 1
    for connection in mute:
        connection.close()


def as_nobody(do: Callable[[], bool]) -> bool:
    """What `do` says in a process of another user's."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            code = 0 if do() else 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 1)
    return code == 0


@as_root
def test_another_user_is_told_nothing() -> None:
    loader = headrace.DataLoader(Rows(torch.arange(8)), num_workers=0)
    list(loader)
    [name] = names(os.getpid())

    def told() -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(name)
            return connection.recv(1) != b""

    assert not as_nobody(told)
    assert not as_nobody(lambda: bool(jobs()))
    assert ask(os.getpid())["format"] == 1


@as_root
def test_another_user_is_not_believed() -> None:
    """Who listens under a name that says it is ours is neither listed nor read."""
    name = f"{address(os.geteuid())}1-planted"
    ready, wait = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(NOBODY)
            planted = socket.socket(socket.AF_UNIX)
            planted.bind(name)
            planted.listen()
            os.write(ready[1], b"x")
            os.read(wait[0], 1)
        finally:
            os._exit(0)
    assert os.read(ready[0], 1) == b"x"
    try:
        assert pid not in [job.pid for job in jobs()]
        assert Job(pid, name).ask() is None
    finally:
        os.write(wait[1], b"x")
        os.waitpid(pid, 0)
        for end in (*ready, *wait):
            os.close(end)


LOOP = """
import json, os, sys, torch, headrace
from torch.utils.data import TensorDataset
loader = headrace.DataLoader(TensorDataset(torch.arange(40)), batch_size=4)
iterator = iter(loader)
next(iterator)
"""


def test_a_killed_job_leaves_nothing(script: Callable[..., Script]) -> None:
    job = script(LOOP + "print(os.getpid(), flush=True); sys.stdin.readline()")
    pid = job.says()
    assert ask(pid)["loaders"][0]["batches"] == 1
    job.process.kill()
    job.process.wait()
    assert names(pid) == set()
    assert pid not in [one.pid for one in jobs()]


def test_a_forked_child_answers_for_itself_only(script: Callable[..., Script]) -> None:
    job = script(
        LOOP
        + """
child = os.fork()
if child == 0:
    loader = headrace.DataLoader(TensorDataset(torch.arange(40)), batch_size=5)
    assert not any(os.readlink(f"/proc/self/fd/{fd}").startswith("socket") for fd in range(3, 20)
                   if os.path.islink(f"/proc/self/fd/{fd}")), "the parent's socket is still open"
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    list(loader)
    print(os.getpid(), flush=True)
    sys.stdin.readline()
    os._exit(0)
os.waitpid(child, 0)
print(os.getpid(), flush=True)
sys.stdin.readline()
"""
    )
    child, parent = job.says(), job.process.pid
    assert names(child) == set()
    assert ask(parent)["loaders"][0]["batch_size"] == 4
    job.go_on()
    assert job.says() == child
    [answer] = ask(child)["loaders"]
    assert (answer["batch_size"], answer["batches"], answer["number"] > 1) == (5, 8, True)
    assert ask(parent)["loaders"][0]["batch_size"] == 4
    job.go_on()
    assert job.says() == parent
    assert names(child) == set()
    assert ask(parent)["loaders"][0]["batch_size"] == 4
    job.go_on()
    assert job.process.wait(60) == 0


@pytest.mark.parametrize("value", ["0", "1"])
def test_it_can_be_switched_off(script: Callable[..., Script], value: str) -> None:
    job = script(
        LOOP
        + """
import threading
print(json.dumps([thread.name for thread in threading.enumerate()]), flush=True)
sys.stdin.readline()
""",
        HEADRACE_TOP=value,
    )
    assert ("headrace-top" in job.says()) == (value == "1")
    assert len(names(job.process.pid)) == int(value)


@pytest.mark.parametrize("broken", ["socket", "thread"])
def test_training_goes_on_where_it_cant_listen(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise (
            OSError("no such sockets here") if broken == "socket" else RuntimeError("can't start new thread")
        )

    if broken == "socket":
        monkeypatch.setattr(live.socket, "socket", fail)
    else:
        monkeypatch.setattr(live.threading, "Thread", fail)
    monkeypatch.setattr(live, "_listener", cache(live._listener.__wrapped__))
    with caplog.at_level(logging.DEBUG, logger="headrace"):
        assert len(list(headrace.DataLoader(Rows(torch.arange(8)), 2, num_workers=0))) == 4
    assert "headrace top won't see this process" in caplog.text
