"""A program that is in the middle of an epoch when it ends.

python exits.py WAY KIND METHOD FOLDER

WAY: how it ends; KIND: what makes its batches; METHOD: how worker processes start, none where there
are none; FOLDER: of images. It has a
session of its own, prints "there" in the middle of its epoch, and continues once it reads a line.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tests"))

import headrace
from support.unknown import Jitter

SAMPLES, BATCH, WORKERS = 60, 3, 2
SIZE = 20_000  # floats of a sample, so that a batch travels in shared memory


class LeavingError(Exception):
    """How the loop is left."""


class Plain(Dataset[Any]):
    """Runs as Python."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((SIZE,), float(index))


class Stream(IterableDataset[Any]):
    """The same, in an order of its own."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(SAMPLES):
            yield torch.full((SIZE,), float(index))


def make_loader(kind: str, method: str, folder: str) -> headrace.DataLoader[Any]:
    steps = [transforms.RandomResizedCrop(32), transforms.ToTensor()]
    datasets: dict[str, Callable[[], Any]] = {
        "native": lambda: ImageFolder(folder, transforms.Compose(steps)),
        "unknown": lambda: ImageFolder(folder, transforms.Compose([steps[0], Jitter(0.4), steps[1]])),
        "gather": lambda: TensorDataset(torch.rand(SAMPLES, 10)),
        "stream": Stream,
    }
    options: dict[str, Any] = {"num_workers": 0 if "caller" in kind or kind == "gather" else WORKERS}
    if method != "none":
        options["multiprocessing_context"] = method
    if kind == "thread":
        options["worker_kind"] = "thread"
    if kind == "kept":
        options["persistent_workers"] = True
    dataset = datasets.get(kind.partition(",")[0], Plain)()
    return headrace.DataLoader(dataset, BATCH, **options)


def begin(loader: headrace.DataLoader[Any]) -> Iterator[Any]:
    """An epoch, once each worker has made a batch."""
    iterator: Iterator[Any] = iter(loader)
    for _ in range(WORKERS):
        next(iterator)
    return iterator


def say_there() -> None:
    os.write(1, b"there\n")
    sys.stdin.readline()


def in_a_thread(loader: headrace.DataLoader[Any], *, daemon: bool) -> None:
    """A thread leaves an epoch, or, as a daemon, is in one when the interpreter ends."""
    started = threading.Event()

    def loop() -> None:
        iterator = begin(loader)
        started.set()
        while daemon:
            for _ in iterator:
                pass
            iterator = iter(loader)

    thread = threading.Thread(target=loop, daemon=daemon)
    thread.start()
    started.wait()
    say_there()


def in_a_fork(loader: headrace.DataLoader[Any]) -> Iterator[Any]:
    """A forked process begins an epoch of its own, and ends as an interpreter does; the epoch continues."""
    iterator = begin(loader)
    say_there()
    with warnings.catch_warnings():
        # Python 3.12 and newer warn of every fork of a process that has threads.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            for _ in loader:
                break
        except headrace.ConfigError as error:
            # multiprocessing's fork server belongs to the process that has started it.
            if loader.multiprocessing_context.get_start_method() != "forkserver":
                raise
            assert "forked (os.fork)" in str(error)  # noqa: PT017
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    streamed = isinstance(loader.dataset, IterableDataset)  # each worker gives all of it
    whole = WORKERS * SAMPLES // BATCH if streamed else len(loader)
    left = len(list(iterator))
    assert left == whole - WORKERS, left
    return begin(loader)


def leave(way: str, loader: headrace.DataLoader[Any]) -> Any:
    """Ends in the middle of an epoch; what is returned lives as long as the module."""
    if way in ("thread", "daemon thread"):
        return in_a_thread(loader, daemon=way == "daemon thread")
    if way == "atexit":
        held: list[Any] = []

        def begin_late() -> None:
            held.append(begin(loader))
            say_there()

        atexit.register(begin_late)
        return held
    if way == "fork":
        return in_a_fork(loader)
    iterator = begin(loader)
    say_there()
    if way == "sys.exit":
        sys.exit(3)
    if way == "exception":
        raise LeavingError
    if way == "os._exit":
        os._exit(4)
    while way in ("SIGINT", "SIGTERM"):  # which comes from outside
        for _ in iterator:
            pass
        iterator = iter(loader)
    return iterator


if __name__ == "__main__":
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)  # a forked process must find no threads of torch's
    tempfile.tempdir = None  # this process may be a fork of one with another TMPDIR
    held = leave(sys.argv[1], make_loader(*sys.argv[2:5]))
