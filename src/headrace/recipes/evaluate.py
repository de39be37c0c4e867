"""Accuracy over all ranks, every picture counted once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headrace.recipes import ranks


@dataclass(frozen=True)
class Score:
    """Of an evaluation.

    Attributes:
        top1, top5: 0 to 1: pictures whose class is the likeliest, is among the five likeliest (or as many as
            there are classes).
        loss: mean cross entropy, without smoothing.
        pictures: counted.
    """

    top1: float
    top5: float
    loss: float
    pictures: int


class Count:
    """Adds up what batches give, on the device, and over ranks at the end: whole numbers, so exactly."""

    def __init__(self, device: torch.device) -> None:
        self._right = torch.zeros(3, dtype=torch.int64, device=device)
        self._loss = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """A batch: [n, classes], [n]."""
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        hits = best == labels[:, None]
        self._right += torch.stack(
            [hits[:, 0].sum(), hits.sum(), hits.new_tensor(len(labels), dtype=torch.int64)]
        )
        self._loss += nn.functional.cross_entropy(logits.float(), labels, reduction="sum").double()

    def score(self) -> Score:
        """Of all ranks' batches; all of them must ask."""
        top1, top5, pictures = (int(n) for n in ranks.add_up(self._right).tolist())
        loss = float(ranks.add_up(self._loss).item())
        return Score(top1 / pictures, top5 / pictures, loss / pictures, pictures)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Any,
    device: torch.device,
    autocast: Any,
    stop: ranks.StopSignal,
) -> Score:
    """The score of `model` on `loader`'s pictures.

    Args:
        loader: that shares the pictures among ranks, each once (remainder="exact").
        autocast: makes a context for the forward pass.

    Raises:
        Stopped: a signal to stop came.
    """
    training = model.training
    model.eval()
    ranks.send_buffers(model)
    count = Count(device)
    batches: Iterator[Any] = iter(loader)
    try:
        # Some ranks may have a batch fewer. All ask and answer equally often.
        for _ in range(_most_batches(loader)):
            stop.ask()
            batch = next(batches, None)
            if batch is not None:
                images, labels = batch
                with autocast():
                    logits = model(images)
                count.add(logits, labels)
            stop.check()
        return count.score()
    finally:
        model.train(training)


def _most_batches(loader: Any) -> int:
    samples, world_size = len(loader.dataset), ranks.world()[1]
    return math.ceil(samples / (int(loader.batch_size) * world_size))
