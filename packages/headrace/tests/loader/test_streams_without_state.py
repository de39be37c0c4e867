"""A stream without a state resumes: what was received before the state is made again, and dropped."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data.datapipes.iter import IterableWrapper

import headrace
from headrace.errors import ConfigError
from support.equal import same
from support.sampling import one_in
from support.stateful import CountedStream, StatefulIterator, WithoutState, own_range

AGAIN = r".* had no state_dict\(\) and load_state_dict\(\): to resume, the {} samples"


def as_list(samples: list[Any]) -> list[Any]:
    return samples


def saved_after(loader: Any, received: int) -> tuple[dict[str, Any], list[Any]]:
    """The state after so many batches, as JSON has it, and the batches of the epoch that come after it."""
    batches = iter(loader)
    for _ in range(received):
        next(batches)
    return json.loads(json.dumps(loader.state_dict())), list(batches)


def resumed(loader: Any, state: dict[str, Any]) -> list[Any]:
    """The rest of the epoch; that a stream repeats its samples is expected."""
    loader.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", AGAIN.format(r"\d+"))
        return list(loader)


class StateForTrainers(WithoutState):
    """Its state is asked for with arguments, by a loader of the same library."""

    def state_dict(self, samples: int) -> dict[str, int]:
        return {"samples": samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        raise AssertionError(state)


class SometimesStateful(WithoutState):
    """The iterator of the first worker has a state, that of the second has none."""

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        return StatefulIterator() if info is not None and info.id == 0 else iter(own_range())


class OwnIterator(data.IterableDataset[int]):
    """Is its own iterator, which iter() starts over."""

    def __iter__(self) -> Iterator[int]:
        self.number = 0
        return self

    def __next__(self) -> int:
        self.number += 1
        if self.number > len(own_range()):
            raise StopIteration
        return own_range()[self.number - 1]


@pytest.mark.parametrize(
    ("dataset", "workers", "batch_size", "received"),
    [
        *product((WithoutState, StateForTrainers), (0,), (None, 4), (0, 1, 4, 6)),
        *one_in(3, product((WithoutState, OwnIterator, SometimesStateful), (2,), (None, 4), (0, 1, 4, 6))),
    ],
)
def test_a_stream_without_a_state_resumes(
    dataset: Any, workers: int, batch_size: int | None, received: int
) -> None:
    def make() -> Any:
        return headrace.DataLoader(dataset(), batch_size, num_workers=workers, collate_fn=as_list)

    state, rest = saved_after(make(), received)
    loader = make()
    assert resumed(loader, state) == rest
    assert list(loader) == list(make())  # the epoch after it is a whole one


def test_a_resumed_epoch_can_be_saved_and_resumed_once_more() -> None:
    def make() -> Any:
        return headrace.DataLoader(WithoutState(), 3, num_workers=2, collate_fn=as_list)

    state, rest = saved_after(make(), 3)
    second = make()
    second.load_state_dict(state)
    assert json.loads(json.dumps(second.state_dict())) == state
    with pytest.warns(UserWarning, match=AGAIN.format(9)):
        batches = iter(second)
    assert [next(batches), next(batches)] == rest[:2]
    assert resumed(make(), second.state_dict()) == rest[2:]


def test_a_later_epoch_of_kept_workers_resumes() -> None:
    def make() -> Any:
        return headrace.DataLoader(
            WithoutState(), 3, num_workers=2, collate_fn=as_list, persistent_workers=True
        )

    first = make()
    whole = list(first)
    state, rest = saved_after(first, 3)
    loader = make()
    assert resumed(loader, state) == rest == whole[3:]
    assert [list(loader), list(loader)] == [whole, whole]


@pytest.mark.parametrize("damaged", [-1, "4", None])
def test_a_damaged_number_of_samples_is_an_error(damaged: Any) -> None:
    state, _ = saved_after(headrace.DataLoader(WithoutState(), 4, num_workers=0), 1)
    state["streams"][0][1]["headrace.samples"] = damaged
    loader = headrace.DataLoader(WithoutState(), 4, num_workers=0)
    loader.load_state_dict(state)
    with pytest.raises(ConfigError, match="can't be resumed from"):
        iter(loader)


def test_that_samples_are_made_again_is_warned_of_where_the_epoch_starts() -> None:
    state, _ = saved_after(headrace.DataLoader(WithoutState(), 4, num_workers=0), 2)
    loader = headrace.DataLoader(WithoutState(), 4, num_workers=0)
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=AGAIN.format(8)) as warned:
        iter(loader)
    assert [each.filename for each in warned] == [__file__]
    whole = headrace.DataLoader(WithoutState(), 4, num_workers=0)
    list(whole)
    loader.load_state_dict(whole.state_dict())  # between epochs, where nothing is made again
    assert len(list(loader)) == 6


class Drawing(data.IterableDataset[Any]):
    """Its order and its samples depend on what all generators of its process give."""

    def __iter__(self) -> Iterator[Any]:
        for index in torch.randperm(12).tolist():
            yield index, torch.rand(()).item(), float(np.random.rand()), random.random()


def drawing_too(samples: list[Any]) -> Any:
    return samples, torch.rand(()).item(), random.random()


@pytest.mark.parametrize("received", [1, 3])
@pytest.mark.parametrize("given", [True, False])
def test_workers_draw_again_what_they_drew(given: bool, received: int) -> None:
    def make(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed) if given else None
        return headrace.DataLoader(
            Drawing(), 2, num_workers=2, collate_fn=drawing_too, generator=generator, persistent_workers=True
        )

    state, rest = saved_after(make(5), received)
    loader = make(6)
    assert resumed(loader, state) == rest
    assert len(list(loader)) == 12


@pytest.mark.parametrize("batch_size", [1, 3, 8, None])
def test_another_batch_size_resumes_at_the_next_sample(batch_size: int | None) -> None:
    state, rest = saved_after(headrace.DataLoader(WithoutState(), 4, num_workers=0, collate_fn=as_list), 2)
    other = headrace.DataLoader(WithoutState(), batch_size, num_workers=0)
    numbers = [number for batch in resumed(other, state) for number in np.atleast_1d(batch).tolist()]
    assert numbers == [number for batch in rest for number in batch]


class Counting(data.IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_ends_before_the_state_is_an_error(workers: int) -> None:
    state, _ = saved_after(headrace.DataLoader(Counting(9), 2, num_workers=workers), 3)
    loader = headrace.DataLoader(Counting(5), 2, num_workers=workers)
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=AGAIN.format(6)):
        batches = iter(loader)
    with pytest.raises(ConfigError, match=r"after 6 samples of Counting, which has now ended after 5\."):
        next(batches)
    assert list(batches) == []


class Failing(OwnIterator):
    """Its fourth sample can't be made, those after it can."""

    def __next__(self) -> int:
        sample = super().__next__()
        if self.number == 4:
            raise ValueError("the fourth")
        return sample


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_before_the_state_are_raised_again(workers: int) -> None:
    def make() -> Any:
        return headrace.DataLoader(Failing(), 3, num_workers=workers, collate_fn=as_list)

    first = make()
    batches = iter(first)
    got = [next(batches)]
    with pytest.raises(ValueError, match="the fourth"):
        next(batches)
    got.append(next(batches))
    assert got == [[0, 1, 2], [4, 5, 6]]
    second = make()
    second.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match=AGAIN.format(7)):
        rest = iter(second)
    with pytest.raises(ValueError, match="the fourth"):
        next(rest)
    assert list(rest) == list(batches)


