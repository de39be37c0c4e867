"""Batches of an `IterableDataset`, in the calling thread and in worker processes, as in torch."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

import headrace
from headrace.engine.caller_stream import CallerStream
from headrace.engine.workers.stream import WorkerStream
from support.equal import outcomes, same
from support.sampling import one_in
from support.stateful import CountedStream, StatefulIterator

# Filters that users have for torch's warning match both.
LONGER = r"^Length of IterableDataset .*was reported to be 2.*, but \d+ samples have been fetched\."


class Counting(data.IterableDataset[int]):
    """So many numbers; from `bad` on it raises, then ends."""

    def __init__(self, count: int, bad: int | None = None) -> None:
        self.count, self.bad = count, bad

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            if number == self.bad:
                raise ValueError(f"number {number}")
            yield number


class Sized(Counting):
    """The same, with a length that it exceeds."""

    def __len__(self) -> int:
        return 2


def two_epochs(loader: Any) -> list[Any]:
    """Batches and errors, in order, in a loop that never asks for a length."""
    return [event for _ in range(2) for event in outcomes(iter(loader))]


@pytest.mark.parametrize("bad", [None, 0, 5])
@pytest.mark.parametrize("count", [0, 8, 10])
@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"batch_size": None}, {"collate_fn": sum}])
def test_streams_in_the_caller_equal_torchs(options: dict[str, Any], count: int, bad: int | None) -> None:
    arguments = {"batch_size": 4, "num_workers": 0, **options}
    ours = headrace.DataLoader(Counting(count, bad), **arguments)
    assert same(two_epochs(ours), two_epochs(data.DataLoader(Counting(count, bad), **arguments)))


@pytest.mark.parametrize("workers", [0, 1])
def test_more_batches_than_a_length_said_are_warned_of_as_by_torch(workers: int) -> None:
    loader = headrace.DataLoader(Sized(12), batch_size=1, num_workers=workers)
    assert len(two_epochs(loader)) == 24
    assert len(loader) == 2
    with pytest.warns(UserWarning, match=LONGER) as warned:
        assert len(list(loader)) == 12
    assert {each.filename for each in warned if each.category is UserWarning} == {__file__}
    theirs = data.DataLoader(Sized(12), num_workers=workers)
    assert len(theirs) == 2
    with pytest.warns(UserWarning, match=LONGER):
        assert len(list(theirs)) == 12


@pytest.mark.parametrize("workers", [0, 1])
def test_a_length_that_is_asked_for_leaves_the_stream_to_headrace(workers: int) -> None:
    loader = headrace.DataLoader(Sized(2), batch_size=1, num_workers=workers)
    assert len(loader) == 2
    batches = iter(loader)
    assert type(batches._stream) is (WorkerStream if workers else CallerStream)
    assert len(list(batches)) == 2


class Stopping(data.IterableDataset[int]):
    """Its __iter__ raises StopIteration, as a bare next() in it may."""

    def __iter__(self) -> Iterator[int]:
        return iter([next(iter(()))])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_whose_iter_stops_is_blamed_itself(workers: int) -> None:
    loader = headrace.DataLoader(Stopping(), 4, num_workers=workers)
    with pytest.raises(RuntimeError, match="the dataset's __iter__ raised StopIteration"):
        next(iter(loader))


@pytest.mark.parametrize("dataset", [Counting(8), [1, 2]], ids=["stream", "map"])
def test_a_worker_init_fn_that_stops_is_blamed_itself(dataset: Any) -> None:
    loader = headrace.DataLoader(dataset, num_workers=1, worker_init_fn=lambda _: next(iter(())))
    with pytest.raises(RuntimeError, match="worker_init_fn raised StopIteration"):
        next(iter(loader))


def test_a_collate_function_that_stops_does_not_end_the_epoch() -> None:
    def stopping(samples: list[int]) -> int:
        raise StopIteration

    loader = headrace.DataLoader(Counting(8), 4, collate_fn=stopping)
    with pytest.raises(RuntimeError, match="collate_fn raised StopIteration"):
        next(iter(loader))


COUNTS = (7, 3)


class Shared(data.IterableDataset[Any]):
    """Each worker gives another number of samples, with what its generators draw."""

    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad

    def __iter__(self) -> Iterator[Any]:
        info = data.get_worker_info()
        assert info is not None
        for number in range(COUNTS[info.id]):
            if number == self.bad:
                raise ValueError(f"number {number} of worker {info.id}")
            yield {
                "of": info.id,
                "number": number,
                "drawn": torch.rand(2),
                "seed": info.seed,
                "a": random.random(),
            }


OPTIONS: list[dict[str, Any]] = [
    {},
    {"drop_last": True},
    {"batch_size": None},
    {"persistent_workers": True},
    {"prefetch_factor": 5},
    {"generator": 5},
    {"timeout": 60},
]


# One in three is each of the options, and each of the others.
@pytest.mark.parametrize(
    ("options", "workers", "bad"), one_in(3, itertools.product(OPTIONS, [1, 2], [None, 2]))
)
def test_streams_in_workers_equal_torchs(options: dict[str, Any], workers: int, bad: int | None) -> None:
    seen = []
    for kind in (headrace.DataLoader, data.DataLoader):
        torch.manual_seed(3)
        arguments = {"batch_size": 2, "num_workers": workers, "multiprocessing_context": "fork", **options}
        if "generator" in arguments:
            arguments["generator"] = torch.Generator().manual_seed(options["generator"])
        seen.append([*two_epochs(kind(Shared(bad), **arguments)), torch.rand(1)])
    assert same(*seen)


def test_an_epoch_that_is_broken_off_starts_the_streams_again() -> None:
    loader = headrace.DataLoader(Shared(), 2, num_workers=2, persistent_workers=True)
    next(iter(loader))
    batches = [(batch["of"].tolist(), batch["number"].tolist()) for batch in loader]
    assert batches[:2] == [([0, 0], [0, 1]), ([1, 1], [0, 1])]
    assert sum(len(of) for of, _ in batches) == sum(COUNTS)


class Counted(data.IterableDataset[Any]):
    """Its samples name the epoch and what the worker's generator draws."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        return self.samples(self.epoch)

    def samples(self, epoch: int) -> Iterator[Any]:
        info = data.get_worker_info()
        assert info is not None
        for number in range(5):
            yield torch.tensor([info.id, epoch, number, random.random()])


