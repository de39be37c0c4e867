"""Reads the arguments of other libraries' transforms. What isn't understood raises NoNativeForm."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import PIL.Image
import torch
from PIL.Image import Resampling
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as functional_v1
from torchvision.transforms.v2 import functional as functional_v2

from headrace.transforms.op import MAX_SIZE, NoNativeForm

# torchvision's names for Pillow's filters; on PIL images 'nearest-exact' is Pillow's nearest too.
FILTERS = {
    InterpolationMode.NEAREST: Resampling.NEAREST,
    InterpolationMode.NEAREST_EXACT: Resampling.NEAREST,
    InterpolationMode.BILINEAR: Resampling.BILINEAR,
    InterpolationMode.BICUBIC: Resampling.BICUBIC,
    InterpolationMode.BOX: Resampling.BOX,
    InterpolationMode.HAMMING: Resampling.HAMMING,
    InterpolationMode.LANCZOS: Resampling.LANCZOS,
}

# Native code's numbers of torch's filters for uint8 tensors (native/src/resize/resize.h). Which pixels
# 'nearest-exact' picks depends on the layout of the tensor.
TENSOR_FILTERS = {
    InterpolationMode.NEAREST: 6,
    InterpolationMode.BILINEAR: 7,
    InterpolationMode.BICUBIC: 8,
    InterpolationMode.LANCZOS: 9,
}
# The filters that Pillow warps with.
WARP_FILTERS = (Resampling.NEAREST, Resampling.BILINEAR, Resampling.BICUBIC)
MODES = {FILTERS[mode]: mode for mode in InterpolationMode if mode is not InterpolationMode.NEAREST_EXACT}
TENSOR_MODES = {number: mode for mode, number in TENSOR_FILTERS.items()}


def functional_of(transform: Any) -> Any:
    """torchvision's functional module of the API that `transform` is from."""
    return functional_v2 if isinstance(transform, v2.Transform) else functional_v1


def filter_of(transform: Any) -> int:
    """A value of `PIL.Image.Resampling`, 0 to 5, from the attribute `interpolation`."""
    return int(FILTERS[interpolation_of(transform)])


def interpolation_of(transform: Any) -> InterpolationMode:
    """The attribute `interpolation`, whatever it is given as."""
    interpolation = transform.interpolation
    if isinstance(interpolation, str):
        interpolation = _named_mode(interpolation, functional_of(transform))
    if isinstance(interpolation, InterpolationMode):
        return interpolation
    number = integer("interpolation", interpolation)
    if number not in FILTERS.values():
        raise NoNativeForm(
            f"filter {number} must be 0 to 5: nearest, lanczos, bilinear, bicubic, box or hamming"
        )
    return MODES[Resampling(number)]


def warp_filter_of(transform: Any) -> int:
    """The same of what Pillow warps with."""
    value = filter_of(transform)
    if value not in WARP_FILTERS:
        raise NoNativeForm(f"Pillow warps by nearest, bilinear and bicubic, not {filter_text(value)}")
    return value


def _named_mode(name: str, functional: Any) -> InterpolationMode:
    """The mode of a name, if this torchvision takes names: v1 doesn't, and v2 not in every version."""
    try:
        functional.resize(PIL.Image.new("L", (2, 2)), [1, 1], interpolation=name)
        return InterpolationMode(name)
    except (TypeError, ValueError) as error:
        raise NoNativeForm(f"interpolation={name!r} raises {type(error).__name__}: {error}") from None


def fill_color(
    transform: Any, fill_in: Callable[[Any], PIL.Image.Image] | None = None
) -> tuple[int, int, int]:
    """Returns the color that the attribute `fill` gives in torchvision: `fill_in` returns an RGB image whose
    first pixel is filled with its argument; the default pads one."""
    fill = transform.fill
    if isinstance(transform, v2.Transform) and isinstance(fill, dict):
        if PIL.Image.Image not in fill and "others" not in fill:
            raise NoNativeForm("fill names no value for PIL images")
        fill = fill.get(PIL.Image.Image, fill.get("others"))
    try:
        if fill_in is None:
            pixel = PIL.Image.new("RGB", (1, 1))
            filled = functional_of(transform).pad(pixel, [1, 0, 0, 0], fill=fill, padding_mode="constant")
        else:
            filled = fill_in(fill)
    except (TypeError, ValueError, OverflowError) as error:
        raise NoNativeForm(f"fill={fill!r} raises {type(error).__name__}: {error}") from None
    red, green, blue = filled.getpixel((0, 0))
    return red, green, blue


