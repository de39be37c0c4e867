"""Where the samples of a dataset that runs as Python are made."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import headrace
from headrace._machine import usable_cores


class Places(Dataset[Any]):
    """Sample i is the process and the thread that it was made in."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return os.getpid(), threading.get_native_id()


class Stream(IterableDataset[int]):
    """Three numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def places(**arguments: Any) -> set[tuple[int, int]]:
    loader = headrace.DataLoader(Places(), batch_size=2, **arguments)
    return {(int(p), int(t)) for pids, ids in loader for p, t in zip(pids, ids, strict=True)}


@pytest.mark.parametrize("kind", ["auto", "process"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_as_many_processes_are_used_as_were_asked_for(kind: Any, workers: int) -> None:
    pids = {pid for pid, _ in places(num_workers=workers, worker_kind=kind)}
    assert len(pids) == workers
    assert os.getpid() not in pids


def test_by_default_there_is_a_process_for_each_usable_core() -> None:
    assert len({pid for pid, _ in places()}) == min(usable_cores(), 32)
    cores = usable_cores()
    plural = "process" if cores == 1 else "processes"
    assert f"workers: {cores} {plural}: one for each usable core" in headrace.DataLoader(Places()).explain()


@pytest.mark.parametrize("kind", ["auto", "process", "thread"])
def test_without_workers_the_caller_makes_samples(kind: Any) -> None:
    assert places(num_workers=0, worker_kind=kind) == {(os.getpid(), threading.get_native_id())}


def test_threads_are_used_where_they_were_asked_for() -> None:
    made_in = places(num_workers=3, worker_kind="thread")
    assert {pid for pid, _ in made_in} == {os.getpid()}
    assert threading.get_native_id() not in {thread for _, thread in made_in}


def test_the_number_of_workers_may_be_changed_between_epochs() -> None:
    loader = headrace.DataLoader(Places(), batch_size=2, num_workers=2)
    for workers in (2, 3, 1):
        loader.num_workers = workers
        assert len({int(pid) for pids, _ in loader for pid in pids}) == workers
    loader.num_workers = 0
    assert {int(pid) for pids, _ in loader for pid in pids} == {os.getpid()}


def test_rows_of_a_tensor_dataset_are_picked_by_the_caller() -> None:
    loader = headrace.DataLoader(TensorDataset(torch.arange(8)), 4, collate_fn=list)
    assert "workers: none: a process would take longer to send a row than to pick it" in loader.explain()
    assert len(list(loader)) == 2


def test_the_workers_are_explained_before_the_first_epoch() -> None:
    loader = headrace.DataLoader(Places(), num_workers=3)
    assert "workers: 3 processes: num_workers=3; each has a copy of the dataset" in loader.explain()
    loader = headrace.DataLoader(Places(), num_workers=3, worker_kind="thread")
    assert "workers: 3 threads: num_workers=3, worker_kind='thread'; they share" in loader.explain()
    loader = headrace.DataLoader(Places(), num_workers=0)
    assert "workers: none: num_workers=0" in loader.explain()


def test_the_workers_of_a_stream_are_explained() -> None:
    assert "workers: none: the default for an IterableDataset" in headrace.DataLoader(Stream()).explain()
    assert "workers: none: num_workers=0" in headrace.DataLoader(Stream(), num_workers=0).explain()
    several = headrace.DataLoader(Stream(), num_workers=2).explain()
    assert "workers: 2 processes: each iterates over its own copy of the dataset" in several


@pytest.mark.parametrize("kind", ["fibre", None, 3])
def test_an_unknown_kind_is_refused(kind: Any) -> None:
    with pytest.raises(headrace.ConfigError, match=r"worker_kind .* must be 'auto', 'thread' or 'process'"):
        headrace.DataLoader(Places(), worker_kind=kind)


class Draws(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(2)


def test_drawn_samples_are_the_same_whatever_the_workers() -> None:
    def epoch(**arguments: Any) -> list[Any]:
        return [batch.tolist() for batch in headrace.DataLoader(Draws(), 4, seed=3, **arguments)]

    assert epoch() == epoch(num_workers=0) == epoch(num_workers=1)
