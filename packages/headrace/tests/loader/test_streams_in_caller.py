"""An `IterableDataset` without workers is taken in the calling thread, just as by torch's loader.

Lengths and StopIteration are treated the same with workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils import data

import headrace
from headrace.engine.caller_stream import CallerStream
from headrace.engine.workers.stream import WorkerStream
from support.equal import same

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


def seen(loader: Any) -> list[Any]:
    """Batches and errors of two epochs, in order, in a loop that never asks for a length."""
    events: list[Any] = []
    for _ in range(2):
        batches = iter(loader)
        while True:
            try:
                events.append(next(batches))
            except StopIteration:
                break
            except ValueError as error:
                events.append(str(error))
    return events


@pytest.mark.parametrize("bad", [None, 0, 5])
@pytest.mark.parametrize("count", [0, 8, 10])
@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"batch_size": None}, {"collate_fn": sum}])
def test_streams_in_the_caller_equal_torchs(options: dict[str, Any], count: int, bad: int | None) -> None:
    arguments = {"batch_size": 4, "num_workers": 0, **options}
    ours = headrace.DataLoader(Counting(count, bad), **arguments)
    assert same(seen(ours), seen(data.DataLoader(Counting(count, bad), **arguments)))


@pytest.mark.parametrize("workers", [0, 1])
def test_more_batches_than_a_length_said_are_warned_of_as_by_torch(workers: int) -> None:
    loader = headrace.DataLoader(Sized(12), batch_size=1, num_workers=workers)
    assert len(seen(loader)) == 24
    assert len(loader) == 2
    with pytest.warns(UserWarning, match=LONGER) as warned:
        assert len(list(loader)) == 12
    assert {warning.filename for warning in warned} == {__file__}
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
