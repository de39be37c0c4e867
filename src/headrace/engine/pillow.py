"""Samples that native code leaves to Pillow: done by torchvision, with the same random parameters."""

from __future__ import annotations

import torch
from PIL import Image

from headrace._native import ffi
from headrace.errors import SampleError
from headrace.plan.physical import NativePlan
from headrace.plan.replay import apply_pointwise, replay
from headrace.records import Draw, SampleKey
from headrace.sources.image import load_rgb


def make_sample(plan: NativePlan, pipeline: ffi.Pipeline, key: SampleKey) -> torch.Tensor:
    """The sample of `key` as a tensor [3, height, width].

    Raises:
        SampleError: whatever kept torchvision's own loader or transforms from doing it, with index, path and
            cause.
    """
    return apply_pointwise(make_picture(plan, pipeline, key), plan)


def make_picture(plan: NativePlan, pipeline: ffi.Pipeline, key: SampleKey) -> Image.Image:
    """The picture of `key` after the steps of `plan`, as torchvision gives it. Raises SampleError."""
    path = plan.source.path(key.sample)
    try:
        image = load_rgb(plan.source.open(key.sample))
        return replay(image, plan.steps, _draws(plan, pipeline, key, image))
    except Exception as error:  # Pillow and torchvision raise anything for a bad file: SyntaxError, …
        raise SampleError.at(key.sample, path, f"{type(error).__name__}: {error}") from error


def _draws(plan: NativePlan, pipeline: ffi.Pipeline, key: SampleKey, image: Image.Image) -> tuple[Draw, ...]:
    draws = pipeline.draw(key, image.width, image.height)
    # A crop larger than its input has nothing to draw; replaying it raises torchvision's own error.
    return ((0, 0, 0, 0),) * len(plan.steps) if draws is None else draws
