"""Batches from worker processes: in order, none lost, whatever the knobs do while an epoch runs."""

from __future__ import annotations

import inspect
import multiprocessing.connection
import multiprocessing.queues
import re
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset
from torch.utils.data import dataloader as torch_dataloader

import headrace
from headrace.engine.in_worker import Refused
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


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(Numbers(seconds=0.0005))


def test_a_batch_that_was_asked_for_by_itself_is_forgotten_with_its_epoch(bench: Bench) -> None:
    """Its number is another batch's in the next one, which may find less room than there is."""
    first = bench.begin()
    next(first)
    workers = first._iterator
    workers._alone = 5
    first.close()
    again = bench.begin()
    assert again._iterator is workers
    assert workers._refuse(5, Refused(100)) is None
    workers._refused.clear()
    assert len(list(all_of(again))) == BATCHES


ACTIONS = st.one_of(
    st.tuples(st.just("limit"), st.integers(1, 40)),
    st.tuples(st.just("use"), st.integers(1, 3)),
    st.tuples(st.just("ready"), st.just(0)),
    st.tuples(st.just("wait"), st.integers(0, 3)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(ACTIONS, max_size=3), max_size=BATCHES), st.integers(0, BATCHES))
def test_knobs_change_neither_order_nor_content(
    bench: Bench, plan: list[list[tuple[str, int]]], leave_at: int
) -> None:
    producer = bench.begin()
    producer.limit(6)
    producer.use(3)
    for number in range(leave_at):
        limit = None
        for action, value in plan[number] if number < len(plan) else ():
            if action == "wait":
                time.sleep(value / 1000)
            elif action == "ready":
                producer.ready()
            else:
                getattr(producer, action)(value)
                limit = value if action == "limit" else limit
        if limit is not None:
            assert producer.in_flight >= min(limit, BATCHES - number)  # grown: filled at once
        made = next(producer)
        assert made.data.tolist() == [2 * number, 2 * number + 1]
        assert made.taken == number + 1
    if leave_at == BATCHES:
        with pytest.raises(StopIteration):
            next(producer)
    producer.close()


def test_a_limit_of_one_makes_one_at_a_time(bench: Bench) -> None:
    bench.processes.limit = 6  # knobs outlive an epoch
    producer = bench.begin()
    assert producer.in_flight == 6
    producer.limit(1)
    while producer.in_flight > 1:
        next(producer)
    for _ in range(5):
        next(producer)
        assert producer.in_flight == 1
    producer.limit(9)
    assert producer.in_flight == 9
    producer.close()
    assert producer.in_flight == 0


class Pid(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        import os

        return torch.tensor(os.getpid())


def test_only_the_first_workers_are_given_work() -> None:
    bench = Bench(Pid())
    producer = bench.begin()
    assert producer.max_workers == 3
    everyone = {int(next(producer).data[0]) for _ in range(6)}
    assert len(everyone) == 3
    producer.use(1)
    for _ in range(producer.in_flight):  # what had been given out before
        next(producer)
    assert len({int(next(producer).data[0]) for _ in range(8)}) == 1
    producer.use(3)
    rest = {int(pid) for pid in (made.data[0] for made in all_of(producer))}
    assert len(rest) == 3


class Slow(Numbers):
    """Batch 1 takes long; all others no time."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(1.0 if index == 2 else 0.0)
        return torch.tensor(index)


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


def test_slow_batches_dont_hold_up_those_of_other_workers() -> None:
    class Log(Slow):
        def __getitem__(self, index: int) -> torch.Tensor:
            super().__getitem__(index)
            return torch.tensor([index, torch.utils.data.get_worker_info().id])  # type: ignore[union-attr]

    producer = Bench(Log(), workers=2, prefetch_factor=4).begin()
    by_worker = [int(made.data[0, 1]) for made in all_of(producer)]
    slow = by_worker[1]
    # Work given out after the slow batch came to the other worker until both had as much to do.
    assert by_worker.count(slow) < len(by_worker) // 2


class Half(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1000, dtype=torch.uint8)


def test_the_budget_bounds_what_is_in_flight_once_sizes_are_known() -> None:
    producer = Bench(Half(), budget=5000, prefetch_factor=4).begin()
    assert producer.nbytes_in_flight == 0
    assert producer.in_flight == 12
    next(producer)
    assert 2000 <= producer.batch_nbytes < 2500
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
        producer.limit(1 + len(seen) % 5)
    assert sorted(seen) == list(range(2 * BATCHES))


def test_torch_still_has_what_we_build_on() -> None:
    """Attributes and methods of torch's iterator that `WorkerIterator` reads, sets or overrides."""
    kind = torch_dataloader._MultiProcessingDataLoaderIter
    source = inspect.getsource(kind) + inspect.getsource(torch_dataloader._BaseDataLoaderIter)
    for name in (
        "_task_info",
        "_tasks_outstanding",
        "_rcvd_idx",
        "_send_idx",
        "_index_queues",
        "_data_queue",
        "_workers",
        "_workers_status",
        "_worker_queue_idx_cycle",
        "_prefetch_factor",
        "_sampler_iter",
        "_pin_memory",
        "_timeout",
        "_in_order",
        "_shutdown",
        "_worker_result_queue",
        "_worker_pids_set",
        "_pin_memory_thread",
        "_pin_memory_thread_done_event",
    ):
        assert f"self.{name} = " in source or f"self.{name}: " in source, name
    signatures = {
        "_try_put_index": ["self"],
        "_next_index": ["self"],
        "_get_data": ["self"],
        "_shutdown_workers": ["self"],
        "_try_get_data": ["self", "timeout"],
        "_reset": ["self", "loader", "first_iter"],
    }
    for name, expected in signatures.items():
        assert list(inspect.signature(getattr(kind, name)).parameters) == expected
    assert "self._try_put_index()" in inspect.getsource(kind._process_data)
    assert "len(self._task_info[self._rcvd_idx]) == 2" in inspect.getsource(kind._next_data)
    assert "next(self._worker_queue_idx_cycle)" in inspect.getsource(kind._try_put_index)
    from torch.utils.data._utils.worker import _worker_loop

    # `WorkerIterator` keeps its workers from torch's handler of signals by the name that torch calls.
    init = inspect.getsource(kind.__init__)
    assert re.search(r"_utils\.signal_handling\._set_worker_pids\(\s*id\(self\)", init)
    assert init.index("_set_worker_pids") < init.index("self._reset(loader, first_iter=True)")
    # and of multiprocessing's queues
    for queue_kind, names in {
        multiprocessing.queues.Queue: ("_ignore_epipe", "_reader", "_writer", "_wlock", "_sem"),
        multiprocessing.connection.Connection: ("_recv",),
    }.items():
        for name in names:
            assert f"self.{name}" in inspect.getsource(queue_kind), name
    base = multiprocessing.connection.Connection
    assert list(inspect.signature(base._recv).parameters) == ["self", "size", "read"]
    assert "__getitems__" in inspect.getsource(torch.utils.data._utils.fetch)
    assert "_ResumeIteration" in inspect.getsource(_worker_loop)


def test_the_loader_uses_them() -> None:
    loader = headrace.DataLoader(Numbers(), batch_size=2, num_workers=2, worker_kind="process")
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    assert loader.stats().in_flight > 0
