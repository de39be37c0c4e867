"""From a plan to the structs that native code takes."""

from __future__ import annotations

import PIL
import torch
from PIL import Image

from headrace._native import abi, ffi
from headrace.plan.logical import (
    PADDING_MODES,
    CenterCrop,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ResizeShorter,
    Step,
    VerticalFlip,
)
from headrace.plan.physical import Layout, NativePlan
from headrace.plan.pointwise import PointwiseTable

KINDS: dict[type, int] = {
    RandomResizedCrop: 1,
    Resize: 2,
    ResizeShorter: 3,
    CenterCrop: 4,
    RandomCrop: 5,
    HorizontalFlip: 6,
    VerticalFlip: 7,
}
DTYPES = {torch.uint8: 0, torch.float16: 1, torch.bfloat16: 2, torch.float32: 3}


def lower_pipeline(plan: NativePlan, decoders: int) -> ffi.Pipeline:
    """The native form of `plan`; bit i of `decoders` allows decoder i."""
    table = plan.table
    return ffi.Pipeline(
        [lower_step(step) for step in plan.steps],
        plan.height,
        plan.width,
        dtype=DTYPES[plan.dtype],
        nhwc=plan.layout == "NHWC",
        table=None if table is None else table.data_ptr(),
        keep=table,
        decoders=decoders,
        max_pixels=Image.MAX_IMAGE_PIXELS or 0,
        pillow_vertical_first=pillow_resizes_vertically_first(),
    )


def lower_table(table: PointwiseTable, height: int, width: int, layout: Layout) -> ffi.Pipeline:
    """The native form of `table` alone, for `look_up` of pictures of height × width."""
    values = table.values
    return ffi.Pipeline(
        [],
        height,
        width,
        dtype=DTYPES[table.dtype],
        nhwc=layout == "NHWC",
        table=None if values is None else values.data_ptr(),
        keep=values,
        decoders=0,
        max_pixels=0,
        pillow_vertical_first=False,
    )


def lower_step(step: Step) -> abi.Step:
    """One step as hr_step."""
    out = abi.Step(kind=KINDS[type(step)])
    if isinstance(step, (HorizontalFlip, VerticalFlip)):
        out.p = step.p
        return out
    if isinstance(step, ResizeShorter):
        out.height, out.max_size, out.filter = step.size, step.max_size or 0, step.filter
        return out
    out.height, out.width = step.height, step.width
    if isinstance(step, (Resize, RandomResizedCrop)):
        out.filter = step.filter
    if isinstance(step, RandomResizedCrop):
        out.scale[:] = step.scale
        # As torchvision computes it: the logarithm in float32.
        out.log_ratio[:] = torch.log(torch.tensor(step.ratio)).tolist()
        out.ratio[:] = step.ratio
    if isinstance(step, RandomCrop):
        out.padding[:] = step.padding or (0, 0, 0, 0)
        out.pad_if_needed = int(step.pad_if_needed)
        out.padding_mode = PADDING_MODES.index(step.padding_mode)
        out.fill[:] = step.fill
    return out


def pillow_resizes_vertically_first() -> bool:
    """Whether the installed Pillow may run the vertical pass of a resize first (13.0, its PR 9549)."""
    return int(PIL.__version__.split(".")[0]) >= 13


def decoder_choice(choice: str) -> tuple[str, ...]:
    """The native JPEG decoders that `choice` allows, in the order in which they are tried.

    Args:
        choice: "auto" for the best here, or names joined by commas; "pillow" alone for no native one.
    """
    names = ffi.decoder_names()
    chosen = _best_decoders(names) if choice == "auto" else tuple(choice.split(","))
    return tuple(name for name in names if name in chosen)


def _best_decoders(names: tuple[str, ...]) -> tuple[str, ...]:
    # libjpeg-turbo has SIMD code for more processors than our decoder, whose scalar twin it beats.
    return tuple(name for name in names if name != "headrace" or ffi.simd_active() != "scalar")


def decoder_bits(choice: str) -> int:
    """`decoder_choice` as native code takes it: bit i allows decoder i."""
    names = ffi.decoder_names()
    return sum(1 << names.index(name) for name in decoder_choice(choice))
