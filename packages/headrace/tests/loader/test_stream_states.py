"""States of streams: of the dataset, of its iterator, of both, or of neither, when samples are made again."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data.datapipes.iter import IterableWrapper

import headrace
from headrace.errors import ConfigError
from support.datasets import Stream
from support.equal import outcomes, same
from support.stateful import (
    ByGenerator,
    ByIterator,
    ByIteratorAndDataset,
    CountedEpochs,
    CountedStream,
    ItsOwnIterator,
    OwnIterator,
    StatefulIterator,
    WithoutState,
)

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


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_ends_before_the_state_is_an_error(workers: int) -> None:
    state, _ = saved_after(headrace.DataLoader(Stream(9), 2, num_workers=workers), 3)
    loader = headrace.DataLoader(Stream(5), 2, num_workers=workers)
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=AGAIN.format(6)):
        batches = iter(loader)
    with pytest.raises(ConfigError, match=r"after 6 samples of Stream, which has now ended after 5\."):
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


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("received", [0, 1, 5])
@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("dataset", [CountedEpochs, ByIteratorAndDataset])
def test_a_stream_that_counts_its_epochs_continues_after_the_end_of_one(
    dataset: Any, kept: int, received: int, told: bool
) -> None:
    def make() -> Any:
        return headrace.DataLoader(
            dataset(), 4, num_workers=kept, persistent_workers=kept > 0, collate_fn=as_list
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
        return headrace.DataLoader(CountedEpochs(), 4, num_workers=0, collate_fn=as_list)

    first, second = make(), make()
    list(first)
    batches = iter(first)
    second.load_state_dict(first.state_dict())
    assert [list(second), list(second)] == [list(batches), list(first)]


def test_a_loaded_end_of_an_epoch_replaces_workers_that_are_kept() -> None:
    first, second = (
        headrace.DataLoader(CountedEpochs(), 4, num_workers=1, persistent_workers=True, collate_fn=as_list)
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
            dataset(), 4, num_workers=kept, persistent_workers=kept > 0, collate_fn=as_list
        )

    first, second = make(), make()
    whole = list(first)
    second.load_state_dict(first.state_dict())
    assert list(second) == whole


@pytest.mark.parametrize(("kept", "asked"), [(0, True), (0, False), (2, True)])
@pytest.mark.parametrize("dataset", [ByGenerator, CountedEpochs, ByIteratorAndDataset, ByIterator])
def test_the_epoch_after_a_state_of_the_last_batch_is_whole(dataset: Any, kept: int, asked: bool) -> None:
    def make() -> Any:
        return headrace.DataLoader(
            dataset(), 4, num_workers=kept, persistent_workers=kept > 0, collate_fn=as_list
        )

    first, second = make(), make()
    batches = iter(first)
    for _ in range(len(list(make()))):
        next(batches)
    second.load_state_dict(first.state_dict())
    assert list(batches) == []
    rest = iter(second)
    if asked:
        assert list(rest) == []
    elif dataset is ByGenerator:  # it starts at the end that was loaded, as nobody has seen that
        return
    assert [list(second), list(second)] == [list(first), list(first)]


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
        return headrace.DataLoader(DrawnStream(), 4, num_workers=3, collate_fn=as_list)

    state, rest = saved_after(make(), received)
    assert resumed(make(), state) == rest


def test_a_state_of_an_iterator_is_not_lost_where_iterators_have_none_by_now() -> None:
    loader = headrace.DataLoader(ByIterator(), 4, num_workers=0)
    next(iter(loader))
    state = loader.state_dict()
    other = headrace.DataLoader(ByIterator(with_state=False), 4, num_workers=0)
    other.load_state_dict(state)
    with pytest.raises(ConfigError, match="has no load_state_dict"):
        iter(other)


class FailingStateful(StatefulIterator):
    """Its sixth sample can't be made, those after it can."""

    def __next__(self) -> int:
        sample = super().__next__()
        if self.place == 6:
            raise ValueError("the sixth")
        return sample


class FailingStream(data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return FailingStateful()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_with_a_state_continues_after_an_error_as_with_torch(workers: int) -> None:
    ours, theirs = (
        outcomes(iter(kind(FailingStream(), 4, num_workers=workers)))
        for kind in (headrace.DataLoader, data.DataLoader)
    )
    assert same(ours, theirs)
