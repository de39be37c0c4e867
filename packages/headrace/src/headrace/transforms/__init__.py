"""What Headrace knows of other people's transforms: a class for each, and `OPS`, the list of them.

A transform is matched by its class, or that of a base that it changes nothing of. Whatever else is the user's
own business: it runs as Python, between the steps before it and the table at the end. The tests run every op
against torchvision itself. docs/adding-a-transform.md says how to add one.
"""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, FunctionType
from typing import Any

from headrace.transforms.aug_mix import AugMix
from headrace.transforms.chance import (
    HorizontalFlip,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSharpness,
    RandomSolarize,
    VerticalFlip,
)
from headrace.transforms.colors import (
    ChannelPermutation,
    ColorJitter,
    Grayscale,
    PhotometricDistort,
    RandomGrayscale,
)
from headrace.transforms.containers import is_container
from headrace.transforms.crops import CenterCrop, MultiCrop, Pad, RandomCrop, RandomCropOrPad
from headrace.transforms.gaussian_blur import GaussianBlur
from headrace.transforms.holders import Group, RandomApply, RandomChoice, RandomOrder
from headrace.transforms.lambdas import Lambda
from headrace.transforms.levels import ConvertDtype, Identity, Normalize, ToPureTensor, ToRGB, ToTensor
from headrace.transforms.op import Op
from headrace.transforms.own_code import plain_base
from headrace.transforms.policies import AutoAugment, RandAugment, TrivialAugmentWide
from headrace.transforms.random_erasing import RandomErasing
from headrace.transforms.random_sizes import (
    RandomResize,
    RandomShortestSize,
    RandomZoomOut,
    ResizeKeepRatio,
    ScaleJitter,
    TimmResizedCrop,
)
from headrace.transforms.resize import RandomResizedCrop, Resize, ResizeShorter
from headrace.transforms.timm_augment import TimmAugment, TimmAugMix
from headrace.transforms.warps import RandomAffine, RandomPerspective, RandomRotation

__all__ = [
    "OPS",
    "CenterCrop",
    "HorizontalFlip",
    "RandomCrop",
    "RandomErasing",
    "RandomResizedCrop",
    "Resize",
    "ResizeShorter",
    "VerticalFlip",
    "find_op",
    "known_base",
]

OPS: tuple[type[Op], ...] = (
    RandomResizedCrop,
    Resize,
    ResizeShorter,
    RandomShortestSize,
    RandomResize,
    ScaleJitter,
    RandomZoomOut,
    CenterCrop,
    RandomCrop,
    MultiCrop,
    HorizontalFlip,
    VerticalFlip,
    RandomRotation,
    ColorJitter,
    Pad,
    RandomAffine,
    RandomPerspective,
    Grayscale,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
    RandomAutocontrast,
    RandomEqualize,
    RandomSharpness,
    GaussianBlur,
    ChannelPermutation,
    PhotometricDistort,
    RandomApply,
    RandomChoice,
    RandomOrder,
    Group,
    RandAugment,
    AutoAugment,
    TrivialAugmentWide,
    AugMix,
    TimmResizedCrop,
    ResizeKeepRatio,
    RandomCropOrPad,
    TimmAugment,
    TimmAugMix,
    ToTensor,
    ToPureTensor,
    ConvertDtype,
    Normalize,
    Identity,
    ToRGB,
    Lambda,
    RandomErasing,
)

FUNCTIONS = (FunctionType, BuiltinFunctionType)

_BY_CLASS: dict[type, type[Op]] = {cls: op for op in OPS for cls in op.matches} | dict.fromkeys(
    FUNCTIONS, Lambda
)
_BY_NAME: dict[str, type[Op]] = {name: op for op in OPS for name in op.matches_imported}


def find_op(cls: type) -> type[Op] | None:
    """The op that objects of this class are read as, or None. A subclass that changes nothing is its base."""
    return _find_exactly(cls) or _find_exactly(plain_base(cls, _is_known) or object)


def _find_exactly(cls: type) -> type[Op] | None:
    found = _BY_CLASS.get(cls) or _BY_NAME.get(f"{cls.__module__}.{cls.__qualname__}")
    if found is None or cls in _BY_CLASS:
        return found
    # A class may say of itself that it is of any module.
    return found if getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls else None


def _is_known(cls: type) -> bool:
    return _find_exactly(cls) is not None


def known_base(transform: Any) -> type | None:
    """The known class that `transform`'s class derives from, if it does without being one."""
    bases = type(transform).__mro__[1:]
    return next((base for base in bases if _is_known(base) or is_container(base)), None)