def tensor_fill(transform: Any) -> tuple[int, int, int]:
    """The color that a transform of v2 pads uint8 tensors with, asked of torchvision; black if its mode needs
    none."""
    fill, mode = transform.fill, transform.padding_mode
    if not isinstance(transform, v2.Transform) or isinstance(fill, dict):
        raise NoNativeForm("pads tensors of different kinds differently")
    if mode in ("reflect", "symmetric"):
        raise NoNativeForm(
            f"padding_mode={mode!r} raises an error for tensors that are smaller than the padding"
        )
    try:
        pixel = torch.zeros(3, 1, 1, dtype=torch.uint8)
        padded = functional_v2.pad(pixel, [1, 0, 0, 0], fill=fill, padding_mode=mode)
        red, green, blue = padded[:, 0, 0].tolist()
    except (TypeError, ValueError, RuntimeError) as error:
        raise NoNativeForm(f"fill={fill!r} raises {type(error).__name__}: {error}") from None
    return red, green, blue


def pair(size: Any) -> tuple[int, int]:
    """(height, width) of an image."""
    if not isinstance(size, Sequence) or len(size) != 2:
        raise NoNativeForm(f"size={size!r} isn't (height, width)")
    height, width = integer("size", size[0]), integer("size", size[1])
    check_size(height, width)
    return height, width


def check_size(height: int, width: int) -> None:
    """Refuses sizes that no image has."""
    if not (1 <= height <= MAX_SIZE and 1 <= width <= MAX_SIZE):
        raise NoNativeForm(f"size {height}×{width} must be 1 to {MAX_SIZE} pixels each way")


def two(name: str, value: Any) -> tuple[float, float]:
    """Two numbers, finite."""
    if not isinstance(value, Sequence) or len(value) != 2:
        raise NoNativeForm(f"{name}={value!r} isn't a pair of numbers")
    return finite(name, value[0]), finite(name, value[1])


def bounds(
    name: str, value: Any, lowest: float = 0.0, highest: float = math.inf, *, exclusive: bool = False
) -> tuple[float, float]:
    """(low, high): finite, and from `lowest`, or above it if `exclusive`, to `highest`."""
    low, high = two(name, value)
    too_low = low <= lowest if exclusive else low < lowest
    if too_low or not low <= high <= highest:
        most = "" if highest == math.inf else f", <= {highest:g}"
        bound = f"{'>' if exclusive else '>='} {lowest:g}{most}"
        raise NoNativeForm(f"{name} {low, high} must be (low, high), finite, {bound}, low <= high")
    return low, high


def chance(name: str, value: Any) -> float:
    """A number of 0 to 1."""
    p = number(name, value)
    if not 0.0 <= p <= 1.0:
        raise NoNativeForm(f"{name} ({p}) must be 0 to 1")
    return p


def integer(name: str, value: Any) -> int:
    """An int, or anything that is one as an index, but for bools."""
    if isinstance(value, bool):
        raise NoNativeForm(f"{name}={value!r} isn't an int")
    try:
        return operator.index(value)
    except TypeError:
        raise NoNativeForm(f"{name}={value!r} isn't an int") from None


def number(name: str, value: Any) -> float:
    """A float, or anything that can be one, but for bools and text."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise NoNativeForm(f"{name}={value!r} isn't a number")
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise NoNativeForm(f"{name}={value!r} isn't a number") from None


def finite(name: str, value: Any) -> float:
    """A finite number. Raises NoNativeForm for anything else."""
    found = number(name, value)
    if not math.isfinite(found):
        raise NoNativeForm(f"{name}={value!r} isn't finite")
    return found


def filter_text(value: int) -> str:
    """The name of a filter of Pillow's or torch's."""
    return str(mode_of(value).value)


def range_text(value: tuple[float, float]) -> str:
    """Such as 0.08–1."""
    return f"{value[0]:.4g}–{value[1]:.4g}"


def mode_of(value: int) -> InterpolationMode:
    """torchvision's name for a value of `PIL.Image.Resampling` or of `TENSOR_FILTERS`."""
    return TENSOR_MODES[value] if value in TENSOR_MODES else MODES[Resampling(value)]
