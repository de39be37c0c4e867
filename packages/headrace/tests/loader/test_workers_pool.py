"""The pool of worker processes: one that dies is replaced; no batch is lost, repeated or out of order, and
what is in flight stays within its bounds."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, default_collate

import headrace
from headrace import _torch_compat
from support.python import run_python
from support.worker_bench import Bench, all_of

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
BATCHES = 30
SIZE = 2 * BATCHES


# Each spawned worker imports torch, which takes seconds.
METHODS = ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.long)]


class Numbers(Dataset[Any]):
    """Sample i is i, and the process that made it, after a time that `seconds` gives for some samples."""

    def __init__(self, seconds: dict[int, float] | None = None) -> None:
        self.seconds = seconds or {}

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds.get(index, 0.0))
        return torch.tensor([index, os.getpid()])


def values(batches: list[Any]) -> list[int]:
    return [int(row[0]) for made in batches for row in made.data]


def pids(batches: list[Any]) -> list[int]:
    return [int(made.data[0, 1]) for made in batches]


@settings(max_examples=15)
@given(
    st.dictionaries(st.integers(0, SIZE - 1), st.sampled_from([0.001, 0.01, 0.05]), max_size=8),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_batches_come_in_order_whatever_time_samples_take(
    seconds: dict[int, float], workers: int, prefetch: int
) -> None:
    stream = Bench(Numbers(seconds), workers=workers, prefetch_factor=prefetch).begin()
    batches = list(all_of(stream))
    assert values(batches) == list(range(SIZE))
    assert [made.taken for made in batches] == list(range(1, BATCHES + 1))
    # In turn, as in torch: what a dataset draws from a generator of its own repeats.
    owners = pids(batches)
    assert all(owners[i] == owners[i % workers] for i in range(BATCHES))


@settings(max_examples=5)
@given(st.dictionaries(st.integers(0, SIZE - 1), st.sampled_from([0.001, 0.02]), max_size=8))
def test_out_of_order_every_batch_comes_once(seconds: dict[int, float]) -> None:
    stream = Bench(Numbers(seconds), workers=3, in_order=False).begin()
    assert sorted(values(list(all_of(stream)))) == list(range(SIZE))


class Kills(Numbers):
    """Sample 20 kills its process the first time."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 20 and not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.002)
        return super().__getitem__(index)


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_killed_in_the_middle_of_a_sample_is_the_only_one_replaced(
    method: str, tmp_path: Path
) -> None:
    bench = Bench(Kills(tmp_path), workers=4 if method == "fork" else 2, multiprocessing_context=method)
    batches = list(all_of(bench.begin()))
    assert values(batches) == list(range(SIZE))
    check_one_was_replaced(pids(batches), 10, bench.loader.num_workers)


def check_one_was_replaced(owners: list[int], at: int, workers: int) -> None:
    """Batch `at` was being made by the worker that was replaced."""
    for worker in range(workers):
        seen = [owners[number] for number in range(worker, len(owners), workers)]
        if worker == at % workers:
            assert len(set(seen)) == 2
            assert seen == sorted(seen, key=seen.index)  # the first, and from then on the second
        else:
            assert len(set(seen)) == 1


class Large(Numbers):
    """Samples of 25 MB, so that a batch takes long to send."""

    def __getitem__(self, index: int) -> Any:
        return index, os.getpid(), torch.full((25 << 20,), index, dtype=torch.uint8)


def sent_by_the_dead(samples: list[Any]) -> Any:
    batch = default_collate(samples)
    marker = os.environ["HEADRACE_TEST_MARKER"]
    return [torch.stack(batch[:2], 1), batch[2], Deadly(marker) if samples[0][0] == 8 else None]


class Deadly:
    """Kills the process that pickles it, once, when the large tensor before it has been written."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        if not os.path.exists(self.marker):
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return str, ("sent",)


def test_a_worker_killed_while_it_sends_50_megabytes_is_the_only_one_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_TEST_MARKER", str(tmp_path / "killed"))
    bench = Bench(Large(), workers=4, collate_fn=sent_by_the_dead, prefetch_factor=1)
    numbers, owners = [], []
    for made in all_of(bench.begin()):
        rows, pixels, _ = made.data
        numbers += rows[:, 0].tolist()
        owners.append(int(rows[0, 1]))
        assert pixels.shape == (2, 25 << 20)
        assert (pixels[:, ::4096] == rows[:, :1]).all()
    assert numbers == list(range(SIZE))
    assert (tmp_path / "killed").exists()
    check_one_was_replaced(owners, 4, 4)


class Rows(Numbers):
    """A megabyte each."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1 << 20,), index, dtype=torch.uint8)


def test_a_batch_that_the_user_holds_is_never_overwritten() -> None:
    held = []
    for number, made in enumerate(all_of(Bench(Rows(), workers=2).begin())):
        if number % 3 == 0:
            held.append(made.data)
        elif number % 3 == 1:
            held.append(made.data.numpy()[1:, 5:])  # a view keeps the batch alive
    expected = [number for number in range(BATCHES) if number % 3 != 2]
    for number, batch in zip(expected, held, strict=True):
        first = 2 * number if number % 3 == 0 else 2 * number + 1
        assert int(batch[0].min()) == int(batch[0].max()) == first


