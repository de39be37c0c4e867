"""Accuracy over all ranks, each image counted once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headrace.recipes import ranks


@dataclass(frozen=True)
class Score:
    """The result of an evaluation.

    Attributes:
        top1, top5: share of images, 0 to 1, whose class is the likeliest, or among the five likeliest.
        loss: mean cross entropy, without smoothing.
        images: number of images.
    """

    top1: float
    top5: float
    loss: float
    images: int


class Count:
    """Adds up the results of batches on the device, and over ranks at the end: whole numbers, so exactly."""

    def __init__(self, device: torch.device) -> None:
        self._right = torch.zeros(3, dtype=torch.int64, device=device)
        self._loss = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """A batch: [n, classes], [n]."""
        hits = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
        self._right += torch.stack(
            [hits[:, 0].sum(), hits.sum(), hits.new_tensor(len(labels), dtype=torch.int64)]
        )
        self._loss += nn.functional.cross_entropy(logits.float(), labels, reduction="sum").double()

    def score(self) -> Score:
        """The score over all ranks' batches; all of them must ask for it."""
        top1, top5, images = (int(n) for n in ranks.add_up(self._right).tolist())
        return Score(top1 / images, top5 / images, float(ranks.add_up(self._loss).item()) / images, images)


@torch.no_grad()
def evaluate(
    model: nn.Module, loader: Any, device: torch.device, autocast: Any, stop: ranks.StopSignal
) -> Score:
    """The score of `model` on the images of `loader`, which shares them among ranks (remainder="exact").

    Raises:
        Stopped: a signal to stop came.
    """
    training = model.training
    model.eval()
    ranks.send_buffers(model)
    count, batches = Count(device), iter(loader)
    try:
        # Some ranks may have a batch fewer; all take part in the exchange of signals equally often.
        for _ in range(math.ceil(len(loader.dataset) / (loader.batch_size * ranks.world()[1]))):
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
