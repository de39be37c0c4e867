"""Loaders with a device give what they give without, however late it is and whatever the consumer does."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from device.test_loader_gpu import MAKERS

import headrace
from accelerator import module as simulated

pytestmark = pytest.mark.gpu
SEEDS = range(int(os.environ.get("HEADRACE_SEEDS", "20")))
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("native", {}),
    "own dataset": ("python", {"worker_kind": "thread"}),
    "gathered": ("grey", {"resident": False}),
    "resident": ("grey", {"resident": True}),
    "transformed": ("tensors", {"batch_transform": lambda images, labels: (images * 2, labels + 1)}),
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {kind: MAKERS[maker](tmp_path_factory.mktemp("data")) for kind, (maker, _) in KINDS.items()}


@pytest.fixture(scope="module")
def expected(datasets: dict[str, Any]) -> dict[str, list[list[torch.Tensor]]]:
    """The batches of two epochs, by kind, made without a device."""

    def batches_of(kind: str) -> list[list[torch.Tensor]]:
        loader = loader_of(kind, datasets, None)
        return [*map(tensors_of, loader), *map(tensors_of, loader)]

    return {kind: batches_of(kind) for kind in KINDS}


def loader_of(kind: str, datasets: dict[str, Any], device: torch.device | None) -> headrace.DataLoader:
    options = {"shuffle": True, "seed": 3, "num_workers": 2, **KINDS[kind][1]}
    if device is None:
        options.pop("resident", None)
    return headrace.DataLoader(datasets[kind], batch_size=5, device=device, **options)


def tensors_of(batch: Any) -> list[torch.Tensor]:
    values = batch.values() if isinstance(batch, dict) else batch
    return [value for value in values if isinstance(value, torch.Tensor)]


class Consumer:
    """Uses batches on one stream or several, late, and drops them at once."""

    def __init__(self, draw: random.Random, device: torch.device) -> None:
        own = [torch.Stream(device=device) for _ in range(2)]
        self._streams = draw.choice([[torch.accelerator.current_stream(device)], own[:1], own])
        self._draw = draw
        self._lag, self._pause, self._collects = (
            draw.choice([0, 5e-4]),
            draw.choice([0, 1e-3]),
            draw.random() < 0.2,
        )
        self.seen: list[list[torch.Tensor]] = []

    def take(self, batches: Iterator[Any], at_most: int = 100) -> None:
        for _ in range(at_most):
            with self._draw.choice(self._streams):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                simulated.busy(self._lag)
                self.seen.append([tensor.clone() for tensor in tensors_of(batch)])
                del batch
            time.sleep(self._pause)
            if self._collects:
                gc.collect()

    def check(self, expected: list[list[torch.Tensor]]) -> None:
        torch.accelerator.synchronize()
        assert len(self.seen) == len(expected)
        for ours, theirs in zip(self.seen, expected, strict=True):
            assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))


def whole(loader: headrace.DataLoader, consumer: Consumer) -> None:
    for _ in range(2):
        consumer.take(iter(loader))


def given_up(loader: headrace.DataLoader, consumer: Consumer) -> None:
    """The first epoch ends early; what was sent ahead is dropped while its copies run."""
    first = iter(loader)
    consumer.take(first, 3)
    consumer.seen.clear()
    del first
    gc.collect()
    loader.set_epoch(0)
    whole(loader, consumer)


def resumed(loader: headrace.DataLoader, consumer: Consumer) -> None:
    batches = iter(loader)
    consumer.take(batches, 3)
    state = loader.state_dict()
    del batches
    loader.load_state_dict(state)
    whole(loader, consumer)


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_are_those_of_the_cpu(
    gpu: torch.device, seed: int, datasets: dict[str, Any], expected: dict[str, Any]
) -> None:
    draw = random.Random(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    course: Callable[[headrace.DataLoader, Consumer], None] = draw.choice([whole, given_up, resumed])
    consumer = Consumer(draw, gpu)
    simulated.configure(seed, 2e-4)
    course(loader_of(kind, datasets, gpu), consumer)
    consumer.check(expected[kind])