def test_memory_of_batches_that_were_dropped_is_written_again() -> None:
    """So that it grows with what is held, not with what was made."""
    addresses = set()
    for made in all_of(Bench(Rows(), workers=2).begin()):
        addresses.add(made.data.data_ptr())
        del made
    assert len(addresses) < BATCHES // 2


def test_a_forked_child_keeps_the_batch_that_it_inherited() -> None:
    stream = Bench(Rows(), workers=1).begin()
    batch = next(stream).data
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writer)
        os.read(reader, 1)  # until the parent has finished its epoch
        os._exit(int(batch[1].min() != 1 or batch[1].max() != 1))
    os.close(reader)
    del batch
    for made in all_of(stream):
        del made
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Remembers:
    """A collate function that keeps the batch before the one that it gives, and gives it, too."""

    def __init__(self) -> None:
        self.last: Any = None

    def __call__(self, samples: list[Any]) -> Any:
        last, self.last = self.last, default_collate(samples)
        return [self.last, last if last is not None else self.last]


def test_a_batch_that_collate_fn_keeps_is_never_overwritten() -> None:
    for number, made in enumerate(all_of(Bench(Rows(), workers=1, collate_fn=Remembers()).begin())):
        now, last = made.data
        assert now[:, 0].tolist() == now[:, -1].tolist() == [2 * number, 2 * number + 1]
        expected = max(0, 2 * number - 2)
        assert last[:, 0].tolist() == last[:, -1].tolist() == [expected, expected + 1]
        del made, now, last


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_held_batches_keep_no_files_open() -> None:
    gc.collect()
    before = files()
    held = [made.data for made in all_of(Bench(Rows(), workers=2).begin())]
    assert files() <= before
    assert len(held) == BATCHES


FORKS = """
import os, sys, time, warnings
import torch, headrace
from torch.utils.data import Dataset
warnings.simplefilter("error")
warnings.simplefilter("ignore", DeprecationWarning)
class Sleepy(Dataset):
    def __len__(self): return 200
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.tensor([index, os.getpid()])
if __name__ == "__main__":
    loader = headrace.DataLoader(
        Sleepy(), batch_size=5, num_workers=2, worker_kind="process", multiprocessing_context=sys.argv[1]
    )
    iterator = iter(loader)
    seen = [next(iterator)]
    for drops in (False, True):
        pid = os.fork()
        if pid == 0:
            try:
                next(iterator)
            except RuntimeError as error:
                assert "from which this one was forked" in str(error), error
            else:
                raise AssertionError("the child took a batch of its parent's")
            if drops:
                del iterator, loader
            sys.exit(5)  # with all that Python does at an exit
        status = os.waitpid(pid, 0)[1]
        assert os.waitstatus_to_exitcode(status) == 5, status
    seen += iterator
    assert [int(index) for batch in seen for index in batch[:, 0]] == list(range(200))
    assert len({int(pid) for batch in seen for pid in batch[:, 1]}) == 2  # none was replaced
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_child_forked_in_mid_epoch_ends_without_touching_the_workers(method: str, tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(FORKS)
    done = run_python(script, method, teardown=True)
    assert done.returncode == 0, done.stderr
    # Python 3.13 complains by itself when any forked child ends, of the tracker that its parent has started.
    own = r"Exception ignored in: <function ResourceTracker\.__del__.*?ChildProcessError[^\n]*\n"
    assert re.sub(own, "", done.stderr, flags=re.DOTALL) == ""


class Timed(Dataset[torch.Tensor]):
    """Sample i is i, after a moment that differs."""

    def __init__(self, size: int = 2 * BATCHES, seconds: float = 0.0) -> None:
        self.size = size
        self.seconds = seconds

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds * (index * 7 % 5))
        return torch.tensor(index)


class Slow(Timed):
    """Batch 1 takes long; all others no time."""

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(1.0 if index == 2 else 0.0)
        return torch.tensor(index)


class OneWaits(Timed):
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


class Half(Timed):
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


def test_batches_are_pinned_by_a_thread_with_the_caller_s_device(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[Any] = []
    threads: set[Any] = set()

    def pin(data: Any) -> Any:
        threads.add(threading.current_thread().name)
        return data + 100

    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch.accelerator, "set_device_index", devices.append)
    monkeypatch.setattr(_torch_compat, "pin_memory", pin)
    stream = Bench(Timed(), workers=2).begin(pin_memory=True)
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
    loader = headrace.DataLoader(Timed(), batch_sampler=Failing(), num_workers=2, worker_kind="process")
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
    loader = headrace.DataLoader(Timed(), batch_size=2, num_workers=2, worker_kind="process")
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    assert loader.stats().in_flight > 0
