"""What `explain()` says of the number of worker processes."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from typing import Any

import pytest
from torch.utils.data import Dataset

import headrace
from headrace._machine import queued_ns, usable_cores
from headrace.engine.advice import advise
from headrace.records import EpochStats, QueueFill, Work
from support.datasets import Numbers


class Waiting(Dataset[Any]):
    """Samples that wait, as for a network."""

    def __len__(self) -> int:
        return 320

    def __getitem__(self, index: int) -> int:
        time.sleep(0.01)
        return index


def epoch(*, stall: float, batches: int = 101, seconds: float = 10.0) -> EpochStats:
    """An epoch whose loop waited for `stall` seconds in all, after a start-up of a second."""
    waits = stall / batches
    return EpochStats(
        0,
        "finished",
        batches,
        batches,
        seconds + 1.0,
        1.0,
        stall,
        waits,
        waits,
        waits,
        (),
        QueueFill(0, 0.0, 0.0),
    )


@pytest.mark.skipif(queued_ns() is None, reason="the system does not tell how long threads wait for a core")
def test_more_processes_are_advised_where_samples_wait() -> None:
    loader = headrace.DataLoader(Waiting(), batch_size=8, num_workers=2)
    assert "try num_workers" not in loader.explain()
    # On a machine whose cores are taken, samples that wait for a core as long get no such advice.
    for _ in range(5):
        for _ in loader:
            pass
        if "try num_workers" in loader.explain():
            break
    advised = re.search(r"  try num_workers=(\d+): a batch takes ", loader.explain())
    assert advised is not None
    # Fewer where waiting for a core takes part of the time.
    assert 2 < int(advised[1]) <= max(16, 4 * usable_cores())
    assert "of it waiting for something other than a core, such as a disk or a network" in loader.explain()


class Computing(Dataset[Any]):
    """Samples that compute."""

    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> int:
        return sum(range(200_000)) + index


def spin() -> None:
    while True:
        pass


def use_one_core(_: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def test_a_busy_machine_is_not_taken_for_a_slow_disk() -> None:
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=spin, daemon=True) for _ in range(5)]
    for other in others:
        other.start()
        os.sched_setaffinity(other.pid or 0, {min(os.sched_getaffinity(0))})
    try:
        loader = headrace.DataLoader(Computing(), 4, num_workers=2, worker_init_fn=use_one_core)
        for _ in loader:
            pass
        assert "disk or a network" not in loader.explain()
    finally:
        for other in others:
            other.kill()
            other.join()


def test_the_caller_is_advised_where_sending_a_batch_takes_longer_than_making_it() -> None:
    loader = headrace.DataLoader(Numbers(1000), batch_size=1, num_workers=2)
    for _ in loader:
        pass
    assert "  try num_workers=0: a batch takes " in loader.explain()


def test_processes_that_nobody_asked_for_are_warned_of_once_where_the_caller_is_faster() -> None:
    loader = headrace.DataLoader(Numbers(1000), batch_size=1)
    for _ in loader:
        pass
    with pytest.warns(UserWarning, match=r"num_workers was left open.*Pass num_workers=0"):
        iter(loader)
    iter(loader)


def test_processes_that_were_asked_for_are_not_warned_of() -> None:
    loader = headrace.DataLoader(Numbers(1000), batch_size=1, num_workers=2)
    for _ in range(2):
        for _ in loader:
            pass


def test_nothing_is_advised_of_fewer_than_20_batches() -> None:
    loader = headrace.DataLoader(Waiting(), batch_size=16, num_workers=2)
    for _ in loader:
        pass
    assert "try num_workers" not in loader.explain()


@pytest.mark.parametrize(
    ("work", "waited"),
    [
        pytest.param(Work(100, 10.0, 9.9), 0.0, id="loop never waits"),
        pytest.param(Work(100, 16.0, 15.9), 8.0, id="busy on cores"),
        pytest.param(Work(100, 16.0, 8.0, 0.0), 8.0, id="half of the time on cores"),
        pytest.param(Work(100, 16.0, 1.0, 10.0), 8.0, id="most of the time waiting for a core"),
        pytest.param(Work(100, 16.0, 1.0, None), 8.0, id="waiting for nobody knows what"),
        pytest.param(Work(100, 4.0, 0.1, 0.0), 4.0, id="workers that wait for requests"),
        pytest.param(Work(10, 0.1, 0.1), 8.0, id="too few batches made"),
    ],
)
def test_a_number_that_may_be_right_is_left_alone(work: Work, waited: float) -> None:
    assert advise(work, epoch(stall=waited), workers=2) is None


def test_time_that_workers_wait_for_a_core_is_not_taken_for_making() -> None:
    found = advise(Work(100, 10.0, 6.0), epoch(stall=8.0), workers=2)
    assert found is not None
    assert (found[0], found[1][:30]) == (0, "a batch takes 60 ms to make, a")


def test_more_than_the_most_are_not_advised() -> None:
    waiting = Work(100, 10.0 * max(16, 4 * usable_cores()), 0.1, 0.0)
    assert advise(waiting, epoch(stall=8.0), workers=max(16, 4 * usable_cores())) is None


def test_the_advice_is_as_large_as_the_need_for_cores_says() -> None:
    found = advise(Work(100, 18.0, 2.7, 0.9), epoch(stall=8.0), workers=1)
    assert found is not None
    assert found[0] == min(max(16, 4 * usable_cores()), 5 * usable_cores())
    assert "180 ms to make, 80% of it waiting for something other than a core" in found[1]
