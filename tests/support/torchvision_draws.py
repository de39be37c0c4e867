"""What torchvision itself draws for a transform, told apart from what it does with it: the tests' oracle."""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace.plan.arguments import random_crop_v1
from headrace.plan.logical import RandomCrop
from headrace.records import Draw

NOTHING: Draw = (0, 0, 0, 0)


def call(transform: Any, value: Any) -> tuple[Any, Draw]:
    """(transform(value), what was drawn for it), from the generator's present state on."""
    state = torch.get_rng_state()
    draw = _draw(transform, value)
    torch.set_rng_state(state)
    return transform(value), draw


def _draw(transform: Any, value: Any) -> Draw:
    if isinstance(transform, v1.RandomResizedCrop):
        return transform.get_params(value, transform.scale, transform.ratio)
    if isinstance(transform, v2.RandomResizedCrop):
        params = transform.make_params([value])
        return params["top"], params["left"], params["height"], params["width"]
    if isinstance(transform, v1.RandomCrop):
        top, left, _, _ = transform.get_params(_padded_v1(transform, value), transform.size)
        return top, left, 0, 0
    if isinstance(transform, v2.RandomCrop):
        params = transform.make_params([value])
        return params["top"], params["left"], 0, 0
    flips = (v1.RandomHorizontalFlip, v1.RandomVerticalFlip, v2.RandomHorizontalFlip, v2.RandomVerticalFlip)
    if isinstance(transform, flips):
        return int(torch.rand(1) < transform.p), 0, 0, 0
    return NOTHING


def _padded_v1(transform: v1.RandomCrop, value: Any) -> Image.Image:
    """An empty picture of the size that `value` has after the transform's padding."""
    _, height, width = v1.functional.get_dimensions(value)
    step = random_crop_v1(transform)
    assert isinstance(step, RandomCrop)
    left, top, right, bottom = step.total_padding(height, width)
    return Image.new("L", (width + left + right, height + top + bottom))
