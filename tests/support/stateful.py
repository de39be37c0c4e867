"""Streams and samplers that can be resumed, in the shapes that people write them in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils import data

N = 23


class CountedStream(data.IterableDataset[int]):
    """`n` numbers, shared among workers; its state is its place, 0 again once it has ended."""

    def __init__(self, n: int = 23) -> None:
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


class StatefulSampler(data.Sampler[int]):
    """Another order in each epoch. Its state is its place, 0 again once it has ended, and its epoch.

    Attributes:
        given: the number of indices that this object has yielded.
    """

    def __init__(self, n: int) -> None:
        self.n, self.at, self.epoch, self.given = n, 0, 0, 0

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        while self.at < self.n:
            self.at += 1
            self.given += 1
            yield (self.at * 7 + self.epoch) % self.n
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


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
    """Its iterators have a state, it has none."""

    def __init__(self, *, with_state: bool = True) -> None:
        self.with_state = with_state

    def __iter__(self) -> Iterator[int]:
        return StatefulIterator() if self.with_state else iter(own_range())


class ByIteratorAndDataset(data.IterableDataset[Any]):
    """It knows its epoch, its iterators know the place in it."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        return InEpoch(self)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


class InEpoch(Iterator[Any]):
    """The iterator of `ByIteratorAndDataset`: (epoch, sample)."""

    def __init__(self, dataset: ByIteratorAndDataset) -> None:
        self.dataset, self.place = dataset, 0

    def __next__(self) -> Any:
        if self.place == len(own_range()):
            self.dataset.epoch, self.place = self.dataset.epoch + 1, -1
        if self.place < 0:
            raise StopIteration
        self.place += 1
        return self.dataset.epoch, own_range()[self.place - 1]

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class CountedEpochs(data.IterableDataset[Any]):
    """A generator of (epoch, sample). Where an epoch has ended, its state is that of the next one's start."""

    def __init__(self) -> None:
        self.epoch, self.place = 0, 0

    def __iter__(self) -> Iterator[Any]:
        for sample in own_range()[self.place :]:
            self.place += 1
            yield self.epoch, sample
        self.epoch, self.place = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.place = state["epoch"], state["place"]


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
    """Is its own iterator, which ends once."""

    def __iter__(self) -> Iterator[int]:
        return self


class StartingOver(ItsOwnIterator):
    """Is its own iterator, and starts over with each epoch."""

    def __iter__(self) -> Iterator[int]:
        self.place = 0
        return self


class IteratedSampler(data.Sampler[int]):
    """Its iterators have a state, it has none."""

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        return StatefulIterator()


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
