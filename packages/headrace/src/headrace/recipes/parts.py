"""The parts of a run: images of folders or packs, models of torchvision or timm, and their optimizers."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.recipes.config import Recipe

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TIMM = "timm/"
# The outputs of their auxiliary branches would need losses of their own.
ONE_OUTPUT: dict[str, dict[str, Any]] = {
    name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")
}


def datasets(recipe: Recipe) -> tuple[Any, Any]:
    """Training and validation images as float32 [3, size, size]. Raises ConfigError if they are missing or
    of different classes."""
    crop = [transforms.RandomResizedCrop(recipe.size), transforms.RandomHorizontalFlip()]
    center = [transforms.Resize(recipe.val_resize), transforms.CenterCrop(recipe.size)]
    end = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    train = _images(recipe.data / "train", transforms.Compose([*crop, *end]))
    val = _images(recipe.data / "val", transforms.Compose([*center, *end]))
    if train.classes != val.classes:
        odd = sorted(set(train.classes) ^ set(val.classes))
        raise headrace.ConfigError(
            f"{recipe.data}: train has {len(train.classes):,} classes and val {len(val.classes):,};"
            f" only one of them has {', '.join(odd[:5])}{', …' if len(odd) > 5 else ''}."
        )
    enough = recipe.batch_size <= len(train)
    recipe.require("batch_size", enough, f"is more than the {len(train):,} images of {recipe.data / 'train'}")
    return train, val


def _images(folder: Path, transform: Any) -> Any:
    if (folder / "index.arrow").exists():
        return headrace.PackedDataset(folder, transform)
    if not folder.is_dir():
        raise headrace.ConfigError(
            f"{folder} isn't there. The data must be a folder with train and val, each of class folders"
            " (train/n01440764/x.JPEG) or a pack that `headrace pack` made."
        )
    try:
        return ImageFolder(str(folder), transform)
    except FileNotFoundError as error:  # no class folders, or empty ones, which it names
        raise headrace.ConfigError(
            f"{str(error).rstrip('.')}. `headrace doctor data {folder.parent}` examines all of it."
        ) from error


def loaders(recipe: Recipe, train: Any, val: Any, world_size: int, device: torch.device) -> tuple[Any, Any]:
    """A loader of the training images, shuffled, in whole batches only; and one of the validation images in
    order, each of them once, so that ranks may differ by one in number."""
    options: dict[str, Any] = {
        "batch_size": recipe.part_size(world_size),
        "rank": "auto",
        "device": device,
        "memory_format": torch.channels_last if recipe.channels_last else torch.contiguous_format,
        "num_workers": "auto" if recipe.workers is None else recipe.workers,
    }
    shuffled = headrace.DataLoader(train, shuffle=True, drop_last=True, seed=recipe.seed, **options)
    return shuffled, headrace.DataLoader(val, remainder="exact", **options)


def builder(arch: str) -> Callable[[int], nn.Module]:
    """A function from a number of classes to a classifier with random weights. Raises ConfigError if there is
    no such model, or it isn't a classifier of images."""
    if arch.startswith(TIMM):
        try:
            timm = importlib.import_module("timm")
        except ImportError as error:
            raise headrace.ConfigError(f"--arch {arch} needs timm: pip install timm.") from error
        name = arch.removeprefix(TIMM)
        if not timm.is_model(name):
            raise headrace.ConfigError(
                f"--arch {arch} isn't a model of timm; `timm.list_models()` lists them."
            )
        return lambda classes: timm.create_model(name, num_classes=classes)
    try:
        make = models.get_model_builder(arch)
    except ValueError as error:
        names = difflib.get_close_matches(arch, models.list_models(module=models), 3)
        similar = f" ({', '.join(names)}?)" if names else ""
        raise headrace.ConfigError(
            f"--arch {arch} isn't a model of torchvision{similar}; {TIMM}NAME is one of timm's."
        ) from error
    # torchvision's classifiers are modules of this package, its other models are packages in it.
    if "." in make.__module__.partition("torchvision.models.")[2]:
        raise headrace.ConfigError(f"--arch {arch} isn't a classifier of images.")
    return lambda classes: make(weights=None, num_classes=classes, **ONE_OUTPUT.get(make.__name__, {}))


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
    """The share of the peak learning rate at optimizer step `step` of `total`: a line from 0 (not reached) to
    1 over `warmup` steps, then half a cosine (Loshchilov and Hutter 2017, arXiv 1608.03983) to 0."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))


def make_average(recipe: Recipe, model: nn.Module) -> AveragedModel | None:
    """An exponential moving average of weights and buffers, or None if the recipe has none."""
    if recipe.ema == 0:
        return None
    moving = get_ema_multi_avg_fn(recipe.ema)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=moving, use_buffers=True)
