"""The two image pipelines of ImageNet training, over folders or packs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.recipes.config import MEAN, STD, Recipe


def train_transform(size: int) -> transforms.Compose:
    """RandomResizedCrop, flip, ToTensor, Normalize: float32 [3, size, size]."""
    steps = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    return transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def val_transform(resize: int, size: int) -> transforms.Compose:
    """Resize of the shorter side, CenterCrop, ToTensor, Normalize: float32 [3, size, size]."""
    steps = [transforms.Resize(resize), transforms.CenterCrop(size)]
    return transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def images(folder: Path, transform: Any) -> Any:
    """`folder` as a dataset: a pack of `headrace pack`, or class folders."""
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


def datasets(recipe: Recipe) -> tuple[Any, Any]:
    """Training and validation images, of the same classes."""
    train = images(recipe.data / "train", train_transform(recipe.size))
    val = images(recipe.data / "val", val_transform(recipe.val_resize, recipe.size))
    if train.classes != val.classes:
        odd = sorted(set(train.classes) ^ set(val.classes))
        raise headrace.ConfigError(
            f"{recipe.data}: train has {len(train.classes):,} classes and val {len(val.classes):,};"
            f" only one of them has {', '.join(odd[:5])}{', …' if len(odd) > 5 else ''}."
        )
    if len(train) < recipe.batch_size:
        raise headrace.ConfigError(
            f"--batch-size ({recipe.batch_size}) is more than the {len(train):,} images of"
            f" {recipe.data / 'train'}."
        )
    return train, val


def train_loader(
    recipe: Recipe, dataset: Any, world_size: int, device: torch.device
) -> headrace.DataLoader[Any]:
    """Shuffled and shared among ranks; whole batches only."""
    options = _options(recipe, world_size, device)
    return headrace.DataLoader(dataset, shuffle=True, drop_last=True, seed=recipe.seed, **options)


def val_loader(
    recipe: Recipe, dataset: Any, world_size: int, device: torch.device
) -> headrace.DataLoader[Any]:
    """In order and shared among ranks; each image once, so that ranks may differ by one in number."""
    return headrace.DataLoader(dataset, remainder="exact", **_options(recipe, world_size, device))


def _options(recipe: Recipe, world_size: int, device: torch.device) -> dict[str, Any]:
    return {
        "batch_size": recipe.part_size(world_size),
        "rank": "auto",
        "device": device,
        "memory_format": torch.channels_last if recipe.channels_last else torch.contiguous_format,
        "num_workers": "auto" if recipe.workers is None else recipe.workers,
    }
