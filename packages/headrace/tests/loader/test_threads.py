"""Map-style datasets on Python threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Subset

import headrace
from headrace.engine.thread_pool import ThreadPool
from support.equal import same
from support.processes import exit_of_fork


class Waiting(Dataset[Any]):
    """Samples that wait for a time that depends on their index."""

    def __init__(self, size: int, make: Callable[[int], Any]) -> None:
        self.size = size
        self.make = make

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.0005 * (index * 7919 % 5))
        return self.make(index)


class Pair(NamedTuple):
    picture: torch.Tensor
    label: int


def picture(i: int) -> torch.Tensor:
    return torch.full((3, 80, 80), float(i)) + torch.arange(80)


SAMPLES: dict[str, Callable[[int], Any]] = {
    "tensor": picture,
    "tuple": lambda i: (picture(i), i),
    "namedtuple": lambda i: Pair(picture(i), i),
    "dict": lambda i: {"x": picture(i), "y": torch.tensor(i), "name": f"sample {i}"},
    "nested": lambda i: [{"a": picture(i)}, (picture(-i), np.float32(i))],
    "array": lambda i: (np.full((3, 90, 90), i, np.int16), i),
    "uint8": lambda i: torch.full((3, 90, 90), i % 256, dtype=torch.uint8),
    "bfloat16": lambda i: picture(i).bfloat16(),
    "transposed": lambda i: picture(i).permute(1, 2, 0),
    "small": lambda i: (torch.tensor([i]), float(i)),
    "empty": lambda i: torch.empty(0, 3),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_batches_equal_torchs(kind: str) -> None:
    dataset = Waiting(37, SAMPLES[kind])
    ours = headrace.DataLoader(dataset, 8, num_workers=5, worker_kind="thread")
    theirs = list(TorchDataLoader(dataset, 8))
    for _ in range(2):
        assert same(list(ours), theirs)


@settings(max_examples=25)
@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 9),
    threads=st.integers(1, 12),
    drop=st.booleans(),
    left=st.integers(0, 10),
)
def test_no_sample_is_lost_or_repeated(size: int, batch: int, threads: int, drop: bool, left: int) -> None:
    dataset = Waiting(size, lambda i: i)
    loader = headrace.DataLoader(
        dataset, batch, num_workers=threads, worker_kind="thread", drop_last=drop, seed=1, shuffle=True
    )
    epoch = iter(loader)
    for _, _ in zip(range(left), epoch, strict=False):  # an epoch that is left leaves nothing behind
        pass
    loader.set_epoch(5)
    alone = headrace.DataLoader(dataset, batch, num_workers=0, drop_last=drop, seed=1, shuffle=True)
    alone.set_epoch(5)
    assert [b.tolist() for b in loader] == [b.tolist() for b in alone]


def test_a_batch_that_is_held_is_not_overwritten() -> None:
    dataset = Waiting(64, picture)
    held = list(headrace.DataLoader(dataset, 4, num_workers=8, worker_kind="thread"))
    for i, batch in enumerate(held):
        assert torch.equal(batch, torch.stack([picture(4 * i + k) for k in range(4)]))


def test_samples_of_a_batch_are_made_at_the_same_time() -> None:
    together = threading.Barrier(6, timeout=60)

    def make(i: int) -> int:
        together.wait()  # all six or none
        return i

    loader = headrace.DataLoader(Waiting(12, make), 6, num_workers=6, worker_kind="thread")
    assert [b.tolist() for b in loader] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


def test_a_batch_that_takes_too_long_times_out() -> None:
    free = threading.Event()
    loader = headrace.DataLoader(
        Waiting(2, lambda i: free.wait(30)), 2, num_workers=2, worker_kind="thread", timeout=0.2
    )
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        next(iter(loader))
    free.set()


def test_a_forked_child_goes_on_with_threads_of_its_own() -> None:
    epoch = iter(headrace.DataLoader(Waiting(40, lambda i: i), 4, num_workers=3, worker_kind="thread"))
    first = next(epoch).tolist()

    def finish() -> None:
        assert first + [i for batch in epoch for i in batch.tolist()] == list(range(40))

    assert exit_of_fork(finish) == 0
    finish()


def test_threads_end_with_the_loader() -> None:
    others = set(threading.enumerate())  # of loaders that earlier tests left to the garbage collector
    loader = headrace.DataLoader(Waiting(40, lambda i: i), 4, num_workers=3, worker_kind="thread")
    assert len(list(loader)) == 10
    assert any(t.name.startswith("headrace-sample") for t in set(threading.enumerate()) - others)
    del loader
    deadline = time.monotonic() + 30
    while any(t.name.startswith("headrace-sample") for t in set(threading.enumerate()) - others):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_datasets_that_are_asked_for_batches_are() -> None:
    class Whole(Waiting):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [-i for i in indices]

    dataset = Whole(8, lambda i: i)
    for each in (dataset, Subset(dataset, range(8))):
        loader = headrace.DataLoader(each, 4, num_workers=2, worker_kind="thread")
        assert [b.tolist() for b in loader] == [[0, -1, -2, -3], [-4, -5, -6, -7]]


def test_samples_may_come_unbatched() -> None:
    loader = headrace.DataLoader(
        Waiting(5, lambda i: i), batch_size=None, num_workers=3, worker_kind="thread"
    )
    assert list(loader) == [0, 1, 2, 3, 4]


def test_a_pool_runs_as_many_tasks_at_once_as_its_limit_which_can_be_changed() -> None:
    pool, lock = ThreadPool(3), threading.Lock()
    running, most = 0, 0
    left = threading.Semaphore(0)
    together = threading.Barrier(1)

    def task() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(60)  # fails where fewer than the limit run at once
        with lock:
            running -= 1
        left.release()

    for limit in (3, 7, 2):
        pool.use(limit)
        most, together = 0, threading.Barrier(limit)
        pool.add([task] * 4 * limit)
        for _ in range(4 * limit):
            assert left.acquire(timeout=60)
        assert most == limit


COLLATES: dict[str, Any] = {
    "default": None,
    "tensors": torch.stack,
    "arrays": lambda samples: {"x": np.stack(samples)},
}


@pytest.mark.parametrize("collate", COLLATES)
def test_the_budget_bounds_what_is_in_flight(collate: str) -> None:
    nbytes = 4 * picture(0).nbytes
    loader = headrace.DataLoader(
        Waiting(80, picture),
        4,
        num_workers=4,
        worker_kind="thread",
        prefetch_factor=4,
        memory_budget=3 * nbytes,
        collate_fn=COLLATES[collate],
    )
    for number, _ in enumerate(loader):
        if number > 0:  # how large a batch is, the first tells
            assert loader.stats().in_flight <= 3


def test_batches_without_tensors_are_made_as_far_ahead_as_others() -> None:
    loader = headrace.DataLoader(Waiting(200, str), 4, num_workers=2, worker_kind="thread", prefetch_factor=6)
    batches = iter(loader)
    next(batches)
    next(batches)
    assert loader.stats().in_flight == 12
