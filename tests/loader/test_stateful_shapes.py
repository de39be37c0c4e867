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

N = 23


def untouched(samples: list[Any]) -> list[Any]:
    return samples


def own_range() -> range:
    """The samples of this worker."""
    info = data.get_worker_info()
    return range(N) if info is None else range(info.id, N, info.num_workers)


class StatefulIterator(Iterator[int]):
    """Has the state, rather than the dataset."""

    def __init__(self) -> None:
        self.place = 0

    def __next__(self) -> int:
        if self.place >= len(own_range()):
            raise StopIteration
        self.place += 1
        return own_range()[self.place - 1]

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class ByIterator(data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return StatefulIterator()


class WithoutState(data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(own_range())


class ByGenerator(data.IterableDataset[int]):
    """Has the state itself, and is a generator."""

    def __init__(self) -> None:
        self.place, self.resumed = 0, 0

    def __iter__(self) -> Iterator[int]:
        self.place, self.resumed = self.resumed, 0
        for sample in own_range()[self.place :]:
            self.place += 1
            yield sample

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.resumed = state["place"]


class ItsOwnIterator(data.IterableDataset[int], StatefulIterator):  # type: ignore[misc]
    """Is its own iterator."""

    def __iter__(self) -> Iterator[int]:
        return self


class Drawing(data.Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, torch.rand(()).item()


class StatefulSampler(data.Sampler[int]):
    """Its iterators have a state, it has none."""

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        return StatefulIterator()


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
@pytest.mark.parametrize("dataset", [ByGenerator, ItsOwnIterator])
def test_a_stream_with_a_state_resumes(
    dataset: Any, batch_size: int | None, workers: int, received: int
) -> None:
    def make() -> Any:
        return headrace.DataLoader(dataset(), batch_size, num_workers=workers, collate_fn=untouched)

    rest, resumed = rest_and_resumed(make, received)
    assert sorted(map(str, resumed)) == sorted(map(str, rest))
    assert rest


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [ByIterator, WithoutState])
def test_a_stream_without_a_state_of_its_own_resumes_between_epochs_only(dataset: Any, workers: int) -> None:
    loader = headrace.DataLoader(dataset(), 4, num_workers=workers)
    next(iter(loader))
    with pytest.raises(ConfigError, match="unless it has state_dict"):
        loader.state_dict()
    whole = list(loader)
    other = headrace.DataLoader(dataset(), 4, num_workers=workers)
    other.load_state_dict(loader.state_dict())
    assert same(list(other), whole)


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("sampler", [StatefulSampler(), None])
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
