"""Worker processes from epoch to epoch: started again or kept, as in torch, and gone in the end."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset, Subset, get_worker_info
from torchvision import transforms

import headrace
from support.processes import exit_of_fork
from support.python import run_python, start_python
from support.sampling import one_in
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


SCALE = 1


class Global(Scaled):
    """Samples that depend on this module, too."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) * torch.tensor([SCALE, 1])


@pytest.mark.parametrize("persistent", [False, True])
def test_processes_are_kept_where_persistent_workers_says_so(persistent: bool) -> None:
    loader = loader_of(Scaled(), persistent_workers=persistent)
    epochs = [list(loader) for _ in range(3)]
    assert len(set.union(*map(pids, epochs))) == (2 if persistent else 6)
    assert all(values(epoch) == values(epochs[0]) for epoch in epochs)


def test_a_change_of_a_global_is_seen_in_the_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(Global())
    before = values(list(loader))
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3)
    assert values(list(loader)) == [3 * value for value in before]


def test_what_a_dataset_changes_in_a_worker_is_gone_in_the_next_epoch() -> None:
    class Counts(Scaled):
        def __getitem__(self, index: int) -> torch.Tensor:
            self.offset += 1
            return super().__getitem__(index)

    loader = loader_of(Counts())
    assert values(list(loader)) == values(list(loader))


CHANGES = {
    "an attribute": lambda d: setattr(d, "offset", 7),
    "the transform": lambda d: setattr(d, "steps", triple),
    "a step of the transform": lambda d: setattr(d.steps.transforms[0], "lambd", triple),
    "another step": lambda d: d.steps.transforms.append(transforms.Lambda(double)),
    "another list": lambda d: setattr(d, "samples", list(range(1, 101))),
    "an item at the end of a list": lambda d: d.samples.__setitem__(99, -1),
    "an item within a long list": lambda d: d.samples.__setitem__(50, -1),
    "an item within a long array": lambda d: d.array.__setitem__(51, -1),
    "another array of equal content at other places": lambda d: setattr(d, "array", np.arange(100)[::-1]),
    "an array in place": lambda d: d.array.__iadd__(1),
    "a tensor in place": lambda d: d.rows.add_(1),
}


@pytest.mark.parametrize(
    ("change", "wrapped"),
    [*((change, False) for change in CHANGES), *one_in(4, ((change, True) for change in CHANGES))],
)
def test_a_change_between_epochs_is_seen(change: str, wrapped: bool) -> None:
    dataset = Scaled()
    outer: Dataset[Any] = Subset(dataset, range(100)) if wrapped else dataset
    loader = loader_of(outer)
    before = list(loader)
    CHANGES[change](dataset)
    after = list(loader)
    assert values(after) == [int(dataset[i][0]) for i in range(100)]
    assert values(after) != values(before)


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
        time.sleep(0.002)
        return super().__getitem__(index)


@pytest.mark.parametrize("received", [0, 1, 7])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_left_early_leaves_nothing_to_the_next(received: int, persistent: bool) -> None:
    loader = loader_of(Sleepy(), prefetch_factor=6, persistent_workers=persistent)
    for _ in range(3):
        for i, _batch in enumerate(loader):
            if i == received:
                break
        assert loader.stats().in_flight == 0
    whole = list(loader)
    assert values(whole) == [6 * i for i in range(100)]


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
    del loader  # the iterator continues
    assert len(list(iterator)) == 19
    del iterator
    gc.collect()
    assert children() == before


class Failing(Scaled):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 11:
            raise OSError("no such sample")
        return super().__getitem__(index)


def test_an_epoch_that_failed_leaves_no_process_when_it_is_collected() -> None:
    """The error holds the iterator, and itself: the collector ends the processes."""
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


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_seeds_differ_from_epoch_to_epoch_as_in_torch(persistent: bool) -> None:
    loader = headrace.DataLoader(
        Seeds(), num_workers=2, worker_kind="process", seed=3, persistent_workers=persistent
    )
    epochs = [list(loader) for _ in range(3)]
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
    with pytest.raises(Exception, match=r"pickle|local object"):
        next(iter(loader_of(Unpicklable(), collate_fn=first)))


