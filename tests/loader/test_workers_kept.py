"""Worker processes from epoch to epoch: kept, renewed where their copy is stale, and gone in the end."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset, Subset, get_worker_info
from torchvision import transforms

import headrace
from headrace.engine.changes import Look
from support.worker_bench import Bench, all_of

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Scaled(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.steps: Any = transforms.Compose([transforms.Lambda(double)])
        self.samples = list(range(100))
        self.array = np.arange(100)
        self.rows = torch.arange(100)
        self.offset = 0

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = self.samples[index] + int(self.array[index]) + int(self.rows[index]) + self.offset
        return torch.tensor([self.steps(sample), os.getpid()])


def double(sample: int) -> int:
    return 2 * sample


def triple(sample: int) -> int:
    return 3 * sample


def pids(batches: list[torch.Tensor]) -> set[int]:
    return {int(pid) for batch in batches for pid in batch[:, 1]}


def values(batches: list[torch.Tensor]) -> list[int]:
    return [int(value) for batch in batches for value in batch[:, 0]]


def loader_of(dataset: Dataset[Any], **options: Any) -> headrace.DataLoader:
    return headrace.DataLoader(dataset, batch_size=5, num_workers=2, worker_kind="process", **options)


def test_the_same_processes_serve_all_epochs() -> None:
    loader = loader_of(Scaled())
    first = list(loader)
    assert len(pids(first)) == 2
    for _ in range(3):
        assert pids(list(loader)) == pids(first)


CHANGES = {
    "an attribute": lambda d: setattr(d, "offset", 7),
    "the transform": lambda d: setattr(d, "steps", triple),
    "a step of the transform": lambda d: setattr(d.steps.transforms[0], "lambd", triple),
    "another step": lambda d: d.steps.transforms.append(transforms.Lambda(double)),
    "another list": lambda d: setattr(d, "samples", list(range(1, 101))),
    "an item at the end of a list": lambda d: d.samples.__setitem__(99, -1),
    "another array of equal content at other places": lambda d: setattr(d, "array", np.arange(100)[::-1]),
    "an array in place": lambda d: d.array.__iadd__(1),
    "a tensor in place": lambda d: d.rows.add_(1),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_change_between_epochs_is_seen(change: str, wrapped: bool) -> None:
    dataset = Scaled()
    outer: Dataset[Any] = Subset(dataset, range(100)) if wrapped else dataset
    loader = loader_of(outer)
    before = list(loader)
    CHANGES[change](dataset)
    after = list(loader)
    assert values(after) == [int(dataset[i][0]) for i in range(100)]
    assert values(after) != values(before)
    assert pids(after).isdisjoint(pids(before))
    assert pids(list(loader)) == pids(after)


def test_a_dict_that_is_the_same_isnt_taken_for_another() -> None:
    dataset = Scaled()
    dataset.names = {i: f"name {i}" for i in range(20)}  # type: ignore[attr-defined]
    look, pairs = Look(dataset), [(0, 0) for _ in range(1000)]
    for _ in range(10):  # whatever memory new objects get
        assert look.same(dataset)
        pairs.append(tuple(range(2)))  # type: ignore[arg-type]
        pairs += [(i, i) for i in range(50)]
    dataset.names[19] = "another"  # type: ignore[attr-defined]
    assert not look.same(dataset)


def test_collate_and_settings_may_change_too() -> None:
    loader = loader_of(Scaled())
    before = list(loader)
    loader.collate_fn = sum_of
    assert [int(batch[0]) for batch in loader] == [int(batch[:, 0].sum()) for batch in before]


def sum_of(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples).sum(0)


def test_persistent_workers_keep_their_copy_as_in_torch() -> None:
    dataset = Scaled()
    loader = loader_of(dataset, persistent_workers=True)
    before = list(loader)
    dataset.offset = 7
    after = list(loader)
    assert values(after) == values(before)
    assert pids(after) == pids(before)


class Sleepy(Scaled):
    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.01)
        return super().__getitem__(index)


@pytest.mark.parametrize("received", [0, 1, 7])
def test_an_epoch_left_early_leaves_nothing_to_the_next(received: int) -> None:
    loader = loader_of(Sleepy(), prefetch_factor=6)
    seen = set()
    for _ in range(3):
        for i, batch in enumerate(loader):
            seen |= pids([batch])
            if i == received:
                break
        assert loader.stats().in_flight == 0
    whole = list(loader)
    assert values(whole) == [6 * i for i in range(100)]
    assert len(pids(whole) | seen) == 2


def test_two_iterators_at_once_are_independent() -> None:
    loader = loader_of(Scaled())
    pairs = list(zip(loader, loader, strict=True))
    assert all(torch.equal(a[:, 0], b[:, 0]) for a, b in pairs)
    assert len(pids([batch for pair in pairs for batch in pair])) == 4
    assert len(pids(list(loader))) == 2


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


def test_processes_end_with_the_loader() -> None:
    gc.collect()
    before = children()
    loader = loader_of(Scaled())
    list(loader)
    iterator = iter(loader)
    next(iterator)
    assert len(children()) == len(before) + 2
    del loader  # the iterator goes on
    assert len(list(iterator)) == 19
    del iterator
    gc.collect()
    assert children() == before


class Failing(Scaled):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 11:
            raise OSError("no such sample")
        return super().__getitem__(index)


def test_an_epoch_that_failed_waits_for_no_worker_when_it_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error holds the iterator, and itself: the collector closes their pipes before they are told."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 3600.0)
    gc.collect()
    before = children()

    def fail() -> None:
        with pytest.raises(OSError, match="no such sample") as caught:
            list(loader_of(Failing()))
        cycle: list[Any] = [caught.value]
        cycle.append(cycle)

    fail()
    gc.collect()
    assert children() == before


class Seeds(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        assert info is not None
        assert isinstance(info.dataset, Seeds)
        return torch.tensor([info.seed - info.id, os.getpid()])


def test_workers_seeds_differ_from_epoch_to_epoch_as_in_torch() -> None:
    loader = headrace.DataLoader(Seeds(), num_workers=2, worker_kind="process", seed=3)
    epochs = [list(loader) for _ in range(3)]
    assert len({frozenset(pids(epoch)) for epoch in epochs}) == 1
    assert len({value for epoch in epochs for value in values(epoch)}) == 3
    again = headrace.DataLoader(Seeds(), num_workers=2, worker_kind="process", seed=3)
    again.set_epoch(2)
    assert values(list(again)) == values(epochs[2])


def broken_init(worker: int) -> None:
    raise OSError("no such mount")


def test_an_error_in_worker_init_is_every_batch_s() -> None:
    iterator = iter(loader_of(Scaled(), worker_init_fn=broken_init))
    for _ in range(6):
        with pytest.raises(OSError, match="no such mount"):
            next(iterator)


class Unpicklable(Scaled):
    def __getitem__(self, index: int) -> Any:
        return lambda: index


def first(samples: list[Any]) -> Any:
    return samples[0]


def test_a_batch_that_cant_be_sent_is_an_error_not_a_hang() -> None:
    with pytest.raises(Exception, match="pickle"):
        next(iter(loader_of(Unpicklable(), collate_fn=first)))


def test_an_epoch_in_a_forked_child_starts_its_own() -> None:
    loader = loader_of(Scaled())
    iterator = iter(loader)
    next(iterator)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with pytest.raises(RuntimeError, match="process that was forked"):
                next(iterator)
            del iterator
            code = 0 if len(list(loader)) == 20 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(list(iterator)) == 19
    assert len(list(loader)) == 20


SCRIPTS: dict[str, str] = {
    "ends between epochs": "list(loader)",
    "ends in an epoch": "list(loader); iterator = iter(loader); next(iterator)",
    "an exception in the loop": """
