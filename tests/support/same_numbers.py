"""torchvision's own transforms, given the random numbers that native code draws from."""

from __future__ import annotations

import bisect
import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
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
    """The finalizer of splitmix64."""
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


def shares(alphas: Sequence[float], unit: Callable[[], float]) -> list[float]:
    """Draws from a Dirichlet distribution, by the method of native code; `unit` gives numbers in [0, 1)."""
    gammas = [gamma(alpha, unit) for alpha in alphas]
    return [each / sum(gammas) for each in gammas]


def gamma(alpha: float, unit: Callable[[], float]) -> float:
    """Draws from a gamma distribution (Marsaglia and Tsang, 2000)."""

    def open_unit() -> float:
        return unit() + 2.0**-25

    if alpha == 1:
        return -math.log(open_unit())
    if alpha < 1:
        factor = open_unit() ** (1 / alpha)
        return gamma(alpha + 1, unit) * factor
    d = alpha - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        radius = math.sqrt(-2 * math.log(open_unit()))
        normal = radius * math.cos(2 * math.pi * unit())
        root, u = 1 + c * normal, open_unit()
        cube = root * root * root
        if root > 0 and math.log(u) < normal * normal / 2 + d - d * cube + d * math.log(cube):
            return d * cube


class FakeTorch:
    """torch as torchvision's transforms see it, its random numbers taken from a stream."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def _unit(self) -> np.float32:
        return np.float32(next(self.numbers) & 0xFFFFFF) * np.float32(2.0**-24)

    def rand(self, *size: Any) -> torch.Tensor:
        return self._filled(size[0] if size and isinstance(size[0], tuple) else size, self._unit)

    def empty(self, *size: Any, **options: Any) -> Any:
        return self if size == (1,) and not options else torch.empty(*size, **options)

    def uniform_(self, low: Any, high: Any) -> torch.Tensor:
        low, high = np.float32(float(low)), np.float32(float(high))
        return torch.tensor([self._unit() * (high - low) + low])

    def randint(self, low: int, high: Any = None, size: Any = None, dtype: Any = None) -> torch.Tensor:
        if size is None:
            high, size = None, high  # called as (high, size)
        low, high = (0, low) if high is None else (low, high)
        return self._filled(size or (), lambda: low + self._below(high - low)).to(dtype or torch.int64)

    def randperm(self, n: int) -> torch.Tensor:
        order = list(range(n))
        FakeRandom(self.numbers).shuffle(order)
        return torch.tensor(order)

    def multinomial(self, weights: torch.Tensor, count: int) -> torch.Tensor:
        assert count == 1
        return torch.tensor(FakeRandom(self.numbers).choices(range(len(weights)), weights.tolist()))

    def _sample_dirichlet(self, params: torch.Tensor) -> torch.Tensor:
        """Draws by native code's method: torch's own is in C++, and draws from its generator there."""
        values = shares(params[0].double().tolist(), lambda: float(self._unit()))
        tensor = torch.tensor([values], dtype=params.dtype)
        return tensor.clamp(torch.finfo(params.dtype).tiny, 1 - 2.0**-24)

    def _below(self, n: int) -> int:
        return (next(self.numbers) * n) >> 32

    def _filled(self, size: tuple[int, ...], draw: Callable[[], Any]) -> torch.Tensor:
        return torch.tensor([draw() for _ in range(math.prod(size))]).reshape(size)


class FakeRandom:
    """Python's random, which v1's containers draw from: the functions that they call, in its arithmetic."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers

    def shuffle(self, values: list[Any]) -> None:
        for last in range(len(values) - 1, 0, -1):
            other = (next(self.numbers) * (last + 1)) >> 32
            values[last], values[other] = values[other], values[last]

    def choices(self, values: Sequence[Any], weights: Sequence[float] | None = None) -> list[Any]:
        unit = (next(self.numbers) & 0xFFFFFF) / 2**24
        if weights is None:
            return [values[math.floor(unit * len(values))]]
        sums = list(itertools.accumulate(weights))
        return [values[bisect.bisect(sums, unit * sums[-1], 0, len(sums) - 1)]]


class StreamRandom(random.Random):
    """Python's random, as timm draws from it: its own arithmetic on 24-bit numbers."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers
        super().__init__()

    def random(self) -> float:
        return (next(self.numbers) & 0xFFFFFF) / 2**24

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        self.gauss_next = None  # of two numbers that come together, the first
        return super().gauss(mu, sigma)

    def _randbelow(self, n: int) -> int:
        return (next(self.numbers) * n) >> 32


class StreamNumpy:
    """NumPy as timm sees it: the functions of `numpy.random` that it calls."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers
        self.random = self

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def dirichlet(self, alphas: Sequence[float]) -> list[float]:
        return shares(alphas, StreamRandom(self.numbers).random)

    def beta(self, a: float, b: float) -> float:
        return self.dirichlet([a, b])[0]

    def randint(self, low: int, high: int) -> int:
        return low + ((next(self.numbers) * (high - low)) >> 32)

    def choice(self, values: Sequence[Any], size: int, replace: bool, p: Any = None) -> list[Any]:
        if p is None:
            return [values[(next(self.numbers) * len(values)) >> 32] for _ in range(size)]
        assert not replace
        weights, chosen = [float(np.float32(weight)) for weight in p], []
        for _ in range(size):
            left = (next(self.numbers) & 0xFFFFFF) / 2**24 * sum(weights)
            for last in (i for i, weight in enumerate(weights) if weight):
                left -= weights[last]
                if left < 0:
                    break
            weights[last] = 0.0
            chosen.append(values[last])
        return chosen


@contextmanager
def timm_drawing(numbers: Iterator[int]) -> Iterator[None]:
    """Within this, timm's transforms draw from `numbers`."""
    with (
        mock.patch("timm.data.transforms.random", StreamRandom(numbers)),
        mock.patch("timm.data.auto_augment.random", StreamRandom(numbers)),
        mock.patch("timm.data.auto_augment.np", StreamNumpy(numbers)),
    ):
        yield


@contextmanager
def torchvision_drawing(numbers: Iterator[int]) -> Iterator[None]:
    """Within this, torchvision's transforms draw from `numbers`."""
    fakes = {"torch": FakeTorch(numbers), "random": FakeRandom(numbers)}
    known = (torch, random)
    patches = [
        mock.patch.object(module, drawer, fake)
        for name, module in sys.modules.items()
        for drawer, fake in fakes.items()
        if name.startswith("torchvision.transforms")
        # Transforms that are called by others have streams of their own.
        and (vars(module).get(drawer) in known or isinstance(vars(module).get(drawer), type(fake)))
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
