"""`headrace top` beside real training loops in other processes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import Result

from headrace.export import jobs
from headrace_doctor.cli.top import roots
from support.command import run_command
from support.jpegs import image_folder
from support.python import start_python

TOP = [sys.executable, "-c", "import headrace.cli; headrace.cli.main()", "top"]

TRAINING = """
import json, sys
import headrace
from torchvision import transforms
from torchvision.datasets import ImageFolder

steps = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
loader = headrace.DataLoader(ImageFolder(sys.argv[1], steps), batch_size=4, shuffle=True, num_workers=2)
done = 0
for epoch in range(2):
    for images, labels in loader:
        done += 1
        if done == 8:
            print("there", flush=True)
            sys.stdin.readline()
print(json.dumps(loader.stats().to_json()), flush=True)
"""

TORCH_ONLY = """
import sys
from torch.utils.data import DataLoader
iterator = iter(DataLoader(range(100), num_workers=2))
next(iterator)
print("there", flush=True)
sys.stdin.readline()
"""

ONE_BATCH = """
import sys, headrace, torch
from torch.utils.data import TensorDataset
iterator = iter(headrace.DataLoader(TensorDataset(torch.arange(8))))
next(iterator)
print("there", flush=True)
sys.stdin.readline()
"""

NO_LOADER = """
import sys
print("there", flush=True)
sys.stdin.readline()
"""

RANKS = """
import os, sys
import headrace, torch
from torch.utils.data import TensorDataset

def rank(number, ready, end):
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE="2")
    loader = headrace.DataLoader(TensorDataset(torch.arange(80)), batch_size=4, rank="auto")
    for batch in loader:
        break
    os.write(ready, b"x")
    os.read(end, 1)

(ready, say), (wait, end) = os.pipe(), os.pipe()
for number in range(2):
    if os.fork() == 0:
        os.close(end)
        rank(number, say, wait)
        os._exit(0)
for _ in range(2):
    os.read(ready, 1)
print("there", flush=True)
sys.stdin.readline()
"""


class Job:
    """A script that runs until it says that it is there, and on once it is told to."""

    def __init__(self, path: Path, text: str, *arguments: str) -> None:
        path.write_text(text)
        self.process = start_python(path, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "there\n"
        self.pid = self.process.pid

    def finish(self) -> str:
        """What it says at its end."""
        return self.process.communicate("\n", timeout=120)


Begin = Callable[..., Job]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    begun: list[Job] = []

    def make(text: str, *arguments: str) -> Job:
        begun.append(Job(tmp_path / f"job{len(begun)}.py", text, *arguments))
        return begun[-1]

    yield make
    for one in begun:
        one.process.close()


def top(*arguments: str) -> Result:
    """The command in this process, which is another one than the job's."""
    return run_command("top", "--interval", "0.1", *arguments, columns=80)


def test_what_another_process_sees_is_what_stats_says(begin: Begin, tmp_path: Path) -> None:
    job = begin(TRAINING, str(image_folder(tmp_path / "images", 24, side=60)))
    seen = top("--once", "--json", "-", str(job.pid))
    text = top(str(job.pid))
    stats = json.loads(job.finish())

    assert seen.exit_code == 0, seen.stderr
    frame = json.loads(seen.stdout)
    [rank] = frame["ranks"]
    [loader] = rank["loaders"]
    assert (rank["pid"], rank["rank"]) == (job.pid, None)
    assert frame["pid"] == job.pid
    # It stood at the eighth of twelve batches: the second of the second epoch.
    assert (loader["epoch"], loader["batches"], loader["length"], loader["samples"]) == (1, 2, 6, 32)
    assert (loader["state"], loader["depth"], loader["batch_size"]) == ("running", 4, 4)
    assert (stats["samples"], stats["epochs"][1]["batches"]) == (48, 6)
    assert loader["memory_allowed"] == stats["memory_allowed"]
    assert loader["memory_used"] > 0

    assert text.exit_code == 0, text.stderr
    assert "\x1b" not in text.stdout, "not a terminal: one frame, as --once"
    assert f"headrace top  pid {job.pid}, up " in text.stdout
    assert "1: ImageFolder" in text.stdout
    assert "1, batch 2 of 6" in text.stdout


def test_the_end_agrees_with_stats(begin: Begin) -> None:
    job = begin(
        """
import json, sys, time, torch, headrace
from torch.utils.data import TensorDataset
loader = headrace.DataLoader(TensorDataset(torch.arange(100)), batch_size=4)
for batch in loader:
    time.sleep(0.001)
print("there", flush=True)
sys.stdin.readline()
print(json.dumps(loader.stats().to_json()), flush=True)
"""
    )
    seen = top("--json", "-", str(job.pid))
    stats = json.loads(job.finish())
    [loader] = json.loads(seen.stdout)["ranks"][0]["loaders"]
    [epoch] = stats["epochs"]
    after = epoch["seconds"] - epoch["startup_seconds"]
    assert loader["samples"] == loader["epoch_samples"] == stats["samples"] == 100
    assert loader["state"] == epoch["state"] == "finished"
    assert loader["epoch_samples_per_second"] == pytest.approx(100 / epoch["seconds"])
    assert loader["epoch_stall"] == pytest.approx(stats["stall_seconds"] / after)


