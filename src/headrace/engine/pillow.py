"""Samples that native code leaves to Pillow: done by torchvision, with the same random parameters."""

from __future__ import annotations

import torch
from PIL import Image

from headrace._native import ffi
from headrace.engine.lower import draws_of
from headrace.errors import SampleError
from headrace.plan.pointwise import look_up
from headrace.plan.segments import NativeSegment
from headrace.records import SampleKey
from headrace.sources.arrays import ArraySource
from headrace.sources.source import load_image
from headrace.transforms.decode_image import read_as_tensor
from headrace.transforms.op import flat, replay


def make_sample(plan: NativeSegment, pipeline: ffi.Pipeline, key: SampleKey) -> torch.Tensor:
    """The sample of `key` as a tensor of `plan.shape`.

    Raises:
        SampleError: whatever kept torchvision's own loader or transforms from doing it, with index, path and
            cause.
    """
    values = look_up(make_image(plan, pipeline, key), plan.table)
    return values if plan.views == 1 else torch.stack(values.chunk(plan.views, dim=1))


def make_image(plan: NativeSegment, pipeline: ffi.Pipeline, key: SampleKey) -> Image.Image:
    """The image of `key` after the operations of `plan`, as torchvision gives it: RGB, or L for one channel.
    Raises SampleError.
    """
    path = plan.source.path(key.sample)
    try:
        image = _read(plan, key.sample)
        draws = draws_of(pipeline, plan.ops, key, image.width, image.height)
        if draws is None:  # replaying it raises torchvision's own error
            draws = tuple((0.0,) * len(op.draws) for op in flat(plan.ops))
        # Gray is carried as three equal channels, as in native code.
        image = replay(image if image.mode == "RGB" else image.convert("RGB"), plan.ops, draws)
        return image.getchannel(0) if plan.channels == 1 else image
    except Exception as error:  # Pillow and torchvision raise anything for a bad file: SyntaxError, …
        raise SampleError.at(key.sample, path, f"{type(error).__name__}: {error}") from error


def _read(plan: NativeSegment, sample: int) -> Image.Image:
    """As the dataset reads it."""
    if plan.tensors and not isinstance(plan.source, ArraySource):
        return read_as_tensor(plan.source.open(sample))
    return load_image(plan.source, sample, plan.mode, upright=plan.upright)
