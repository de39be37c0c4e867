"""Reads the arguments of torchvision's transforms, v1 and v2, into logical steps: one function per transform.

Attributes are read as the transform itself reads them when it is called. What isn't understood completely
raises NotLowerable with a reason; nothing is guessed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import PIL.Image
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as functional_v1
from torchvision.transforms.v2 import functional as functional_v2

from headrace.plan import logical

# torchvision's names for Pillow's filters; on PIL images 'nearest-exact' is Pillow's nearest too.
FILTERS = {
    InterpolationMode.NEAREST: PIL.Image.Resampling.NEAREST,
    InterpolationMode.NEAREST_EXACT: PIL.Image.Resampling.NEAREST,
    InterpolationMode.BILINEAR: PIL.Image.Resampling.BILINEAR,
    InterpolationMode.BICUBIC: PIL.Image.Resampling.BICUBIC,
    InterpolationMode.BOX: PIL.Image.Resampling.BOX,
    InterpolationMode.HAMMING: PIL.Image.Resampling.HAMMING,
    InterpolationMode.LANCZOS: PIL.Image.Resampling.LANCZOS,
}

_Made = TypeVar("_Made")


class NotLowerable(Exception):  # noqa: N818  (a verdict that never leaves the planner, not an error)
    """This transform with these arguments has no native form; the message says why."""


def random_resized_crop(t: Any) -> logical.Step:
    """RandomResizedCrop, v1 and v2. `antialias` says nothing about PIL images: Pillow always does it."""
    height, width = _pair(t.size)
    step = (height, width, _bounds("scale", t.scale), _bounds("ratio", t.ratio), _filter(t))
    return _made(logical.RandomResizedCrop, *step)


def resize(t: Any) -> logical.Step:
    """Resize, v1 and v2: two sizes are exact, one is for the shorter edge."""
    if t.size is None:
        raise NotLowerable("size=None makes the longer edge max_size: no native form")
    sizes = [t.size] if not isinstance(t.size, Sequence) else list(t.size)
    if len(sizes) == 1:
        limit = None if t.max_size is None else _integer("max_size", t.max_size)
        return _made(logical.ResizeShorter, _integer("size", sizes[0]), limit, _filter(t))
    if t.max_size is not None:
        raise NotLowerable("max_size beside two sizes: torchvision raises an error for it")
    height, width = _pair(sizes)
    return _made(logical.Resize, height, width, _filter(t))


def center_crop(t: Any) -> logical.Step:
    """CenterCrop, v1 and v2."""
    return _made(logical.CenterCrop, *_pair(t.size))


def random_crop_v1(t: Any) -> logical.Step:
    """RandomCrop, v1: `padding` as the user gave it; padded up to three times, one after another."""
    padding = None if t.padding is None else _padding_v1(t.padding)
    if t.pad_if_needed and padding is not None and t.padding_mode in ("reflect", "symmetric"):
        # The second padding mirrors the first one's pixels, v2 mirrors the picture's only.
        raise NotLowerable(
            f"padding and pad_if_needed with {t.padding_mode!r} mirrors what is mirrored already"
        )
    return _random_crop(t, padding, t.fill, functional_v1)


def random_crop_v2(t: Any) -> logical.Step:
    """RandomCrop, v2: `padding` is kept as [left, right, top, bottom], `fill` may depend on the type."""
    padding = None
    if t.padding is not None:
        left, right, top, bottom = (_integer("padding", p) for p in t.padding)
        padding = (left, top, right, bottom)
    fill = t.fill
    if isinstance(fill, dict):
        if PIL.Image.Image not in fill and "others" not in fill:
            raise NotLowerable("fill names no value for PIL images")
        fill = fill.get(PIL.Image.Image, fill.get("others"))
    return _random_crop(t, padding, fill, functional_v2)


def horizontal_flip(t: Any) -> logical.Step:
    """RandomHorizontalFlip, v1 and v2."""
    return _made(logical.HorizontalFlip, _number("p", t.p))


def vertical_flip(t: Any) -> logical.Step:
    """RandomVerticalFlip, v1 and v2."""
    return _made(logical.VerticalFlip, _number("p", t.p))


def random_erasing(t: Any) -> logical.RandomErasing:
    """RandomErasing, v1 and v2. `inplace` says nothing about batches: nobody else sees their memory."""
    value = t.value
    if isinstance(value, (int, float)):
        value = (float(value),)
    elif isinstance(value, str) or (value is None and isinstance(t, v2.Transform)):
        value = None
    elif isinstance(value, (list, tuple)):
        value = tuple(_number("value", v) for v in value)
    else:
        raise NotLowerable(f"value={value!r} isn't a number, three of them or 'random'")
    scale, ratio = _bounds("scale", t.scale), _bounds("ratio", t.ratio)
    return _made(logical.RandomErasing, _number("p", t.p), scale, ratio, value)


def _random_crop(
    t: Any, padding: tuple[int, int, int, int] | None, fill: Any, functional: Any
) -> logical.Step:
    pad_if_needed = bool(t.pad_if_needed)
    pads = padding is not None or pad_if_needed
    # Where nothing is padded, neither the mode nor the colour is ever looked at.
    mode = t.padding_mode if pads else "constant"
    colour = _colour(fill, functional) if pads and mode == "constant" else (0, 0, 0)
    return _made(logical.RandomCrop, *_pair(t.size), padding, pad_if_needed, colour, mode)


def _colour(fill: Any, functional: Any) -> tuple[int, int, int]:
    """What torchvision makes of `fill`, asked of torchvision: the colour of a pixel that it adds."""
    pixel = PIL.Image.new("RGB", (1, 1))
    try:
        padded = functional.pad(pixel, [1, 0, 0, 0], fill=fill, padding_mode="constant")
    except (TypeError, ValueError, OverflowError) as error:
        raise NotLowerable(f"fill={fill!r} raises {type(error).__name__}: {error}") from None
    red, green, blue = padded.getpixel((0, 0))
    return red, green, blue


def _padding_v1(padding: Any) -> tuple[int, int, int, int]:
    if not isinstance(padding, (tuple, list)):
        padding = [padding]
    sides = [_integer("padding", p) for p in padding]
    if len(sides) == 1:
        return (sides[0], sides[0], sides[0], sides[0])
    if len(sides) == 2:
        return (sides[0], sides[1], sides[0], sides[1])
    if len(sides) == 4:
        return (sides[0], sides[1], sides[2], sides[3])
    raise NotLowerable(f"padding of {len(sides)} values: torchvision takes 1, 2 or 4")


def _filter(t: Any) -> int:
    interpolation = t.interpolation
    if isinstance(interpolation, str):
        interpolation = _named_mode(
            interpolation, functional_v2 if isinstance(t, v2.Transform) else functional_v1
        )
    if isinstance(interpolation, InterpolationMode):
        return int(FILTERS[interpolation])
    return _integer("interpolation", interpolation)


def _named_mode(name: str, functional: Any) -> InterpolationMode:
    """The mode of a name, where this torchvision takes names: v1 doesn't, and v2 not in every version."""
    try:
        functional.resize(PIL.Image.new("L", (2, 2)), [1, 1], interpolation=name)
        return InterpolationMode(name)
    except (TypeError, ValueError) as error:
        raise NotLowerable(f"interpolation={name!r} raises {type(error).__name__}: {error}") from None


def _pair(size: Any) -> tuple[int, int]:
    if not isinstance(size, Sequence) or len(size) != 2:
        raise NotLowerable(f"size={size!r} isn't (height, width)")
    return _integer("size", size[0]), _integer("size", size[1])


def _bounds(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, Sequence) or len(value) != 2:
        raise NotLowerable(f"{name}={value!r} isn't (low, high)")
    return _number(name, value[0]), _number(name, value[1])


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise NotLowerable(f"{name}={value!r} isn't an int")
    try:
        return operator.index(value)
    except TypeError:
        raise NotLowerable(f"{name}={value!r} isn't an int") from None


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise NotLowerable(f"{name}={value!r} isn't a number")
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise NotLowerable(f"{name}={value!r} isn't a number") from None


def _made(cls: Callable[..., _Made], *arguments: Any) -> _Made:
    try:
        return cls(*arguments)
    except ValueError as error:
        raise NotLowerable(str(error)) from None
