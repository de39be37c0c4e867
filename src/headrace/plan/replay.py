"""A lowered pipeline, done by torchvision with the parameters that were drawn.

The executor for files that native code leaves to Pillow, and the oracle in tests. Only
`torchvision.transforms.functional` on PIL images is used here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)

from headrace.plan.logical import (
    CenterCrop,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ResizeShorter,
    Step,
)
from headrace.plan.physical import NativePlan
from headrace.plan.pointwise import look_up, look_up_levels
from headrace.plan.suffix import Suffix
from headrace.records import Draw

MODES = {
    Image.Resampling.NEAREST: InterpolationMode.NEAREST,
    Image.Resampling.BILINEAR: InterpolationMode.BILINEAR,
    Image.Resampling.BICUBIC: InterpolationMode.BICUBIC,
    Image.Resampling.BOX: InterpolationMode.BOX,
    Image.Resampling.HAMMING: InterpolationMode.HAMMING,
    Image.Resampling.LANCZOS: InterpolationMode.LANCZOS,
}


def replay(image: Image.Image, steps: Sequence[Step], draws: Sequence[Draw]) -> Image.Image:
    """`image` (RGB) after `steps`, with `draws[i]` drawn for `steps[i]` (see `records.Draw`).

    Raises:
        ValueError: the numbers of steps and draws differ, or a crop is larger than its padded input.
    """
    if len(steps) != len(draws):
        raise ValueError(f"{len(steps)} steps and {len(draws)} draws: there must be one draw per step")
    for step, draw in zip(steps, draws, strict=True):
        image = _apply(image, step, draw)
    return image


def apply_pointwise(image: Image.Image, plan: NativePlan) -> torch.Tensor:
    """The RGB `image` as `plan` gives a sample: a contiguous tensor [3, height, width] of its dtype."""
    return look_up(image, plan.table)


def replay_suffix(
    image: torch.Tensor, suffix: Suffix | None, box: Draw, noise: torch.Tensor | None
) -> torch.Tensor:
    """One sample, [channels, height, width] as native code writes it, after `suffix`.

    Args:
        box: that is erased; all 0: nothing is.
        noise: float32, of the box's shape, where that is what is written.
    """
    if suffix is None:
        return image
    if suffix.table is not None:
        image = look_up_levels(image, suffix.table)
    if suffix.erasing is None or not box[2] * box[3]:
        return image
    value = suffix.erasing.erase.value
    new = torch.tensor(value)[:, None, None] if value is not None else noise
    assert new is not None
    erased: torch.Tensor = F.erase(image, *box, new.to(suffix.erasing.dtype))
    return erased


def replay_sample(image: Image.Image, plan: NativePlan, draws: Sequence[Draw]) -> torch.Tensor:
    """All of `plan` on one decoded RGB `image`."""
    return apply_pointwise(replay(image, plan.steps, draws), plan)


def _apply(image: Image.Image, step: Step, draw: Draw) -> Image.Image:
    result: Any
    if isinstance(step, RandomResizedCrop):
        top, left, height, width = draw
        size = [step.height, step.width]
        result = F.resized_crop(image, top, left, height, width, size, _mode(step.filter))
    elif isinstance(step, Resize):
        result = F.resize(image, [step.height, step.width], _mode(step.filter))
    elif isinstance(step, ResizeShorter):
        result = F.resize(image, [step.size], _mode(step.filter), step.max_size)
    elif isinstance(step, CenterCrop):
        result = F.center_crop(image, [step.height, step.width])
    elif isinstance(step, RandomCrop):
        result = _random_crop(image, step, draw)
    elif isinstance(step, HorizontalFlip):
        result = F.hflip(image) if draw[0] else image
    else:
        result = F.vflip(image) if draw[0] else image
    if not isinstance(result, Image.Image):
        raise TypeError(f"torchvision gave {type(result).__name__} for an image")
    return result


def _random_crop(image: Image.Image, step: RandomCrop, draw: Draw) -> Any:
    padding = step.total_padding(image.height, image.width)
    padded: Any = image
    if any(padding):
        padded = F.pad(image, list(padding), fill=step.fill, padding_mode=step.padding_mode)
    if padded.height < step.height or padded.width < step.width:
        raise ValueError(
            f"Required crop size {(step.height, step.width)} is larger than"
            f" input image size {(padded.height, padded.width)}"
        )
    top, left = draw[:2]
    return F.crop(padded, top, left, step.height, step.width)


def _mode(filter_: int) -> InterpolationMode:
    return MODES[Image.Resampling(filter_)]