def test_of_torchs_loader_it_shows_what_can_be_seen(begin: Begin) -> None:
    job = begin(TORCH_ONLY)
    seen = top(str(job.pid))
    assert seen.exit_code == 0, seen.stderr
    assert "2 more processes" in seen.stdout, "its workers"
    assert "headrace doctor run SCRIPT" in " ".join(seen.stdout.split())


def test_a_job_that_is_stopped_is_said_not_to_answer(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.export.live.PATIENCE", 0.3)
    job = begin(ONE_BATCH)
    os.kill(job.pid, signal.SIGSTOP)
    seen = top(str(job.pid))
    assert seen.exit_code == 0, seen.stderr
    assert f"process {job.pid} doesn't answer" in seen.stdout
    os.kill(job.pid, signal.SIGCONT)


def test_another_versions_answer_is_refused_with_the_way_out(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.export.live.FORMAT", 2)
    job = begin(ONE_BATCH)
    seen = top(str(job.pid))
    assert seen.exit_code == 2
    assert f"process {job.pid} runs another version of Headrace" in seen.stderr


def test_ranks_of_one_launcher_are_one_job(begin: Begin) -> None:
    job = begin(RANKS)
    children = {one.pid for one in psutil.Process(job.pid).children()}
    seen = json.loads(top("--json", "-", str(job.pid)).stdout)
    assert [(one["rank"], one["local_rank"], one["world_size"]) for one in seen["ranks"]] == [
        (0, 0, 2),
        (1, 1, 2),
    ]
    assert {one["pid"] for one in seen["ranks"]} == children
    assert roots(one for one in jobs() if one.pid in children) == [job.pid]
    text = top(str(job.pid)).stdout
    assert all(str(pid) in text for pid in children)


def test_without_a_job_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_doctor.cli.top.running", lambda known: [])
    done = top()
    assert done.exit_code == 2
    assert "no running Headrace jobs found for this user" in done.stderr
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = top(str(gone.pid))
    assert done.exit_code == 2
    assert f"there is no process {gone.pid}" in done.stderr


def test_several_jobs_are_listed(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = [begin(NO_LOADER).pid for _ in range(2)]
    monkeypatch.setattr("headrace_doctor.cli.top.roots", lambda found: pids)
    done = top()
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[:2]] == [str(pid) for pid in pids]
    assert "headrace top PID" in done.stdout
    assert [row["pid"] for row in json.loads(top("--json", "-").stdout)] == pids


class Terminal:
    """`headrace top` on a terminal of 80 by 24."""

    def __init__(self, pid: int) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        ends: Any = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
        command = [*TOP, "--interval", "0.2", str(pid)]
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, **ends)
        self.seen = b""

    def read_until(self, words: bytes) -> None:
        while words not in self.seen:
            assert select.select([self.master], [], [], 120)[0], self.seen
            self.seen += os.read(self.master, 65536)

    def end(self) -> int:
        """Its exit code, once all that it wrote is read."""
        while self.process.poll() is None:
            if select.select([self.master], [], [], 0.05)[0]:
                self.seen += os.read(self.master, 65536)
        while select.select([self.master], [], [], 0.05)[0]:
            self.seen += os.read(self.master, 65536)
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def terminal() -> Iterator[Callable[[int], Terminal]]:
    opened: list[Terminal] = []

    def make(pid: int) -> Terminal:
        opened.append(Terminal(pid))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


ALTERNATE, NORMAL, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


@pytest.mark.parametrize("how", ["ctrl-c", "terminated", "the job ends"])
def test_it_ends_and_gives_the_terminal_back(
    begin: Begin, terminal: Callable[[int], Terminal], how: str
) -> None:
    job = begin(NO_LOADER)
    view = terminal(job.pid)
    view.read_until(b"headrace top")
    assert ALTERNATE in view.seen
    if how == "ctrl-c":
        view.process.send_signal(signal.SIGINT)
    elif how == "terminated":
        view.process.terminate()
    else:
        job.process.kill()
        job.process.wait()
    assert view.end() == 0
    assert termios.tcgetattr(view.slave) == view.before
    last = max(view.seen.rfind(ALTERNATE), 0)
    assert view.seen.find(NORMAL, last) > 0
    assert view.seen.rfind(SHOW_CURSOR) > 0
    assert (f"Process {job.pid} has ended".encode() in view.seen) == (how == "the job ends")
    assert b"Traceback" not in view.seen
