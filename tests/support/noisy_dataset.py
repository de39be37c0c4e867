"""A dataset that draws, in a module that spawned workers can import."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils import data


class Noisy(data.Dataset[Any]):
    """Draws from all three generators."""

    def __init__(self, n: int = 23) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, float, float]:
        return index, torch.rand(2), float(np.random.rand()), random.random()


class NoisyBatches(Noisy):
    """The same, asked for whole batches."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def noisy_collate(samples: list[Any]) -> Any:
    """Draws once for the batch."""
    return data.default_collate(samples), random.random(), torch.rand(1)
