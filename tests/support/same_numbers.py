"""torchvision's own transforms, given the random numbers that native code draws from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

MASK = 0xFFFFFFFF


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 as published (Salmon et al., SC 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & MASK, (p0 >> 32) ^ c[3] ^ k[1], p0 & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def mix(x: int) -> int:
    """The finaliser of splitmix64."""
    full = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & full
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & full
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & full
    return x ^ (x >> 31)


def stream(seed: int, epoch: int, index: int, step: int) -> Iterator[int]:
    """The numbers of one step of one sample."""
    mixed = mix(mix(seed) ^ epoch)
    key = [mixed & MASK, mixed >> 32]
    block = 0
    while True:
        yield from philox([block, step, index & MASK, index >> 32], key)
        block += 1


class FakeTorch:
    """torch as torchvision's transforms see it, its random numbers taken from a stream."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def _unit(self) -> np.float32:
        return np.float32(next(self.numbers) & 0xFFFFFF) * np.float32(2.0**-24)

    def rand(self, *size: Any) -> torch.Tensor:
        assert size in ((), (1,), ((),), ((1,),))
        return torch.tensor(self._unit()).reshape((1,) if 1 in size or (1,) in size else ())

    def empty(self, *size: Any, **options: Any) -> Any:
        return self if size == (1,) and not options else torch.empty(*size, **options)

    def uniform_(self, low: Any, high: Any) -> torch.Tensor:
        low, high = np.float32(float(low)), np.float32(float(high))
        return torch.tensor([self._unit() * (high - low) + low])

    def randint(self, low: int, high: int | None = None, size: tuple[int, ...] = ()) -> torch.Tensor:
        low, high = (0, low) if high is None else (low, high)
        assert size in ((), (1,))
        return torch.tensor(low + ((next(self.numbers) * (high - low)) >> 32)).reshape(size)

    def randperm(self, n: int) -> torch.Tensor:
        order = list(range(n))
        for last in range(n - 1, 0, -1):
            other = (next(self.numbers) * (last + 1)) >> 32
            order[last], order[other] = order[other], order[last]
        return torch.tensor(order)


@contextmanager
def torchvision_drawing(numbers: Iterator[int]) -> Iterator[FakeTorch]:
    """Within this, torchvision's transforms draw from `numbers`."""
    fake = FakeTorch(numbers)
    patches = [
        mock.patch.object(module, "torch", fake)
        for name, module in sys.modules.items()
        if name.startswith("torchvision.transforms") and vars(module).get("torch") is torch
    ]
    for patch in patches:
        patch.start()
    try:
        yield fake
    finally:
        for patch in patches:
            patch.stop()
