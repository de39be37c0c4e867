"""Models of torchvision or timm, and what optimizes them."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision import models

import headrace
from headrace.recipes.config import Recipe

TIMM = "timm/"
# The outputs of their auxiliary branches would need losses of their own.
ONE_OUTPUT: dict[str, dict[str, Any]] = {
    name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")
}


def builder(arch: str) -> Callable[[int], nn.Module]:
    """A function from a number of classes to a classifier with random weights. Raises ConfigError if there is
    no such model.

    Args:
        arch: classifier of `torchvision.models`, or "timm/NAME".
    """
    if arch.startswith(TIMM):
        return _timm(arch.removeprefix(TIMM))
    try:
        make = models.get_model_builder(arch)
    except ValueError as error:
        names = difflib.get_close_matches(arch, models.list_models(module=models), 3)
        similar = f" ({', '.join(names)}?)" if names else ""
        raise headrace.ConfigError(
            f"--arch {arch} isn't a model of torchvision{similar}; {TIMM}NAME is one of timm's."
        ) from error
    # torchvision's classifiers are modules of this package, its other models are packages in it.
    kind, dot, _ = make.__module__.partition("torchvision.models.")[2].partition(".")
    if dot:
        raise headrace.ConfigError(
            f"--arch {arch} is a model for {kind.replace('_', ' ')}, not a classifier of images."
        )
    return lambda classes: make(weights=None, num_classes=classes, **ONE_OUTPUT.get(make.__name__, {}))


def _timm(name: str) -> Callable[[int], nn.Module]:
    try:
        timm = importlib.import_module("timm")
    except ImportError as error:
        raise headrace.ConfigError(f"--arch {TIMM}{name} needs timm: pip install timm.") from error
    if not timm.is_model(name):
        raise headrace.ConfigError(
            f"--arch {TIMM}{name} isn't a model of timm; `timm.list_models()` lists them."
        )
    return lambda classes: timm.create_model(name, num_classes=classes)


def make_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum 0.9, or AdamW; biases and norms (one dimension) don't decay."""
    sgd = recipe.optimizer == "sgd"
    decay = (1e-4 if sgd else 0.05) if recipe.weight_decay is None else recipe.weight_decay
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if sgd:
        return torch.optim.SGD(groups, lr=recipe.peak_lr, momentum=0.9, nesterov=True)
    return torch.optim.AdamW(groups, lr=recipe.peak_lr)


def make_scheduler(recipe: Recipe, optimizer: torch.optim.Optimizer, steps_per_epoch: int) -> LambdaLR:
    """Advanced once an optimizer step."""
    warmup, total = round(recipe.warmup * steps_per_epoch), recipe.epochs * steps_per_epoch
    return LambdaLR(optimizer, partial(lr_factor, warmup=warmup, total=total))


def lr_factor(step: int, *, warmup: int, total: int) -> float:
    """Of the peak learning rate, at optimizer step `step` of `total`: a line from 0 (not reached) to 1 over
    `warmup` steps, then half a cosine (Loshchilov and Hutter 2017, arXiv 1608.03983) to 0."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))


def make_average(recipe: Recipe, model: nn.Module) -> AveragedModel | None:
    """An exponential moving average of weights and buffers; None where the recipe has none."""
    if recipe.ema == 0:
        return None
    moving = get_ema_multi_avg_fn(recipe.ema)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=moving, use_buffers=True)
