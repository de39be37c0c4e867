"""Small datasets, streams and samplers that several tests use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import data


class Numbers(data.Dataset[int]):
    """Sample i is i, times `scale`."""

    def __init__(self, n: int, scale: int = 1) -> None:
        self.n = n
        self.scale = scale

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index * self.scale


class Made(data.Dataset[Any]):
    """Sample i is what `make` gives for i."""

    def __init__(self, make: Callable[[int], Any], n: int = 8) -> None:
        self.make = make
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Stream(data.IterableDataset[int]):
    """So many numbers, without a state or a length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


class DrawnOrder(data.Sampler[int]):
    """Draws its order from torch's generator when it is started, not when it is asked for the first index."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.n).tolist())


class Box:
    """A type that torch doesn't collate."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Rows(data.Dataset[torch.Tensor]):
    """Rows of one number, each of which takes so many seconds to make."""

    def __init__(self, count: int, seconds: float = 0.0) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.tensor([float(index)])