list(loader)
try:
    for batch in loader:
        raise KeyError
except KeyError:
    pass
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_interpreter_ends_in_peace(name: str) -> None:
    done = run(SCRIPTS[name])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


START = """
import time, torch, headrace
from torch.utils.data import Dataset
class Sleepy(Dataset):
    def __len__(self): return 100
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.tensor(index)
loader = headrace.DataLoader(Sleepy(), batch_size=5, num_workers=2, worker_kind="process")
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", START + script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_ctrl_c_ends_workers_too() -> None:
    script = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
for batch in loader:
    print(*(worker.pid for worker in torch.multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", START + script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert not any(psutil.pid_exists(pid) for pid in workers)


def test_many_epochs_leave_no_files_open() -> None:
    bench = Bench(Scaled(), workers=2)

    def left(epochs: int) -> Iterator[int]:
        for number in range(epochs):
            for i, _ in enumerate(all_of(bench.begin(number))):
                if i == number:
                    break
        yield len(os.listdir("/proc/self/fd"))
        yield len(os.listdir("/dev/shm"))

    list(left(5))
    few, many = list(left(5)), list(left(20))
    # Fewer is fine: what other tests left behind goes as the collector comes by.
    assert all(after <= before for before, after in zip(few, many, strict=True)), (few, many)


class Drawing(Dataset[Any]):
    """Samples that draw: processes make them, where they cost enough."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> float:
        time.sleep(0.003)
        return torch.rand(1).item()


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_loader_that_is_dropped_takes_its_processes_along(in_a_cycle: bool) -> None:
    others = set(multiprocessing.active_children())
    loader = headrace.DataLoader(Drawing(), 8, seed=0)
    assert len(list(loader)) == 8
    own = set(multiprocessing.active_children()) - others
    assert own
    holder: dict[str, Any] = {"loader": loader}
    if in_a_cycle:
        holder["holder"] = holder
    del loader, holder
    if in_a_cycle:
        gc.collect()
    assert not own & set(multiprocessing.active_children())
