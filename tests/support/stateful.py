"""A stream and a sampler that can be resumed."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils import data


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
