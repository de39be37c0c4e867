"""What Headrace knows of torchvision: one row per transform. Start here.

A transform is matched by its exact class. A subclass, a function, or a class that isn't here is the user's
own business: it runs as Python, between the steps before it and the table at the end. The tests run every row
against torchvision itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import PIL
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace.plan import arguments
from headrace.plan.logical import RandomErasing, Step

# How the result compares with torchvision's on PIL images:
#   "exact"  the same bits, whatever the versions: pixels are moved, or looked up in the transform's own table
#   "pillow" the same bits as the installed Pillow gives: its resize is followed, which version 13 changed
Parity = Literal["exact", "pillow"]

# What a geometric transform does when it comes after the conversion to a tensor:
#   "same"     the same pixels: it may be done before the conversion
#   "window"   the same pixels where nothing is padded (black isn't 0 any more after normalisation)
#   "resample" torch's own antialiased resize, whose rounding isn't Pillow's: not lowered
OnTensor = Literal["same", "window", "resample"]


@dataclass(frozen=True)
class Geometry:
    """A transform that moves pixels or resizes.

    Attributes:
        cls: the exact class matched.
        read: makes the logical step from an instance's arguments.
        parity: see above.
        on_tensor: see above.
        draws: the random numbers that torchvision takes per sample, in order. Ours come from a generator of
            our own and have the same distribution.
    """

    cls: type
    read: Callable[[Any], Step]
    parity: Parity
    on_tensor: OnTensor
    draws: tuple[str, ...]


@dataclass(frozen=True)
class Erasing:
    """A transform that overwrites part of the values, once the table has made them. Parity is exact.

    Attributes:
        cls, read, draws: as in `Geometry`. The numbers are drawn and the boxes found in NumPy, a batch at a
            time, from the same generator as native code's (`headrace.plan.erasing`); noise is NumPy's.
    """

    cls: type
    read: Callable[[Any], RandomErasing]
    draws: tuple[str, ...]


@dataclass(frozen=True)
class Pointwise:
    """A transform of each level of each channel by itself: part of the table. Draws nothing; parity is exact.

    Attributes:
        cls: the exact class matched.
        shown: the arguments that explanations show.
    """

    cls: type
    shown: tuple[str, ...] = ()


_BOX_DRAWS = ("10 tries of (area in scale, log ratio in ratio), until the box fits", "top", "left")
_ERASE_DRAWS = (
    "u in [0, 1): erased where u < p",
    "10 tries of (area in scale, log ratio in ratio), until the box is smaller than the image",
    "top",
    "left",
    "where value is 'random': noise for each value",
)
_FLIP_DRAWS = ("u in [0, 1): flipped where u < p",)

GEOMETRY: tuple[Geometry, ...] = (
    #        class matched            arguments read by               parity    on a tensor  draws, in order
    Geometry(v1.RandomResizedCrop,    arguments.random_resized_crop,  "pillow", "resample",  _BOX_DRAWS),
    Geometry(v2.RandomResizedCrop,    arguments.random_resized_crop,  "pillow", "resample",  _BOX_DRAWS),
    Geometry(v1.Resize,               arguments.resize,               "pillow", "resample",  ()),
    Geometry(v2.Resize,               arguments.resize,               "pillow", "resample",  ()),
    Geometry(v1.CenterCrop,           arguments.center_crop,          "exact",  "window",    ()),
    Geometry(v2.CenterCrop,           arguments.center_crop,          "exact",  "window",    ()),
    Geometry(v1.RandomCrop,           arguments.random_crop_v1,       "exact",  "window",    ("top", "left")),
    Geometry(v2.RandomCrop,           arguments.random_crop_v2,       "exact",  "window",    ("top", "left")),
    Geometry(v1.RandomHorizontalFlip, arguments.horizontal_flip,      "exact",  "same",      _FLIP_DRAWS),
    Geometry(v2.RandomHorizontalFlip, arguments.horizontal_flip,      "exact",  "same",      _FLIP_DRAWS),
    Geometry(v1.RandomVerticalFlip,   arguments.vertical_flip,        "exact",  "same",      _FLIP_DRAWS),
    Geometry(v2.RandomVerticalFlip,   arguments.vertical_flip,        "exact",  "same",      _FLIP_DRAWS),
)  # fmt: skip

POINTWISE: tuple[Pointwise, ...] = (
    Pointwise(v1.ToTensor),
    Pointwise(v2.ToTensor),
    Pointwise(v1.PILToTensor),
    Pointwise(v2.PILToTensor),
    Pointwise(v2.ToImage),
    Pointwise(v2.ToPureTensor),
    Pointwise(v1.ConvertImageDtype, shown=("dtype",)),
    Pointwise(v2.ConvertImageDtype, shown=("dtype",)),
    Pointwise(v2.ToDtype, shown=("dtype", "scale")),
    Pointwise(v1.Normalize, shown=("mean", "std")),
    Pointwise(v2.Normalize, shown=("mean", "std")),
    # They change nothing, wherever they stand; people put them in for a step that a flag switches off.
    Pointwise(v2.Identity),
    Pointwise(nn.Identity),
)

ERASING: tuple[Erasing, ...] = (
    Erasing(v1.RandomErasing, arguments.random_erasing, _ERASE_DRAWS),
    Erasing(v2.RandomErasing, arguments.random_erasing, _ERASE_DRAWS),
)

# Rows of POINTWISE that change no value: they may come after the erasing.
UNCHANGING: tuple[type, ...] = (v2.ToPureTensor, v2.Identity, nn.Identity)

# Lists of transforms, called one after another: taken apart, however deeply nested.
CONTAINERS: tuple[type, ...] = (v1.Compose, v2.Compose)

Row = Geometry | Pointwise | Erasing

_ALL: tuple[Row, ...] = (*GEOMETRY, *POINTWISE, *ERASING)
_ROWS: dict[type, Row] = {row.cls: row for row in _ALL}


def find_row(transform: Any) -> Row | None:
    """The row of `transform`'s exact class, or None."""
    return _ROWS.get(type(transform))


def keeps_everything(row: Row) -> bool:
    """Whether `row`'s transform hands on what it is given, picture or tensor."""
    return row.cls in UNCHANGING and row.cls is not v2.ToPureTensor


def known_base(transform: Any) -> type | None:
    """The class of the catalogue that `transform`'s class derives from, if it does without being one."""
    bases = (base for base in type(transform).__mro__[1:] if base in _ROWS or base in CONTAINERS)
    return next(bases, None)


def parity_text(parity: Parity) -> str:
    """The words that `explain()` prints for a parity class."""
    if parity == "exact":
        return "exact"
    major, minor = PIL.__version__.split(".")[:2]
    return f"exact (Pillow {major}.{minor})"
