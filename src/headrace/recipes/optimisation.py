"""Optimizer, learning rate and average of the weights: torch's own, with the recipe's figures."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from headrace.recipes.config import Recipe


def make_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum 0.9, or AdamW; biases and norms (one dimension) don't decay."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.peak_lr)
    return torch.optim.SGD(groups, lr=recipe.peak_lr, momentum=0.9, nesterov=True)


def lr_factor(step: int, *, warmup: int, total: int) -> float:
    """Of the highest learning rate, at optimizer step `step` of `total`: a line from 0 (not reached) to 1
    over `warmup` steps, then half a cosine (Loshchilov and Hutter 2017, arXiv 1608.03983) to 0."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))


def make_scheduler(recipe: Recipe, optimizer: torch.optim.Optimizer, steps_per_epoch: int) -> LambdaLR:
    """Advanced once an optimizer step."""
    warmup = round(recipe.warmup * steps_per_epoch)
    return LambdaLR(optimizer, partial(lr_factor, warmup=warmup, total=recipe.epochs * steps_per_epoch))


def make_average(recipe: Recipe, model: nn.Module) -> AveragedModel | None:
    """An exponential moving average of weights and buffers; None where the recipe has none."""
    if recipe.ema == 0:
        return None
    moving = get_ema_multi_avg_fn(recipe.ema)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=moving, use_buffers=True)
