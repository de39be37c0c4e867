"""A state saved after any batch of an epoch, also the last, resumes with the rest, which may be empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data
from torch.utils.data import BatchSampler

import headrace
from support.equal import same

N = 11


class Shared(data.IterableDataset[int]):
    """`n` numbers, shared among workers; its state is its place, 0 again once it has ended."""

    def __init__(self, n: int = N) -> None:
        self.n = n
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        while self.at * workers + worker < self.n:
            self.at += 1
            yield (self.at - 1) * workers + worker
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class EpochsOfItsOwn(data.Sampler[int]):
    """A sampler with a state: its place, 0 again once it has ended, and its epoch."""

    def __init__(self, n: int) -> None:
        self.n, self.at, self.epoch = n, 0, 0

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        while self.at < self.n:
            self.at += 1
            yield (self.at * 7 + self.epoch) % self.n
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class Numbers(data.Dataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


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


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(("workers", "n"), [(0, 8), (0, 11), (1, 11), (2, 8), (2, 11), (3, 2)])
def test_streams_resume_at_every_cut(workers: int, n: int, drop_last: bool, persistent: bool) -> None:
    if persistent and not workers:
        return

    def make() -> headrace.DataLoader:
        return headrace.DataLoader(
            Shared(n), 4, num_workers=workers, drop_last=drop_last, persistent_workers=persistent
        )

    # Each worker makes batches of its own share of the samples.
    shares = [len(range(worker, n, max(1, workers))) for worker in range(max(1, workers))]
    # Their order is a rule only as long as all of them have one more to give.
    resumed_everywhere(make, sum(share // 4 if drop_last else -(-share // 4) for share in shares))


def test_samples_of_a_stream_that_are_not_batched_resume_at_every_cut() -> None:
    resumed_everywhere(lambda: headrace.DataLoader(Shared(5), None, num_workers=0), 5)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("n", [8, 11])
@pytest.mark.parametrize(
    "kind", ["in order", "shuffled", "generator", "random", "stateful", "batches", "stateful batches"]
)
def test_samplers_resume_at_every_cut(kind: str, n: int, workers: int) -> None:
    def make() -> headrace.DataLoader:
        settings: dict[str, Any] = {
            "in order": dict,
            "shuffled": lambda: {"shuffle": True},
            "generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
            "random": lambda: {"sampler": data.RandomSampler(range(n))},
            "stateful": lambda: {"sampler": EpochsOfItsOwn(n)},
            "batches": lambda: {"batch_sampler": BatchSampler(data.RandomSampler(range(n)), 4, False)},
            "stateful batches": lambda: {"batch_sampler": BatchSampler(EpochsOfItsOwn(n), 4, False)},
        }[kind]()
        if "batch_sampler" not in settings:
            settings["batch_size"] = 4
        return headrace.DataLoader(Numbers(n), num_workers=workers, **settings)

    resumed_everywhere(make, -(-n // 4))
