"""Transforms that call others one after another: they are taken apart, however deeply nested."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace.transforms.changed import find_change
from headrace.transforms.own_code import plain_base, wrapped_transform

COMPOSE: tuple[type, ...] = (v1.Compose, v2.Compose)
LISTS = (*COMPOSE, nn.Sequential)
# What `weights.transforms()` of torchvision's image models gives.
PRESET = ("torchvision.transforms._presets", "ImageClassification")


def is_container(cls: type) -> bool:
    """Whether objects of this class call other transforms one after another."""
    return _container(cls) is not None


def _container(cls: type) -> type | None:
    """The container that `cls` is, or changes nothing of."""
    return cls if _is_known(cls) else plain_base(cls, _is_known)


def _is_known(cls: type) -> bool:
    module = sys.modules.get(PRESET[0])
    return cls in LISTS or (module is not None and cls is getattr(module, PRESET[1], None))


def steps_of(transform: Any) -> Sequence[Any] | None:
    """The transforms that a container calls, in order; None for all other transforms, and for a container
    that was changed."""
    kind = _container(type(transform))
    if kind is None:
        wrapped = wrapped_transform(transform)
        return None if wrapped is None else [wrapped]
    if find_change(transform) is not None:
        return None
    if kind is nn.Sequential:
        return list(transform)
    return list(transform.transforms) if kind in COMPOSE else _preset_steps(transform)


def _preset_steps(preset: Any) -> list[Any] | None:
    try:
        return [
            v1.Resize(preset.resize_size, preset.interpolation, antialias=preset.antialias),
            v1.CenterCrop(preset.crop_size),
            v1.PILToTensor(),
            v1.ConvertImageDtype(torch.float),
            v1.Normalize(preset.mean, preset.std),
        ]
    except AttributeError:  # of a version with other attributes
        return None
