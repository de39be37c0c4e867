"""Conversions and Normalize: part of the table of 256 levels per channel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace.transforms.changed import find_change
from headrace.transforms.colors import Grayscale
from headrace.transforms.lookup import COMPOSE, find_op
from headrace.transforms.op import LevelOp, NoNativeForm, Op
from headrace.transforms.own_code import computes, conversion_of, hands_on, maps_images, turns_upright

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@dataclass(frozen=True)
class Shown(LevelOp):
    """Shows the class and those of `arguments` that an object has."""

    text: str

    arguments: ClassVar[tuple[str, ...]] = ()

    def __str__(self) -> str:
        return self.text

    @classmethod
    def read(cls, transform: Any) -> Shown:
        names = (name for name in cls.arguments if hasattr(transform, name))
        shown = ", ".join(f"{name} {_value_text(getattr(transform, name))}" for name in names)
        return cls(f"{type(transform).__name__}({shown})")


@dataclass(frozen=True)
class ToTensor(Shown):
    """Converts an image to a tensor."""

    matches = (v1.ToTensor, v2.ToTensor, v1.PILToTensor, v2.PILToTensor, v2.ToImage)
    matches_imported = (
        "timm.data.transforms.MaybeToTensor",
        "timm.data.transforms.MaybePILToTensor",
        "timm.data.transforms.ToTensor",
    )
    examples = ({},)


@dataclass(frozen=True)
class ToPureTensor(Shown):
    """Converts a tensor of one of torchvision's classes to one of torch's, the values unchanged."""

    matches = (v2.ToPureTensor,)
    examples = ({},)


@dataclass(frozen=True)
class ConvertDtype(Shown):
    """Converts one dtype to another, scaled or not."""

    matches = (v1.ConvertImageDtype, v2.ConvertImageDtype, v2.ToDtype)
    arguments = ("dtype", "scale")
    examples = ({"dtype": torch.float32}, {"dtype": torch.float16})


@dataclass(frozen=True)
class Normalize(Shown):
    """Mean subtracted, divided by the standard deviation, channel by channel."""

    matches = (v1.Normalize, v2.Normalize)
    arguments = ("mean", "std")
    examples = ({"mean": MEAN, "std": STD},)


@dataclass(frozen=True)
class Identity(Shown):
    """Hands on what it is given."""

    matches: ClassVar[tuple[type, ...]] = (v2.Identity, nn.Identity)
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)


@dataclass(frozen=True)
class ToRGB(Identity):
    """Hands on an RGB image, and makes three equal channels of a gray one; a function of the user's may raise
    an error for a tensor."""

    matches = (v2.RGB,)


@dataclass(frozen=True)
class Lambda(Shown):
    """Arithmetic with the values of a tensor, such as `x * 2 - 1`; or what is done to several images alike,
    such as `torch.stack([to_tensor(crop) for crop in crops])`."""

    matches = (v1.Lambda, v2.Lambda)
    examples = (
        {"lambd": lambda x: x * 2 - 1},
        {"lambd": lambda x: x.mul(0.5).add_(x)},
        {"lambd": lambda x: x},
    )

    @classmethod
    def read(cls, transform: Any) -> Op:  # type: ignore[override]
        alone = not isinstance(transform, cls.matches)
        function = transform if alone else transform.lambd
        name = getattr(function, "__qualname__", type(function).__qualname__)
        text = name if alone else f"{type(transform).__name__}({name})"
        if hands_on(function):
            return Identity(text)
        mode = conversion_of(function)
        if mode is not None:
            return ToRGB(text) if mode == "RGB" else Grayscale(1)
        if turns_upright(function):
            return ExifTranspose(text)
        if computes(function) or maps_images(function, _is_pointwise):
            return cls(text)
        raise NoNativeForm("no native implementation" if alone else f"calls {name}, which may do anything")


@dataclass(frozen=True)
class ExifTranspose(Op):
    """An image turned as its file's EXIF data say: `PIL.ImageOps.exif_transpose`."""

    text: str

    def __str__(self) -> str:
        return self.text


def _is_pointwise(value: Any) -> bool:
    """Returns whether `value`, a transform or the class of one, treats every level of an image by itself."""
    cls = value if isinstance(value, type) else type(value)
    if cls in COMPOSE and cls is not value and find_change(value) is None:
        return all(map(_is_pointwise, value.transforms))
    op = None if cls is FunctionType else find_op(cls)
    known = op is not None and issubclass(op, (ToTensor, ConvertDtype, Normalize))
    return known and (cls is value or find_change(value) is None)


def _value_text(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)) and all(isinstance(v, (int, float)) for v in value):
        return f"({', '.join(f'{v:.4g}' for v in value)})"
    return " ".join(str(value).split())