def test_kept_workers_follow_epochs_that_are_broken_off_as_torchs_do() -> None:
    seen = []
    for kind in (headrace.DataLoader, data.DataLoader):
        torch.manual_seed(3)
        loader = kind(Counted(), 1, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
        broken_off = [next(iter(loader)) for _ in range(3)]
        seen.append([*broken_off, *loader])
    assert same(*seen)


class OwnIterator(data.IterableDataset[int]):
    """Is its own iterator, which each call of iter() starts again, and continues after an error."""

    def __iter__(self) -> Iterator[int]:
        self.number = 0
        return self

    def __next__(self) -> int:
        self.number += 1
        if self.number == 3:
            raise ValueError("number 3")
        if self.number > 7:
            raise StopIteration
        return self.number


@pytest.mark.parametrize("batch_size", [1, 2, None])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_is_its_own_iterator_is_started_once(workers: int, batch_size: int | None) -> None:
    ours, theirs = (
        outcomes(iter(kind(OwnIterator(), batch_size, num_workers=workers)), 20)
        for kind in (headrace.DataLoader, data.DataLoader)
    )
    assert same(ours, theirs)


class Uneven(data.IterableDataset[Any]):
    """The first of three workers has fewer samples than the others; it can be resumed."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Iterator[Any]:
        info = data.get_worker_info()
        assert info is not None
        while self.given < (1, 4, 4)[info.id]:
            self.given += 1
            yield torch.tensor([info.id, self.given])
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("cut", [3, 4, 5, 6])
def test_streams_are_resumed_in_order_after_one_has_ended(cut: int) -> None:
    def loader() -> headrace.DataLoader[Any]:
        return headrace.DataLoader(Uneven(), None, num_workers=3)

    first, resumed = loader(), loader()
    batches = iter(first)
    before = [next(batches) for _ in range(cut)]
    resumed.load_state_dict(first.state_dict())
    assert same([*before, *resumed], list(data.DataLoader(Uneven(), None, num_workers=3)))


class FailingAtItsStart(data.IterableDataset[int]):
    """Its second epoch can't be started."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        if self.epoch == 2:
            raise ValueError("no second epoch")
        return iter(range(10))


def test_an_epoch_that_fails_to_start_gives_nothing_of_the_one_before() -> None:
    loader = headrace.DataLoader(FailingAtItsStart(), 1, num_workers=1, persistent_workers=True)
    next(iter(loader))
    batches = iter(loader)
    with pytest.raises(ValueError, match="no second epoch"):
        next(batches)
    assert list(batches) == []
    assert [int(batch) for batch in loader] == list(range(10))


def test_two_iterators_have_streams_of_their_own() -> None:
    loader = headrace.DataLoader(Shared(), 1, num_workers=1)
    pairs = [(a["number"].item(), b["number"].item()) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [(i, i) for i in range(COUNTS[0])]


class Dying(data.IterableDataset[int]):
    """Its second worker is killed after three samples."""

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        assert info is not None
        for number in range(100):
            if info.id == 1 and number == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            yield number


def test_the_death_of_a_streams_worker_ends_the_epoch_with_an_error() -> None:
    loader = headrace.DataLoader(Dying(), 1, num_workers=2)
    batches = iter(loader)
    with pytest.raises(RuntimeError, match=r"killed by SIGKILL.*can't be replaced within an epoch"):
        list(batches)
    with pytest.raises(RuntimeError, match="can't be replaced"):
        next(batches)


class DyingInPlaces(CountedStream):
    """Its second worker is killed before its samples number 0, 3 and 7, `times` times each."""

    def __init__(self, folder: Path, times: int = 1) -> None:
        super().__init__()
        self.folder, self.times = folder, times

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        assert info is not None
        for sample in super().__iter__():
            place = (sample - info.id) // info.num_workers
            for time in range(self.times if info.id == 1 and place in (0, 3, 7) else 0):
                mark = self.folder / f"{place} {time}"
                if not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            yield sample


class DyingByIterator(DyingInPlaces):
    """The same, whose iterators have the state."""

    def __iter__(self) -> Iterator[int]:
        return DyingIterator(self.folder)

    def __getattribute__(self, name: str) -> Any:
        if name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return super().__getattribute__(name)


class DyingIterator(StatefulIterator):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __next__(self) -> int:
        info = data.get_worker_info()
        mark = self.folder / f"{self.place}"
        if info is not None and info.id == 1 and self.place in (2, 7) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__next__()


@pytest.mark.parametrize(
    ("kind", "batch_size", "options"),
    one_in(
        5,
        itertools.product(
            [DyingInPlaces, DyingByIterator],
            [1, 2, None],
            [{}, {"persistent_workers": True}, {"prefetch_factor": 5}],
        ),
    ),
)
def test_a_worker_that_dies_is_replaced_where_its_stream_has_a_state(
    kind: Any, batch_size: int | None, options: dict[str, Any], tmp_path: Path
) -> None:
    loader = headrace.DataLoader(kind(tmp_path), batch_size, num_workers=2, **options)
    first = list(loader)
    assert list(tmp_path.iterdir())
    assert same(first, list(loader))  # nothing dies any more
    samples = [int(sample) for batch in first for sample in torch.as_tensor(batch).reshape(-1)]
    assert sorted(samples) == list(range(23))


def test_a_batch_that_ends_its_worker_twice_ends_the_epoch(tmp_path: Path) -> None:
    loader = headrace.DataLoader(DyingInPlaces(tmp_path, times=2), 1, num_workers=2)
    with pytest.raises(RuntimeError, match=r"killed by SIGKILL.*the next batch.*, for the second time"):
        list(loader)


def test_a_worker_that_is_resumed_and_dies_continues(tmp_path: Path) -> None:
    whole, loader = (
        headrace.DataLoader(each, 2, num_workers=2) for each in (CountedStream(), DyingInPlaces(tmp_path))
    )
    (tmp_path / "0 0").touch()
    batches = iter(whole)
    for _ in range(3):
        next(batches)
    loader.load_state_dict({**whole.state_dict(), "dataset": loader.state_dict()["dataset"]})
    assert same(list(loader), list(batches))
    assert len(list(tmp_path.iterdir())) == 3


class OneEmpty(data.IterableDataset[int]):
    """The second worker has nothing; the first waits for each sample until `go` is set."""

    def __init__(self, go: Any) -> None:
        self.go = go

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        assert info is not None
        if info.id == 0:
            yield 0
            self.go.wait(60)
            yield 1


def test_a_worker_whose_stream_has_ended_ends_before_the_epoch() -> None:
    go = multiprocessing.get_context("fork").Event()
    batches = iter(headrace.DataLoader(OneEmpty(go), None, num_workers=2, multiprocessing_context="fork"))
    assert next(batches) == 0
    idle = batches._workers[1]
    while idle.is_alive():  # it is let go when the loader looks at what has come
        batches._stream.ready()
        idle.join(0.01)
    assert idle.exitcode == 0
    go.set()
    assert list(batches) == [1]


def test_kept_workers_stay_when_their_stream_has_ended() -> None:
    loader = headrace.DataLoader(Shared(), 1, num_workers=2, persistent_workers=True)
    pids = []
    for _ in range(2):
        batches = iter(loader)
        assert len(list(batches)) == sum(COUNTS)
        pids.append([worker.pid for worker in batches._workers])
    assert pids[0] == pids[1]


def test_a_worker_that_dies_after_all_of_its_stream_does_no_harm() -> None:
    go = multiprocessing.get_context("fork").Event()
    batches = iter(
        headrace.DataLoader(
            OneEmpty(go), None, num_workers=2, prefetch_factor=1, multiprocessing_context="fork"
        )
    )
    empty = batches._stream.pool._members.workers[1]
    assert select.select([empty.channel], [], [], 60)[0]  # it has sent the end of its stream
    empty.process.kill()
    empty.process.join()
    go.set()
    assert list(batches) == [0, 1]
