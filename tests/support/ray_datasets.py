"""Datasets for the stage, and what it must give of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import headrace
from support.unknown import Jitter, Rotation

N, SIZE, SEED, EPOCH = 40, 24, 7, 3

DRAWN = (v1.RandomResizedCrop(SIZE), v1.RandomHorizontalFlip())
VALUES = (v1.ToTensor(), v1.Normalize((0.2, 0.3, 0.4), (0.5, 0.6, 0.7)))


class Noisy(Dataset[Any]):
    """Python that draws from torch's and NumPy's generators."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"noise": torch.rand(3) + i, "other": np.random.rand(2), "name": f"sample {i}"}


class KillOnce:
    """A target_transform that kills the process it runs in, at its `after`th call, unless `mark` is there."""

    def __init__(self, mark: Path, after: int) -> None:
        self.mark, self.left = mark, after

    def __call__(self, label: int) -> int:
        self.left -= 1
        if self.left == 0 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return label


def sets(folder: Path) -> dict[str, Any]:
    """One dataset for each way in which samples are made."""
    middle = (Jitter(0.4, 0.4, 0.4), Rotation(10))
    return {
        "float32": ImageFolder(str(folder), v1.Compose([*DRAWN, *VALUES])),
        "uint8": ImageFolder(str(folder), v1.Compose([*DRAWN, v1.PILToTensor()])),
        "erased": ImageFolder(
            str(folder), v1.Compose([*DRAWN, *VALUES, v1.RandomErasing(1.0, value="random")])
        ),
        "unknown": ImageFolder(str(folder), v1.Compose([*DRAWN, *middle, *VALUES])),
        "python": Noisy(),
        "tensors": TensorDataset(torch.arange(2.0 * N).view(N, 2), torch.arange(N)),
    }


def epoch_of(dataset: Any, batch_size: int = 8) -> list[Any]:
    """The batches that a loader gives."""
    loader = headrace.DataLoader(dataset, batch_size, shuffle=True, seed=SEED, num_workers=0)
    loader.set_epoch(EPOCH)
    return list(loader)


def samples_of(batches: list[Any]) -> list[dict[str, Any]]:
    """Samples in the epoch's order, as columns name them."""
    samples = []
    for batch in batches:
        named = batch if isinstance(batch, dict) else {"image": batch[0], "label": batch[1]}
        count = len(next(iter(named.values())))
        samples += [{name: column[i] for name, column in named.items()} for i in range(count)]
    return samples


def same_row(row: dict[str, Any], sample: dict[str, Any]) -> bool:
    """Equal in names, dtypes and bits."""
    return row.keys() == sample.keys() and all(
        row[name] == value
        if isinstance(value, str)
        else torch.equal(torch.as_tensor(np.array(row[name])), torch.as_tensor(value))
        and torch.as_tensor(np.array(row[name])).dtype == value.dtype
        for name, value in sample.items()
    )
