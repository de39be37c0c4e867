"""A state saved after any batch of an epoch, also the last, resumes with the rest, which may be empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data
from torch.utils.data import BatchSampler

import headrace
from support.datasets import Numbers
from support.equal import same
from support.sampling import one_in
from support.stateful import (
    ByGenerator,
    ByIterator,
    ByIteratorAndDataset,
    CountedStream,
    ItsOwnIterator,
    OwnIterator,
    StartingOver,
    StatefulIterator,
    StatefulSampler,
    WithoutState,
)


def resumed_everywhere(make: Any, batches: int) -> None:
    """Every cut of the first epoch: its rest and the epoch after it are those of a loader without a break."""
    whole = make()
    torch.manual_seed(1)
    first, second = list(whole), list(whole)
    assert len(first) == batches
    for cut in range(batches + 1):
        torch.manual_seed(1)
        broken = make()
        iterator = iter(broken)
        got = [next(iterator) for _ in range(cut)]
        state, generators = broken.state_dict(), torch.get_rng_state()
        resumed = make()
        resumed.load_state_dict(state)
        torch.set_rng_state(generators)
        assert same(got + list(resumed), first), cut
        if cut:  # before the first batch, torch has perhaps not drawn what the sampler needs
            assert same(list(resumed), second), cut


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
        return StatefulIterator() if info is not None and info.id == 0 else super().__iter__()


WITH_STATE = (ByIteratorAndDataset, ByIterator, StartingOver)
WITHOUT_STATE = (WithoutState, StateForTrainers, SometimesStateful, OwnIterator)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("workers", "n", "drop_last", "persistent"),
    [
        (0, 8, False, False),
        (0, 11, False, False),
        (0, 11, True, False),
        (1, 11, True, True),
        pytest.param(2, 8, False, True, marks=pytest.mark.long),
        (2, 11, False, True),
        pytest.param(2, 11, True, False, marks=pytest.mark.long),
        (3, 2, False, False),
        pytest.param(3, 2, True, True, marks=pytest.mark.long),
    ],
)
def test_streams_resume_at_every_cut(workers: int, n: int, drop_last: bool, persistent: bool) -> None:
    def make() -> headrace.DataLoader:
        return headrace.DataLoader(
            CountedStream(n), 4, num_workers=workers, drop_last=drop_last, persistent_workers=persistent
        )

    # Each worker makes batches of its own share of the samples.
    shares = [len(range(worker, n, max(1, workers))) for worker in range(max(1, workers))]
    # Their order is a rule only as long as all of them have one more to give.
    resumed_everywhere(make, sum(share // 4 if drop_last else -(-share // 4) for share in shares))


def test_samples_of_a_stream_that_are_not_batched_resume_at_every_cut() -> None:
    resumed_everywhere(lambda: headrace.DataLoader(CountedStream(5), None, num_workers=0), 5)


@pytest.mark.filterwarnings(r"ignore:.* had no state_dict\(\)")
@pytest.mark.parametrize(
    ("dataset", "workers", "batch_size", "batches"),
    [
        *((kind, 0, *sizes) for kind in (*WITH_STATE, *WITHOUT_STATE) for sizes in ((4, 6), (None, 23))),
        *((kind, 0, None, 23) for kind in (ItsOwnIterator, ByGenerator)),
        *one_in(3, ((kind, 2, 4, 6) for kind in (*WITH_STATE, ByGenerator))),
        *one_in(2, ((kind, 2, 4, 6) for kind in WITHOUT_STATE)),
    ],
)
def test_streams_with_a_state_in_any_shape_and_without_one_resume_at_every_cut(
    dataset: Any, workers: int, batch_size: int | None, batches: int
) -> None:
    resumed_everywhere(lambda: headrace.DataLoader(dataset(), batch_size, num_workers=workers), batches)


KINDS = ("in order", "shuffled", "generator", "random", "stateful", "batches", "stateful batches")


@pytest.mark.parametrize(
    ("kind", "n", "workers"),
    [
        *((kind, n, 0) for kind in KINDS for n in (8, 11)),
        *(("shuffled", 8, 2), pytest.param("generator", 11, 2, marks=pytest.mark.long)),
        *(("stateful", 11, 2), pytest.param("stateful batches", 8, 2, marks=pytest.mark.long)),
    ],
)
def test_samplers_resume_at_every_cut(kind: str, n: int, workers: int) -> None:
    def make() -> headrace.DataLoader:
        kinds: dict[str, Any] = {
            "in order": dict,
            "shuffled": lambda: {"shuffle": True},
            "generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
            "random": lambda: {"sampler": data.RandomSampler(range(n))},
            "stateful": lambda: {"sampler": StatefulSampler(n)},
            "batches": lambda: {"batch_sampler": BatchSampler(data.RandomSampler(range(n)), 4, False)},
            "stateful batches": lambda: {"batch_sampler": BatchSampler(StatefulSampler(n), 4, False)},
        }
        settings = kinds[kind]()
        if "batch_sampler" not in settings:
            settings["batch_size"] = 4
        return headrace.DataLoader(Numbers(n), num_workers=workers, **settings)

    resumed_everywhere(make, -(-n // 4))
