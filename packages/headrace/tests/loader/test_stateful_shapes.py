"""What resumes of the shapes that datasets have for torchdata's StatefulDataLoader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch.utils import data

import headrace
from headrace.errors import ConfigError
from support.equal import same
from support.sampling import one_in
from support.stateful import (
    ByGenerator,
    ByIterator,
    ByIteratorAndDataset,
    CountedEpochs,
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


SHAPES = (ByGenerator, ByIterator, ByIteratorAndDataset, ItsOwnIterator, StartingOver)


@pytest.mark.parametrize(
    ("dataset", "workers", "batch_size", "received"),
    [
        *product(SHAPES, (0,), (None, 4), (0, 1, 4)),
        *one_in(4, product(SHAPES, (3,), (None, 4), (0, 1, 4))),
    ],
)
def test_a_stream_with_a_state_resumes(
    dataset: Any, batch_size: int | None, workers: int, received: int
) -> None:
    def make() -> Any:
        return headrace.DataLoader(dataset(), batch_size, num_workers=workers, collate_fn=untouched)

    rest, resumed = rest_and_resumed(make, received)
    assert sorted(map(str, resumed)) == sorted(map(str, rest))
    assert rest


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("received", [0, 1, 5])
@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("dataset", [CountedEpochs, ByIteratorAndDataset])
def test_a_stream_that_counts_its_epochs_continues_after_the_end_of_one(
    dataset: Any, kept: int, received: int, told: bool
) -> None:
    def make() -> Any:
        return headrace.DataLoader(
            dataset(), 4, num_workers=kept, persistent_workers=kept > 0, collate_fn=untouched
        )

    first, second = make(), make()
    list(first)
    if told:
        first.set_epoch(1)
    batches = iter(first) if received else None
    for _ in range(received):
        next(batches)  # type: ignore[arg-type]
    state = json.dumps(first.state_dict())
    second.load_state_dict(json.loads(state))
    assert json.dumps(second.state_dict()) == state
    expected = [list(first if batches is None else batches), list(first), list(first)]
    assert expected[0][0][0][0] == 1
    assert [list(second), list(second), list(second)] == expected


def test_a_stream_that_counts_its_epochs_continues_before_the_first_batch_of_one() -> None:
    def make() -> Any:
        return headrace.DataLoader(CountedEpochs(), 4, num_workers=0, collate_fn=untouched)

    first, second = make(), make()
    list(first)
    batches = iter(first)
    second.load_state_dict(first.state_dict())
    assert [list(second), list(second)] == [list(batches), list(first)]


def test_a_loaded_end_of_an_epoch_replaces_workers_that_are_kept() -> None:
    first, second = (
        headrace.DataLoader(CountedEpochs(), 4, num_workers=1, persistent_workers=True, collate_fn=untouched)
        for _ in range(2)
    )
    list(first), list(first), list(second)
    second.load_state_dict(first.state_dict())
    assert list(second) == list(first)


@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("dataset", [ByGenerator, ItsOwnIterator])
def test_a_stream_whose_state_stays_at_its_end_starts_over_where_that_is_loaded(
    dataset: Any, kept: int
) -> None:
    def make() -> Any:
        return headrace.DataLoader(
            dataset(), 4, num_workers=kept, persistent_workers=kept > 0, collate_fn=untouched
        )

    first, second = make(), make()
    whole = list(first)
    second.load_state_dict(first.state_dict())
    assert list(second) == whole


def test_a_state_of_an_earlier_version_between_epochs_is_loaded() -> None:
    first, second = (headrace.DataLoader(CountedEpochs(), 4, num_workers=0) for _ in range(2))
    whole = list(first)
    state = first.state_dict()
    del state["before"]
    second.load_state_dict({**state, "streams": ()})
    assert same(list(second), whole)


class DrawnSamples(StatefulIterator):
    """Its state has that of the generator that it draws from."""

    def __next__(self) -> Any:
        return super().__next__(), torch.rand(()).item()

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place, "generator": torch.get_rng_state().tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]
        torch.set_rng_state(torch.tensor(state["generator"], dtype=torch.uint8))


class DrawnStream(data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return DrawnSamples()


@pytest.mark.parametrize("received", [0, 1, 4])
def test_workers_that_had_given_nothing_draw_what_they_would_have_drawn(received: int) -> None:
    def make() -> Any:
        return headrace.DataLoader(DrawnStream(), 4, num_workers=3, collate_fn=untouched)

    rest, resumed = rest_and_resumed(make, received)
    assert resumed == rest


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
