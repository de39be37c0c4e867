"""Lambda, and functions that stand in a pipeline by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import Any

from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace.transforms.gray import Grayscale
from headrace.transforms.levels import Identity, Shown, ToRGB
from headrace.transforms.op import NoNativeForm, Op
from headrace.transforms.own_code import computes, conversion_of, hands_on, turns_upright


@dataclass(frozen=True)
class Lambda(Shown):
    """Arithmetic with the values of a tensor, such as `x * 2 - 1`."""

    matches = (v1.Lambda, v2.Lambda)
    examples = (
        {"lambd": lambda x: x * 2 - 1},
        {"lambd": lambda x: x.mul(0.5).add_(x)},
        {"lambd": lambda x: x},
    )

    @classmethod
    def read(cls, transform: Any) -> Op:  # type: ignore[override]
        alone = type(transform) is FunctionType
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
        if computes(function):
            return cls(text)
        raise NoNativeForm("no native form" if alone else f"calls {name}, which may do anything")


@dataclass(frozen=True)
class ExifTranspose(Op):
    """An image turned as its file's EXIF data say: `PIL.ImageOps.exif_transpose`."""

    text: str

    matches = ()
    examples = ()

    def __str__(self) -> str:
        return self.text

    @classmethod
    def read(cls, transform: Any) -> ExifTranspose:
        raise NoNativeForm(f"{transform!r} is read as a function")
