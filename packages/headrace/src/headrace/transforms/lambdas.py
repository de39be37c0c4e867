"""Lambda, and functions that stand in a pipeline by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import Any

from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace.transforms.changed import find_change
from headrace.transforms.colors import Grayscale
from headrace.transforms.containers import COMPOSE
from headrace.transforms.levels import ConvertDtype, Identity, Normalize, Shown, ToRGB, ToTensor
from headrace.transforms.lookup import find_op
from headrace.transforms.op import NoNativeForm, Op
from headrace.transforms.own_code import computes, conversion_of, hands_on, maps_images, turns_upright


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
    """Whether `value`, a transform or the class of one, treats every level of an image by itself."""
    cls = value if isinstance(value, type) else type(value)
    if cls in COMPOSE and cls is not value and find_change(value) is None:
        return all(map(_is_pointwise, value.transforms))
    op = None if cls is FunctionType else find_op(cls)
    known = op is not None and issubclass(op, (ToTensor, ConvertDtype, Normalize))
    return known and (cls is value or find_change(value) is None)
