"""Datasets of which it is known what takes their time; importable, as spawned workers need them."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset
from torchvision import transforms

SAMPLES = 32


def compute(seconds: float) -> int:
    """Computes in Python, which holds the GIL."""
    until, rounds = perf_counter() + seconds, 0
    while perf_counter() < until:
        rounds += 1
    return rounds


class SlowFile(io.RawIOBase):
    """A file on a slow disk."""

    def read(self, size: int = -1) -> bytes:
        sleep(0.02)
        return bytes(max(size, 16))


class Reads(Dataset[torch.Tensor]):
    """Reads, and computes a little."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        compute(0.0002)
        return torch.tensor(list(SlowFile().read()))


class Decodes(Dataset[np.ndarray]):
    """Decodes a JPEG image."""

    def __init__(self) -> None:
        noise = np.random.default_rng(0).integers(0, 255, (1200, 1600, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).save(file, "jpeg", quality=90)
        self.file = file.getvalue()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> np.ndarray:
        picture = Image.open(io.BytesIO(self.file)).convert("RGB")
        return np.array(picture.crop((0, 0, 8, 8)))


class Heavy:
    """A transform that takes long."""

    def __call__(self, picture: Any) -> Any:
        compute(0.02)
        return picture


class Transforms(Dataset[torch.Tensor]):
    """Runs a heavy transform amid light ones."""

    def __init__(self) -> None:
        self.picture = Image.new("RGB", (64, 48))
        self.transform = transforms.Compose(
            [transforms.RandomHorizontalFlip(), Heavy(), transforms.ToTensor()]
        )

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(self.picture)


class Numbers(Dataset[int]):
    """The numbers 0 to `SAMPLES` - 1, computed for a millisecond each."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        compute(0.001)
        return index


class Computes(Numbers):
    """Computes for long, in the dataset's own code."""

    def __getitem__(self, index: int) -> int:
        compute(0.02)
        return index


class SlowNumber(Numbers):
    """One of the numbers takes long."""

    def __getitem__(self, index: int) -> int:
        if index == 5:
            sleep(0.1)
        return index


class Together(Numbers):
    """Makes several at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [10 * index for index in indices]


class Refuses(Numbers):
    """Has `__getitems__`, and doesn't want it used."""

    __getitems__ = None


class Stream(IterableDataset[int]):
    """The numbers as a stream."""

    def __iter__(self) -> Any:
        return iter(range(10))


class Kills(Numbers):
    """The process that makes the last number is killed."""

    def __getitem__(self, index: int) -> int:
        compute(0.05)
        if index == SAMPLES - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def heavy_collate(samples: list[int]) -> torch.Tensor:
    """Collates for long."""
    compute(0.15)
    return torch.tensor(samples)


class Parses(IterableDataset[int]):
    """Computes in its own generator all the time."""

    def __iter__(self) -> Iterator[int]:
        for index in range(200 * SAMPLES):
            until = perf_counter() + 0.0002
            while perf_counter() < until:
                pass
            yield index