def test_an_epoch_in_a_forked_child_starts_its_own() -> None:
    loader = loader_of(Scaled())
    iterator = iter(loader)
    next(iterator)

    def use() -> None:
        nonlocal iterator
        with pytest.raises(RuntimeError, match="from which this one was forked"):
            next(iterator)
        del iterator
        assert len(list(loader)) == 20

    assert exit_of_fork(use) == 0
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
    done = run_python(START + SCRIPTS[name], teardown=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


START = """
import os, time, torch, headrace, warnings
from torch.utils.data import Dataset
warnings.simplefilter("error")
warnings.simplefilter("ignore", DeprecationWarning)
class Sleepy(Dataset):
    def __len__(self): return 100
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.tensor(index)
loader = headrace.DataLoader(Sleepy(), batch_size=5, num_workers=2, worker_kind="process")
"""


def test_ctrl_c_ends_workers_too() -> None:
    script = """
import signal
os.setsid()
signal.signal(signal.SIGINT, signal.default_int_handler)
for batch in loader:
    print(*(worker.pid for worker in torch.multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""
    process = start_python(START + script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, teardown=True)
    assert process.stdout is not None
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert not any(psutil.pid_exists(pid) for pid in workers)


PARENT_DIES = """
import os, signal, subprocess, sys, time
import torch, headrace
from torch.utils.data import Dataset
class Pids(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, index):
        time.sleep(0.01)
        return os.getpid()
if __name__ == "__main__":
    os.setsid()
    context, workers = sys.argv[1], int(sys.argv[2])
    loader = headrace.DataLoader(
        Pids(), batch_size=2, num_workers=workers, worker_kind="process", multiprocessing_context=context
    )
    iterator = iter(loader)
    print(*{int(next(iterator)[0]) for _ in range(workers)}, flush=True)
    if os.fork() == 0:  # it has a copy of all that its parent has open
        time.sleep(60)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


# A process that is spawned takes seconds to import torch.
@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_end_when_their_parent_is_killed(method: str, workers: int, tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text(PARENT_DIES)
    process = start_python(script, method, workers, stdout=subprocess.PIPE)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == workers
    assert process.wait(60) == -signal.SIGKILL
    deadline = time.monotonic() + 40
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = [pid for pid in pids if alive(pid)]
    os.killpg(process.pid, signal.SIGKILL)
    process.stdout.close()
    assert left == []


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_many_epochs_leave_no_files_open() -> None:
    bench = Bench(Scaled(), workers=2)

    def left(epochs: int) -> Iterator[int]:
        for number in range(epochs):
            for i, _ in enumerate(all_of(bench.begin(number))):
                if i == number:
                    break
        yield len(os.listdir("/proc/self/fd"))
        yield sum(f"_{os.getpid()}_" in name for name in os.listdir("/dev/shm"))  # not other processes'

    list(left(5))
    few, many = list(left(5)), list(left(20))
    # Fewer is fine: what other tests left behind goes as the collector comes by.
    assert all(after <= before for before, after in zip(few, many, strict=True)), (few, many)


class Drawing(Dataset[Any]):
    """Samples that draw."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> float:
        time.sleep(0.003)
        return torch.rand(1).item()


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_loader_that_is_dropped_takes_its_processes_along(in_a_cycle: bool) -> None:
    others = set(multiprocessing.active_children())
    loader = headrace.DataLoader(Drawing(), 8, seed=0)
    iterator = iter(loader)
    next(iterator)
    own = set(multiprocessing.active_children()) - others
    assert own
    holder: dict[str, Any] = {"iterator": iterator}
    if in_a_cycle:
        holder["holder"] = holder
    del loader, iterator, holder
    if in_a_cycle:
        gc.collect()
    assert not own & set(multiprocessing.active_children())


def test_kept_processes_end_with_a_loader_that_is_dropped() -> None:
    others = set(multiprocessing.active_children())
    loader = loader_of(Scaled(), persistent_workers=True)
    list(loader)
    own = set(multiprocessing.active_children()) - others
    assert own
    gc.disable()
    try:
        del loader
        assert not own & set(multiprocessing.active_children())
    finally:
        gc.enable()