def test_a_dataset_that_got_a_state_meanwhile_resumes() -> None:
    state, rest = saved_after(headrace.DataLoader(WithoutState(), 4, num_workers=2, collate_fn=as_list), 3)
    state["dataset"] = headrace.DataLoader(CountedStream(), 4, num_workers=2).state_dict()["dataset"]
    loader = headrace.DataLoader(CountedStream(), 4, num_workers=2, collate_fn=as_list)
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=AGAIN.format(12)):
        batches = iter(loader)
    assert next(batches) == rest[0]
    later = headrace.DataLoader(CountedStream(), 4, num_workers=2, collate_fn=as_list)
    assert same(resumed(later, loader.state_dict()), rest[1:])


def test_a_state_has_the_keys_of_a_stream_that_has_one() -> None:
    states = [saved_after(headrace.DataLoader(each, 4), 1)[0] for each in (WithoutState(), CountedStream())]
    assert states[0].keys() == states[1].keys()


def pipe() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that data pipes are no longer developed
        return IterableWrapper(list(range(9)))


def test_an_epoch_that_torchs_loader_makes_is_saved_but_not_resumed_in_its_middle() -> None:
    loader = headrace.DataLoader(pipe(), 2, num_workers=0)
    state, rest = saved_after(loader, 2)
    assert state["position"] == 2
    other = headrace.DataLoader(pipe(), 2, num_workers=0)
    other.load_state_dict(state)
    with pytest.raises(ConfigError, match=r"can't be resumed in its middle.*saved between epochs"):
        iter(other)
    assert same(list(other)[2:], rest)
