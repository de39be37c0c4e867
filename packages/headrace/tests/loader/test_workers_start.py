"""Worker processes start, are handed the dataset, and end."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.engine.workers import start
from headrace.engine.workers.start import SharedPickle
from support.jpegs import image_folder
from support.processes import exit_of_fork
from support.python import run_python, start_python

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Table(Dataset[Any]):
    """A dataset of all kinds of members that are handed over in different ways."""

    def __init__(self, count: Path | None = None) -> None:
        self.count = count
        self.names = [f"{i:06}" for i in range(3000)]
        self.array = np.arange(30_000, dtype=np.float64)
        self.fortran = np.asfortranarray(np.arange(20_000).reshape(100, 200))
        self.small = np.arange(3000)[::-1]
        self.tensor = torch.arange(30_000.0)
        self.view = self.tensor[100:]
        self.image = torch.nn.Parameter(torch.arange(8000.0).reshape(80, 100))
        self.counter = multiprocessing.get_context("spawn").Value("i", 0)
        self.shared = torch.zeros(1).share_memory_()
        self.empty = torch.empty(0), np.empty(0)
        self.step = functools.partial(scaled, by=2)

    def __getstate__(self) -> dict[str, Any]:
        if self.count is not None:
            with self.count.open("a") as file:
                file.write("x")
        return self.__dict__

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, index: int) -> tuple[float, ...]:
        with self.counter.get_lock():
            self.counter.value += 1
        self.shared[0] = 7
        return (
            float(self.names[index]) + self.array[index] + self.small[index] + float(self.tensor[index]),
            float(self.view[index]) + float(self.image.detach()[index % 80, index % 100]),
            float(self.fortran[index % 100, index % 200]),
            self.step(index),
        )


def scaled(value: float, by: float) -> float:
    return by * value


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.long), "forkserver"])
def test_workers_get_the_dataset_pickled_once(method: str, tmp_path: Path) -> None:
    table = Table(tmp_path / "count")
    subset = Subset(table, range(60))
    loader = headrace.DataLoader(
        subset, batch_size=4, num_workers=2, worker_kind="process", multiprocessing_context=method
    )
    batches = [[part.tolist() for part in batch] for batch in loader]
    assert (tmp_path / "count").read_text() == "x"
    assert table.counter.value == 60  # the same counter in all processes
    assert int(table.shared) == 7
    here = torch.utils.data.DataLoader(subset, batch_size=4)
    assert batches == [[part.tolist() for part in batch] for batch in here]
    if method == "forkserver":  # other processes; to spawn them again takes seconds
        assert [[part.tolist() for part in batch] for batch in loader] == batches


def pickled_and_back(*values: Any) -> tuple[Any, ...]:
    """In this process, as in one that was handed it."""
    shared = SharedPickle({str(i): value for i, value in enumerate(values)})

    class Handed:
        def __init__(self, fd: int) -> None:
            self.fd = os.dup(fd)

        def detach(self) -> int:
            return self.fd

    arrived = start._Arrived(Handed(shared._stream), Handed(shared._buffers), shared._order, shared._beside)
    shared.close()
    loaded: tuple[Any, ...] = arrived.load()
    return loaded


def test_arrays_and_tensors_arrive_writable_and_their_own() -> None:
    array, tensor = np.arange(10_000), torch.arange(10_000)
    first = pickled_and_back(array, tensor)
    first[0][0] = -1
    first[1][0] = -1
    assert array[0] == 0
    assert tensor[0] == 0
    assert np.array_equal(first[0][1:], array[1:])
    assert torch.equal(first[1][1:], tensor[1:])


def test_tensors_on_one_storage_stay_so() -> None:
    tensor = torch.arange(10_000.0)
    a, b = pickled_and_back([tensor, tensor[10:20]])[0]
    a[10] = -1
    assert b[0] == -1
    assert b.storage_offset() == 10


def test_no_files_stay_open() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    pickled_and_back(np.arange(10_000))
    with pytest.raises(headrace.ConfigError):
        SharedPickle({"dataset": lambda: 0})
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


class Holder(Dataset[Any]):
    def __init__(self, member: Any) -> None:
        self.transform = member

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def local_class() -> Any:
    class Local:
        pass

    return Local()


UNPICKLABLE = {
    "a lambda in a transform": (
        lambda: transforms.Compose([transforms.Lambda(scaled), transforms.Lambda(lambda x: x)]),
        r"dataset can't be pickled: .*lambda.*Use functions and classes of a module.*'fork'",
    ),
    "a lock": (lambda: {"locks": [threading.Lock()]}, r"dataset can't be pickled: .*lock"),
    "a file": (
        lambda: open(os.devnull),  # noqa: SIM115
        "dataset can't be pickled: .*TextIOWrapper",
    ),
    "a class made in a function": (local_class, r"dataset can't be pickled: .*local_class\.<locals>\.Local"),
}


@pytest.mark.parametrize("name", UNPICKLABLE)
def test_an_unpicklable_member_is_named_before_a_process_starts(name: str) -> None:
    make, message = UNPICKLABLE[name]
    member = make()
    dataset = Subset(Holder(member), range(4))
    loader = headrace.DataLoader(
        dataset, num_workers=2, worker_kind="process", multiprocessing_context="spawn"
    )
    before = multiprocessing.active_children()
    with pytest.raises(headrace.ConfigError, match=message):
        iter(loader)
    assert multiprocessing.active_children() == before
    forked = headrace.DataLoader(
        dataset, num_workers=2, worker_kind="process", multiprocessing_context="fork"
    )
    assert len(list(forked)) == 4
    getattr(member, "close", int)()


def test_collate_and_worker_init_are_named_too() -> None:
    for name in ("collate_fn", "worker_init_fn"):
        options: dict[str, Any] = {name: lambda given: given}
        loader = headrace.DataLoader(
            Holder(0), num_workers=1, worker_kind="process", multiprocessing_context="spawn", **options
        )
        with pytest.raises(headrace.ConfigError, match=f"^{name} can't be pickled: .*lambda"):
            iter(loader)


class FailsToLoad(Holder):
    def __setstate__(self, state: Any) -> None:
        raise OSError("no such licence server")


def test_an_error_of_unpickling_is_the_first_batch_s() -> None:
    loader = headrace.DataLoader(
        FailsToLoad(0), num_workers=1, worker_kind="process", multiprocessing_context="forkserver"
    )
    with pytest.raises(OSError, match="no such licence server"):
        next(iter(loader))


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


def test_a_forked_child_gets_the_batches_that_were_in_flight(tmp_path: Path) -> None:
    """The fork comes right after the start, when the first batch is far from complete."""
    steps = [transforms.RandomResizedCrop(200, scale=(0.9, 1.0)), transforms.ToTensor()]
    dataset = ImageFolder(str(image_folder(tmp_path, 32, side=800)), transforms.Compose(steps))
    expected = list(headrace.DataLoader(dataset, batch_size=32, seed=2))
    batches = iter(headrace.DataLoader(dataset, batch_size=32, seed=2))

    def check() -> None:
        assert torch.equal(next(batches)[0], expected[0][0])

    assert exit_of_fork(check) == 0
    check()
