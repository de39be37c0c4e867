"""What resumes of the shapes that datasets have for torchdata's StatefulDataLoader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data

import headrace
from headrace.errors import ConfigError
from support.equal import same
from support.stateful import (
    ByGenerator,
    ByIterator,
    ByIteratorAndDataset,
    IteratedSampler,
    ItsOwnIterator,
    N,
    StartingOver,
    StatefulIterator,
)


def untouched(samples: list[Any]) -> list[Any]:
    return samples


class Drawing(data.Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, torch.rand(()).item()


def rest_and_resumed(make: Any, received: int) -> tuple[list[Any], list[Any]]:
    """What comes after so many batches, and what a new loader makes of the state at that place, as JSON."""
    loader = make()
    iterator = iter(loader)
    for _ in range(received):
        next(iterator)
    state = json.dumps(loader.state_dict())
    rest = list(iterator)
    other = make()
    other.load_state_dict(json.loads(state))
    return rest, list(other)


@pytest.mark.parametrize("received", [0, 1, 4])
@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize(
    "dataset", [ByGenerator, ByIterator, ByIteratorAndDataset, ItsOwnIterator, StartingOver]
)
def test_a_stream_with_a_state_resumes(
    dataset: Any, batch_size: int | None, workers: int, received: int
) -> None:
    def make() -> Any:
        return headrace.DataLoader(dataset(), batch_size, num_workers=workers, collate_fn=untouched)

    rest, resumed = rest_and_resumed(make, received)
    assert sorted(map(str, resumed)) == sorted(map(str, rest))
    assert rest


def test_a_state_of_an_iterator_is_not_lost_where_iterators_have_none_by_now() -> None:
    loader = headrace.DataLoader(ByIterator(), 4, num_workers=0)
    next(iter(loader))
    state = loader.state_dict()
    other = headrace.DataLoader(ByIterator(with_state=False), 4, num_workers=0)
    other.load_state_dict(state)
    with pytest.raises(ConfigError, match="has no load_state_dict"):
        iter(other)


class Failing(StatefulIterator):
    """Its sixth sample can't be made, those after it can."""

    def __next__(self) -> int:
        sample = super().__next__()
        if self.place == 6:
            raise ValueError("the sixth")
        return sample


class FailingStream(data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return Failing()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_with_a_state_continues_after_an_error_as_with_torch(workers: int) -> None:
    seen = []
    for kind in (headrace.DataLoader, data.DataLoader):
        batches, found = iter(kind(FailingStream(), 4, num_workers=workers)), list[Any]()
        while True:
            try:
                found.append(next(batches))
            except StopIteration:
                break
            except ValueError:
                found.append("error")
        seen.append(found)
    assert same(*seen)


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("sampler", [IteratedSampler(), None])
def test_samples_that_draw_resume_with_a_seed(sampler: Any, workers: int) -> None:
    def make() -> Any:
        shuffle = None if sampler else True
        options: dict[str, Any] = {"sampler": sampler, "shuffle": shuffle, "num_workers": workers}
        return headrace.DataLoader(Drawing(), 4, seed=5, collate_fn=untouched, **options)

    rest, resumed = rest_and_resumed(make, 3)
    assert resumed == rest


def test_another_number_of_workers_resumes() -> None:
    first = headrace.DataLoader(Drawing(), 4, num_workers=0, seed=5, collate_fn=untouched)
    iterator = iter(first)
    next(iterator)
    second = headrace.DataLoader(Drawing(), 4, num_workers=2, seed=5, collate_fn=untouched)
    second.load_state_dict(first.state_dict())
    assert list(second) == list(iterator)
