"""torchvision's most frequent transforms on lazy images, with a third of their calls of torch.

Where the pixels are left to native code, most of what a transform still costs is to draw: a dozen small
tensors for one crop. Each function here draws the same numbers from torch's generator, in the same order and
with the same rounding, by changing one number in place, and hands them on as the transform does. It is asked
only for exact classes that nobody has changed, and answers None, before it draws, where a setting is unusual.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms import v2

from headrace.lazy.image import Recorded
from headrace.transforms.changed import find_change

Quick = Callable[[Any, Recorded], Any]
Box = tuple[int, int, int, int]


def calling(cls: Any, quick: Quick) -> Callable[..., Any]:
    """`cls.__call__` that takes the way of `quick` with a lazy image."""
    original = cls.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        one = type(self) is cls and len(args) == 1 and not kwargs and isinstance(args[0], Recorded)
        if not one or find_change(self) is not None:
            return original(self, *args, **kwargs)
        made = quick(self, args[0])
        return original(self, *args, **kwargs) if made is None else made

    return call


def _number() -> torch.Tensor | None:
    """The tensor that a transform would have torch fill, if it is one of float32 in memory."""
    number = torch.empty(1)
    return number if number.dtype is torch.float32 and number.device.type == "cpu" else None


@lru_cache(maxsize=256)
def _as_compared(p: float) -> float:
    """A probability as torch compares it with a random number."""
    return float(np.float32(p))


@lru_cache(maxsize=64)
def _logarithms(low: float, high: float) -> list[float]:
    return torch.log(torch.tensor((low, high))).tolist()


def _is_range(values: Any) -> bool:
    pair = type(values) in (tuple, list) and len(values) == 2
    return pair and all(type(v) in (float, int) for v in values) and values[0] <= values[1]


def _chance(transform: Any) -> tuple[float, float] | None:
    """A random number, and the probability that it is compared with; None: the transform has to draw."""
    p, number = transform.p, _number()
    if type(p) not in (float, int) or not 0 <= p <= 1 or number is None:
        return None
    return number.uniform_().item(), _as_compared(p)


def _applies(transform: Any) -> bool | None:
    """Whether a transform with a probability applies to the next image; None: it has to draw itself."""
    chance = _chance(transform)
    return None if chance is None else chance[0] < chance[1]


def _resized_crop(transform: Any, image: Recorded) -> Any:
    box = _crop_box(transform, image)
    if box is None:
        return None
    size, interpolation = transform.size, transform.interpolation
    return F.resized_crop(image, *box, size, interpolation, antialias=transform.antialias)


def _resized_crop_v2(transform: Any, image: Recorded) -> Any:
    box = _crop_box(transform, image)
    if box is None:
        return None
    return transform.transform(image, dict(zip(("top", "left", "height", "width"), box, strict=True)))


def _crop_box(transform: Any, image: Recorded) -> Box | None:
    """What both classes draw: top, left, height and width."""
    scale, ratio, number = transform.scale, transform.ratio, _number()
    if not _is_range(scale) or not _is_range(ratio) or ratio[0] <= 0 or number is None:
        return None
    low, high = _logarithms(float(ratio[0]), float(ratio[1]))
    width, height = image.size
    area = height * width
    for _ in range(10):
        target = area * number.uniform_(scale[0], scale[1]).item()
        aspect = number.uniform_(low, high).exp_().item()
        w = round(math.sqrt(target * aspect))
        h = round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = torch.randint(0, height - h + 1, size=(1,)).item()
            left = torch.randint(0, width - w + 1, size=(1,)).item()
            return int(top), int(left), h, w
    whole = width / height
    w = round(height * ratio[1]) if whole > ratio[1] else width
    h = round(width / ratio[0]) if whole < ratio[0] else height
    return (height - h) // 2, (width - w) // 2, h, w


def _horizontal_flip(transform: Any, image: Recorded) -> Any:
    applies = _applies(transform)
    return None if applies is None else F.hflip(image) if applies else image


def _vertical_flip(transform: Any, image: Recorded) -> Any:
    applies = _applies(transform)
    return None if applies is None else F.vflip(image) if applies else image


def _grayscale(transform: Any, image: Recorded) -> Any:
    applies = _applies(transform)
    if applies:
        return F.rgb_to_grayscale(image, num_output_channels=len(image.getbands()))
    return None if applies is None else image


def _random_apply(transform: Any, image: Recorded) -> Any:
    chance = _chance(transform)
    if chance is None or chance[1] < chance[0]:
        return None if chance is None else image
    made: Any = image
    for each in transform.transforms:
        made = each(made)
    return made


def _transformed(transform: Any, image: Recorded) -> Any:
    """Flips of v2."""
    applies = _applies(transform)
    return None if applies is None else transform.transform(image, {}) if applies else image


def _jitter(transform: Any, image: Recorded) -> Any:
    drawn = _factors(transform)
    if drawn is None:
        return None
    made: Any = image
    functions = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    for place in drawn[0]:
        if drawn[1][place] is not None:
            made = functions[place](made, drawn[1][place])
    return made


def _jitter_v2(transform: Any, image: Recorded) -> Any:
    drawn = _factors(transform)
    if drawn is None:
        return None
    names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
    return transform.transform(image, {"fn_idx": drawn[0], **dict(zip(names, drawn[1], strict=True))})


def _factors(transform: Any) -> tuple[list[int], list[float | None]] | None:
    """What both classes draw: the order of the four changes, and the factor of each."""
    ranges = (transform.brightness, transform.contrast, transform.saturation, transform.hue)
    number = _number()
    if number is None or not all(each is None or _is_range(each) for each in ranges):
        return None
    order = torch.randperm(4).tolist()
    return order, [None if each is None else number.uniform_(*each).item() for each in ranges]


QUICK: dict[type[nn.Module], Quick] = {
    v1.RandomResizedCrop: _resized_crop,
    v1.RandomHorizontalFlip: _horizontal_flip,
    v1.RandomVerticalFlip: _vertical_flip,
    v1.RandomGrayscale: _grayscale,
    v1.RandomApply: _random_apply,
    v1.ColorJitter: _jitter,
    v2.RandomResizedCrop: _resized_crop_v2,
    v2.RandomHorizontalFlip: _transformed,
    v2.RandomVerticalFlip: _transformed,
    v2.ColorJitter: _jitter_v2,
}
