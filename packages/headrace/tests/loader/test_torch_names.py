"""Names of torch's iterators that are private, and yet used by trainers and by clean-up code."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torchvision.datasets import ImageFolder

import headrace
from headrace import _torch_compat

N = 40


class Numbers(data.Dataset[int]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return index


class Stream(data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(N))


class ResumableStream(Stream):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


IN_PROCESSES = {"map": Numbers(), "stream": Stream(), "resumable stream": ResumableStream()}


def kinds(dataset: ImageFolder) -> dict[str, headrace.DataLoader[Any]]:
    return {
        "native": headrace.DataLoader(dataset, 2, num_workers=2),
        "gathered": headrace.DataLoader(data.TensorDataset(torch.arange(N)), 2),
        "threads": headrace.DataLoader(Numbers(), 2, num_workers=2, worker_kind="thread"),
        "in the caller": headrace.DataLoader(Numbers(), 2, num_workers=0),
        "stream in the caller": headrace.DataLoader(Stream(), 2),
    }


def alive(processes: list[Any]) -> list[bool]:
    return [process.is_alive() for process in processes]


def test_iterators_are_of_torchs_class(dataset: ImageFolder) -> None:
    in_processes = [headrace.DataLoader(each, num_workers=1) for each in IN_PROCESSES.values()]
    for loader in (*kinds(dataset).values(), *in_processes):
        iterator = iter(loader)
        assert isinstance(iterator, _BaseDataLoaderIter)
        assert iter(iterator) is iterator
        with pytest.raises(NotImplementedError, match="cannot be pickled"):
            pickle.dumps(iterator)


def test_without_worker_processes_there_is_nothing_to_shut_down(dataset: ImageFolder) -> None:
    for loader in kinds(dataset).values():
        iterator = iter(loader)
        next(iterator)
        assert iterator._workers == []
        assert loader._iterator is None
        iterator._shutdown_workers()
        assert len(list(loader)) == len(list(loader)) > 0


@pytest.mark.parametrize("kind", IN_PROCESSES)
@pytest.mark.parametrize("persistent", [False, True])
def test_shutting_down_ends_the_workers_of_an_epoch(kind: str, persistent: bool) -> None:
    loader = headrace.DataLoader(IN_PROCESSES[kind], 2, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    next(iterator)
    workers = iterator._workers
    assert alive(workers) == [True, True]
    iterator._shutdown_workers()
    assert alive(workers) == [False, False]
    assert [worker.exitcode for worker in workers] == [0, 0]
    with pytest.raises(RuntimeError, match="were shut down; start another epoch"):
        next(iterator)
    assert len(list(loader)) == (N // 2 if kind == "map" else N)


@pytest.mark.parametrize("kind", IN_PROCESSES)
def test_workers_can_be_asked_for_their_end_after_the_epoch(kind: str) -> None:
    iterator = iter(headrace.DataLoader(IN_PROCESSES[kind], 2, num_workers=2))
    workers = iterator._workers
    list(iterator)
    del iterator
    for worker in workers:
        worker.join(60)
        worker.terminate()
    assert alive(workers) == [False, False]
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_workers_are_listed_by_their_number_also_after_the_epoch() -> None:
    class Pids(Numbers):
        def __getitem__(self, index: int) -> int:
            info = data.get_worker_info()
            assert info is not None
            return info.id

    iterator = iter(headrace.DataLoader(Pids(), 2, num_workers=2))
    pids = [worker.pid for worker in iterator._workers]
    list(iterator)
    assert [worker.pid for worker in iterator._workers] == pids


@pytest.mark.parametrize("kind", IN_PROCESSES)
def test_clean_up_as_trainers_do_it_ends_kept_workers(kind: str) -> None:
    loader = headrace.DataLoader(IN_PROCESSES[kind], 2, num_workers=2, persistent_workers=True)
    assert loader._iterator is None
    for _ in range(2):
        whole = len(list(loader))
        kept: Any = loader._iterator
        workers = kept._workers
        assert alive(workers) == [True, True]
        kept._shutdown_workers()
        loader._iterator = None
        assert alive(workers) == [False, False]
        assert loader._iterator is None
    assert len(list(loader)) == whole


def test_setting_no_iterator_ends_kept_workers() -> None:
    """Lightning only does this, where the iterator isn't torch's own of several processes."""
    loader = headrace.DataLoader(Numbers(), 2, num_workers=2, persistent_workers=True)
    list(loader)
    workers = loader._iterator._workers
    loader._iterator = None
    for worker in workers:
        worker.join(60)
    assert alive(workers) == [False, False]


def test_the_iterator_in_use_is_shown_where_workers_are_kept() -> None:
    loader = headrace.DataLoader(Numbers(), 2, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    assert loader._iterator is iterator
    assert len(list(iterator)) == N // 2 - 1
    kept: Any = loader._iterator
    assert alive(kept._workers) == [True, True]
    assert isinstance(kept, _BaseDataLoaderIter)
    with pytest.raises(StopIteration):
        next(kept)


def test_iterators_work_where_torchs_class_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.utils.data.dataloader._BaseDataLoaderIter")
    assert _torch_compat._iterator_base() is Iterator


@pytest.fixture
def one_core() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("kind", IN_PROCESSES)
def test_more_processes_than_cores_are_warned_of_once_where_they_are_started(kind: str) -> None:
    loader = headrace.DataLoader(IN_PROCESSES[kind], N, num_workers=2)
    with pytest.warns(UserWarning, match="excessive worker creation might get DataLoader running slow"):
        list(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)


def test_nobody_is_warned_of_processes_that_are_not_started() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = headrace.DataLoader(data.TensorDataset(torch.arange(4)), num_workers=1000)
        assert len(list(loader)) == 4
