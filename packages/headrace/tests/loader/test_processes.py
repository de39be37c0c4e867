"""Forks, signals, exceptions and exits: no hang, no noise, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from support.python import run_python, start_python

START = """
import gc, os, sys, time, threading, warnings
import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder
import headrace
from support.python import run_python, start_python
warnings.simplefilter("error")
warnings.simplefilter("ignore", DeprecationWarning)
steps = [transforms.RandomResizedCrop(48), transforms.ToTensor()]
dataset = ImageFolder(sys.argv[1], transforms.Compose(steps))
loader = headrace.DataLoader(dataset, batch_size=2, num_workers=2, seed=4)
def threads(): return len(os.listdir("/proc/self/task"))
def files(): return len(os.listdir("/proc/self/fd"))
"""

SCRIPTS = {
    "a forked child finishes the epoch that its parent began": """
whole = [images.clone() for images, _ in loader]
loader.set_epoch(0)
iterator = iter(loader)
first = next(iterator)[0].clone()
pid = os.fork()
rest = torch.cat([first, *(images for images, _ in iterator)])
ok = torch.equal(rest, torch.cat(whole))
if pid == 0:
    os._exit(0 if ok else 1)
assert ok and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
""",
    "a loader made before a fork works in the child": """
list(loader)
pid = os.fork()
n = sum(len(labels) for _, labels in loader)
if pid == 0:
    os._exit(0 if n == 30 else 1)
assert n == 30 and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
""",
    "leaving early fifty times leaves nothing behind": """
def leave(i):
    iterator = iter(loader)
    for _ in range(i % 4):
        next(iterator)
    if i % 3 == 0:
        raise ValueError
def loop():
    for i in range(50):
        try:
            leave(i)
        except ValueError:
            pass
    gc.collect()
    return threads(), files()
before = loop()
assert loop() == before, (loop(), before)
assert loader.stats().in_flight == 0
""",
    "dropped loaders take their threads with them": """
def use():
    other = headrace.DataLoader(dataset, batch_size=2, num_workers=2)
    iterator = iter(other)
    next(iterator)
    return threads()
def left():
    # A thread that has ended may be seen for a moment.
    gc.collect()
    counts = [threads()]
    while len(counts) < 10 or len(set(counts[-10:])) > 1:
        time.sleep(0.02)
        counts.append(threads())
    return counts[-1]
use()  # the process's first iterator also starts the thread that answers headrace top
before = left()
during = use()
assert during >= before + 2, (during, before)
assert left() == before, (threads(), before)
""",
    "the interpreter may end in the middle of an epoch": """
iterator = iter(loader)
next(iterator)
""",
    "two loaders at once, and one inside torch's worker of another": """
from torch.utils.data import DataLoader, Dataset
class Nested(Dataset):
    def __len__(self): return 2
    def __getitem__(self, i): return sum(len(labels) for _, labels in loader)
list(loader)
assert [int(n) for n in DataLoader(Nested(), num_workers=2, multiprocessing_context="fork")] == [30, 30]
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_in_a_process_of_its_own(folder: Path, name: str) -> None:
    done = run_python(START + SCRIPTS[name], folder, teardown=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("where", ["time.sleep(60)", "next(iter(slow))"])
def test_ctrl_c_ends_the_epoch_at_once(folder: Path, where: str) -> None:
    # Whoever runs the tests in the background may have told its children to ignore Ctrl-C.
    script = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
class Slow:
    def __iter__(self):
        time.sleep(60)
        yield [0]
slow = headrace.DataLoader(dataset, batch_sampler=Slow())
for images, labels in loader:
    print("begun", flush=True)
    {where}
"""
    process = start_python(
        START + script, folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, teardown=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    errors = process.communicate(timeout=60)
    assert process.returncode in (1, -signal.SIGINT, 130)
    assert "KeyboardInterrupt" in errors
