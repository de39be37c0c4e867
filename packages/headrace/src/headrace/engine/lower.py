"""From a plan to the structs that native code takes, and to the samples that it leaves to Pillow: those are
made by torchvision, with the same random parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image

from headrace._native import abi, ffi
from headrace._native.decoders import pillow_resizes_vertically_first
from headrace.decoding import DECODER, read_as_tensor
from headrace.errors import SampleError
from headrace.plan.pointwise import look_up
from headrace.plan.segments import NativeSegment
from headrace.records import Draw, SampleKey
from headrace.transforms.on_tensors import lowered
from headrace.transforms.op import ImageOp, flat, replay

DTYPES = {torch.uint8: 0, torch.float16: 1, torch.bfloat16: 2, torch.float32: 3}


def lower_pipeline(plan: NativeSegment, decoders: int) -> ffi.Pipeline:
    """The native form of `plan`; bit i of `decoders` allows decoder i."""
    table = plan.table
    if plan.decode is not None:  # which makes other pixels than Pillow of what this decoder refuses
        decoders &= 1 << ffi.decoder_names().index(DECODER)
    pipeline = ffi.Pipeline(
        lower_ops(plan.ops),
        plan.height,
        plan.width,
        dtype=DTYPES[plan.dtype],
        nhwc=plan.layout == "NHWC",
        channels=plan.channels,
        table=None if table is None else table.data_ptr(),
        keep=table,
        decoders=decoders,
        max_pixels=Image.MAX_IMAGE_PIXELS or 0,
        pillow_vertical_first=pillow_resizes_vertically_first(),
        gray=plan.mode == "L",
        upright=plan.upright,
    )
    pipeline.struct.views = plan.views
    return pipeline


def lower_ops(ops: Sequence[ImageOp]) -> list[abi.Op]:
    """Each op as hr_op, followed by those inside of it."""
    native: list[abi.Op] = []
    for op in ops:
        inside = lower_ops(op.inside)
        native += [lowered(op, len(inside)), *inside]
    return native


def draws_of(
    pipeline: ffi.Pipeline, ops: Sequence[ImageOp], key: SampleKey, width: int, height: int
) -> tuple[Draw, ...] | None:
    """The numbers drawn for each of `flat(ops)`, or None if torchvision raises an error for that size."""
    drawn = pipeline.draw(key, width, height)
    if drawn is None:
        return None
    rows = zip(flat(ops), drawn.values.tolist(), strict=True)
    return tuple(tuple(row[: len(op.draws)]) for op, row in rows)


def make_sample(plan: NativeSegment, pipeline: ffi.Pipeline, key: SampleKey) -> tuple[torch.Tensor, int]:
    """The sample of `key` as a tensor of `plan.shape`, and its label. Raises SampleError, whatever kept
    torchvision's own loader or transforms from doing it."""
    image, label = _make(plan, pipeline, key)
    values = look_up(image, plan.table)
    return values if plan.views == 1 else torch.stack(values.chunk(plan.views, dim=1)), label


def _make(plan: NativeSegment, pipeline: ffi.Pipeline, key: SampleKey) -> tuple[Image.Image, int]:
    path = plan.source.path(key.sample)
    try:
        image, label = read_sample(plan, key.sample)
        draws = draws_of(pipeline, plan.ops, key, image.width, image.height)
        if draws is None:  # replaying it raises torchvision's own error
            draws = tuple((0.0,) * len(op.draws) for op in flat(plan.ops))
        # Gray is carried as three equal channels, as in native code.
        image = replay(image if image.mode == "RGB" else image.convert("RGB"), plan.ops, draws)
        return image.getchannel(0) if plan.channels == 1 else image, label
    except Exception as error:  # Pillow and torchvision raise anything for a bad file: SyntaxError, …
        raise SampleError.at(key.sample, path, f"{type(error).__name__}: {error}") from error


def read_sample(plan: NativeSegment, sample: int) -> tuple[Image.Image, int]:
    """Reads a sample as the dataset does."""
    if plan.read is not None:
        return plan.read(sample)
    source = plan.source
    if plan.decode is not None:
        return read_as_tensor(source.open(sample), plan.decode), source.label(sample)
    return source.image(sample, plan.mode, upright=plan.upright), source.label(sample)
