"""The pool of worker processes: one that dies is replaced; no batch is lost, repeated or out of order."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, default_collate

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


@pytest.mark.parametrize("in_order", [True, False])
def test_kills_at_random_moments_lose_and_repeat_nothing(in_order: bool) -> None:
    rng = random.Random(7)
    bench = Bench(Numbers(dict.fromkeys(range(SIZE), 0.002)), workers=4, in_order=in_order)
    for epoch in range(6):
        seen: list[Any] = []
        stream = bench.begin(epoch)
        victim = rng.randrange(2, BATCHES - 6)
        for number, made in enumerate(all_of(stream)):
            seen.append(made)
            if number == victim:
                os.kill(int(made.data[0, 1]), signal.SIGKILL)
                time.sleep(rng.random() * 0.01)
        assert values(sorted(seen, key=lambda made: int(made.data[0, 0]))) == list(range(SIZE))
        if in_order:
            assert values(seen) == list(range(SIZE))
        assert len(set(pids(seen))) <= 5


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
                assert "process that was forked" in str(error), error
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
    assert done.stderr == ""
