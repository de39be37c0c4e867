"""Pictures: the two pipelines of ImageNet training, over folders or packs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import IMG_EXTENSIONS

import headrace
from headrace.recipes.config import MEAN, STD, Recipe


def train_transform(size: int) -> transforms.Compose:
    """RandomResizedCrop, flip, ToTensor, Normalize: float32 [3, size, size]."""
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


def val_transform(resize: int, size: int) -> transforms.Compose:
    """Resize of the shorter side, CenterCrop, ToTensor, Normalize: float32 [3, size, size]."""
    return transforms.Compose(
        [
            transforms.Resize(resize),
            transforms.CenterCrop(size),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


def pictures(folder: Path, transform: Any) -> Any:
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
    except FileNotFoundError as error:
        raise headrace.ConfigError(_without_pictures(folder)) from error


def _without_pictures(folder: Path) -> str:
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    if not classes:
        return f"{folder} has no class folders. A picture lies in its class's: {folder}/n01440764/x.JPEG."
    empty = [path.name for path in classes if not _has_pictures(path)]
    return (
        f"{folder}: no pictures in {len(empty):,} of {len(classes):,} class folders ({', '.join(empty[:5])}"
        f"{', …' if len(empty) > 5 else ''}). Fill them, or remove these classes from train and val;"
        f" `headrace doctor data {folder.parent}` examines all of it."
    )


def _has_pictures(folder: Path) -> bool:
    found = (name for _, _, names in os.walk(folder, followlinks=True) for name in names)
    return any(name.lower().endswith(IMG_EXTENSIONS) for name in found)


def datasets(recipe: Recipe) -> tuple[Any, Any]:
    """Training and validation pictures, of the same classes."""
    train = pictures(recipe.data / "train", train_transform(recipe.size))
    val = pictures(recipe.data / "val", val_transform(recipe.val_resize, recipe.size))
    if train.classes != val.classes:
        odd = sorted(set(train.classes) ^ set(val.classes))
        raise headrace.ConfigError(
            f"{recipe.data}: train has {len(train.classes):,} classes and val {len(val.classes):,};"
            f" only one of them has {', '.join(odd[:5])}{', …' if len(odd) > 5 else ''}."
        )
    if len(train) < recipe.batch_size:
        raise headrace.ConfigError(
            f"--batch-size ({recipe.batch_size}) is more than the {len(train):,} pictures of"
            f" {recipe.data / 'train'}."
        )
    return train, val


def train_loader(recipe: Recipe, dataset: Any, world_size: int, device: torch.device) -> headrace.DataLoader:
    """Shuffled and shared among ranks; whole batches only."""
    return headrace.DataLoader(
        dataset,
        recipe.part_size(world_size),
        shuffle=True,
        drop_last=True,
        seed=recipe.seed,
        rank="auto",
        device=device,
        memory_format=_format(recipe),
        num_workers="auto" if recipe.workers is None else recipe.workers,
    )


def val_loader(recipe: Recipe, dataset: Any, world_size: int, device: torch.device) -> headrace.DataLoader:
    """In order and shared among ranks; every picture once, so that ranks may differ by one in number."""
    return headrace.DataLoader(
        dataset,
        recipe.part_size(world_size),
        rank="auto",
        remainder="exact",
        device=device,
        memory_format=_format(recipe),
        num_workers="auto" if recipe.workers is None else recipe.workers,
    )


def _format(recipe: Recipe) -> torch.memory_format:
    return torch.channels_last if recipe.channels_last else torch.contiguous_format
