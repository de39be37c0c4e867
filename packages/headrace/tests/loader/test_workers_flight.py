"""How many batches of worker processes are in flight, and which of them are ready."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

import headrace
from headrace import _torch_compat
from support.worker_bench import Bench, all_of

BATCHES = 30
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Numbers(Dataset[torch.Tensor]):
    """Sample i is i, after a moment that differs."""

    def __init__(self, size: int = 2 * BATCHES, seconds: float = 0.0) -> None:
        self.size = size
        self.seconds = seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds * (index * 7 % 5))
        return torch.tensor(index)


class Slow(Numbers):
    """Batch 1 takes long; all others no time."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(1.0 if index == 2 else 0.0)
        return torch.tensor(index)


class OneWaits(Numbers):
    """Sample 2 waits for sample 8 to be made."""

    def __init__(self) -> None:
        super().__init__(12)
        self.made = multiprocessing.Event()

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 8:
            self.made.set()
        if index == 2:
            assert self.made.wait(100)
        return torch.tensor(index)


def test_out_of_order_a_worker_that_is_held_up_holds_up_no_other() -> None:
    loader = headrace.DataLoader(OneWaits(), batch_size=None, num_workers=2, in_order=False)
    assert sorted(int(sample) for sample in loader) == list(range(12))


def test_ready_says_whether_next_would_wait() -> None:
    producer = Bench(Slow()).begin()
    next(producer)
    assert not producer.ready()
    next(producer)  # waits for the slow one; the others are there by then
    for left in (3, 2, 1):
        while producer.ready() < left:
            time.sleep(0.001)
        next(producer)
    for _ in all_of(producer):
        pass
    assert producer.ready()  # the end


class Half(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1000, dtype=torch.uint8)


def test_the_budget_bounds_what_is_in_flight_once_sizes_are_known() -> None:
    producer = Bench(Half(), budget=5000, prefetch_factor=4).begin()
    assert producer.nbytes_in_flight == 0
    assert producer.in_flight == 12
    next(producer)
    assert 2000 <= producer.pool.batch_nbytes < 2500
    for _ in range(12):
        next(producer)
    for _ in range(8):
        next(producer)
        assert producer.in_flight <= 2
        assert producer.nbytes_in_flight <= 5000
    assert len(list(all_of(producer))) == BATCHES - 21


def test_one_batch_is_made_whatever_the_budget() -> None:
    producer = Bench(Half(), budget=1).begin()
    assert len(list(all_of(producer))) == BATCHES


def test_out_of_order_batches_are_all_there() -> None:
    producer = Bench(Numbers(seconds=0.001), in_order=False).begin()
    seen = []
    for made in all_of(producer):
        seen += made.data.tolist()
        producer.ready()
    assert sorted(seen) == list(range(2 * BATCHES))


def test_batches_are_pinned_by_a_thread_with_the_caller_s_device(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[Any] = []
    threads: set[Any] = set()

    def pin(data: Any) -> Any:
        threads.add(threading.current_thread().name)
        return data + 100

    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "set_device_index", devices.append)
    monkeypatch.setattr(_torch_compat, "pin_memory", pin)
    stream = Bench(Numbers(), workers=2).begin(pin_memory=True)
    assert [made.data.tolist() for made in all_of(stream)] == [
        [100 + i, 101 + i] for i in range(0, 2 * BATCHES, 2)
    ]
    assert devices == [3]
    assert threads == {"headrace-pin_0"}
    for thread in threading.enumerate():
        if thread.name == "headrace-pin_0":  # told to end
            thread.join()


class Failing:
    """A sampler that fails."""

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([i, i + 1] for i in range(0, 10, 2))
        raise OSError("the list of samples is gone")


@pytest.mark.filterwarnings("error")
def test_an_error_of_the_sampler_comes_after_the_batches_before_it() -> None:
    loader = headrace.DataLoader(Numbers(), batch_sampler=Failing(), num_workers=2, worker_kind="process")
    seen = []
    iterator = iter(loader)
    for _ in range(5):
        seen += next(iterator).tolist()
    assert seen == list(range(10))
    with pytest.raises(OSError, match="the list of samples is gone"):
        next(iterator)


def test_a_request_larger_than_a_socket_s_buffer_comes_through() -> None:
    size = 200_000
    loader = headrace.DataLoader(
        Wide(),
        batch_sampler=[list(range(size))[i:] + list(range(i)) for i in range(6)],
        num_workers=1,
        worker_kind="process",
        prefetch_factor=6,
    )
    firsts = [(int(batch[0]), len(batch)) for batch in loader]
    assert firsts == [(i, size) for i in range(6)]


class Wide(Dataset[Any]):
    """Whole batches of indices."""

    def __len__(self) -> int:
        return 200_000

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


def test_the_loader_has_batches_in_flight() -> None:
    loader = headrace.DataLoader(Numbers(), batch_size=2, num_workers=2, worker_kind="process")
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    assert loader.stats().in_flight > 0
