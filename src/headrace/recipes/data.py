"""The two image pipelines of ImageNet training, over folders or packs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.recipes.config import Recipe

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def datasets(recipe: Recipe) -> tuple[Any, Any]:
    """Training and validation images as float32 [3, size, size]. Raises ConfigError where they are missing or
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


def train_loader(recipe: Recipe, dataset: Any, world_size: int, device: torch.device) -> Any:
    """Shuffled and shared among ranks; whole batches only."""
    options = _options(recipe, world_size, device)
    return headrace.DataLoader(dataset, shuffle=True, drop_last=True, seed=recipe.seed, **options)


def val_loader(recipe: Recipe, dataset: Any, world_size: int, device: torch.device) -> Any:
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
