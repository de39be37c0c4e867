"""Transforms that are called with uint8 tensors: the arithmetic of torch, which isn't Pillow's.

Native code follows the torch that it was written for. Another version or processor may compute otherwise, so
each arithmetic is compared with torch's own before a plan relies on it.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from headrace._native import abi, ffi
from headrace.records import Draw, SampleKey
from headrace.transforms.op import Extent, ImageOp, NoNativeForm, replay_one
from headrace.transforms.reading import TENSOR_FILTERS, interpolation_of, mode_of

Pixels = npt.NDArray[np.uint8]
AnyOp = TypeVar("AnyOp", bound=ImageOp)

MOST_SUMMED = 1 << 20
OTHER_PIXELS = "this torch gives other pixels for uint8 tensors on this machine than native code"

# Heights and widths before and after: shrunk and enlarged, by whole numbers and others, a lot and a little.
RESIZES = (
    *(((41, 67), (13, 24)), ((24, 33), (56, 60)), ((50, 40), (49, 41)), ((3, 2), (31, 64))),
    *(((97, 120), (9, 5)), ((32, 48), (16, 96)), ((1, 1), (5, 3)), ((7, 60), (1, 2))),
)


def tensor_filter_of(transform: Any) -> int:
    """A value of `TENSOR_FILTERS`, from the attributes of a transform that resizes uint8 tensors. Raises
    NoNativeForm if native code, or torch itself, doesn't interpolate tensors like that."""
    require_v2(transform)
    mode = interpolation_of(transform)
    if mode not in TENSOR_FILTERS:
        raise NoNativeForm(f"interpolation {mode.value!r} has no native form on tensors")
    if mode is not InterpolationMode.NEAREST and transform.antialias is not True:
        raise NoNativeForm(f"antialias={transform.antialias!r} has no native form on tensors")
    if not torch_resizes_as_expected(TENSOR_FILTERS[mode]):
        raise NoNativeForm(OTHER_PIXELS)
    return TENSOR_FILTERS[mode]


@lru_cache
def torch_resizes_as_expected(number: int) -> bool:
    """Returns whether torch's filter gives native code's pixels, for each layout of an image's tensor."""
    rng = np.random.default_rng(0)
    for (height, width), after in RESIZES:
        larger = rng.integers(0, 256, (height + 3, width + 4, 3), dtype=np.uint8)
        view = torch.from_numpy(larger).permute(2, 0, 1)[:, 1 : 1 + height, 3 : 3 + width]
        pixels = np.ascontiguousarray(view.permute(1, 2, 0).numpy())
        ours = _run([ffi.op("resize", (*after, number))], pixels, 0)
        assert ours is not None
        for tensor in (view, view.contiguous(), torch.from_numpy(pixels).permute(2, 0, 1)):
            try:
                theirs = v2.functional.resize(tensor, list(after), mode_of(number), antialias=True)
            except (ValueError, TypeError, RuntimeError):
                return False  # torch before 2.15 has no Lanczos filter
            if not np.array_equal(ours[0], theirs.permute(1, 2, 0).numpy()):
                return False
    return True


def check_result(height: int, width: int) -> None:
    """Refuses a size that torch can't resize all tensors to."""
    if height == width == 1:
        raise NoNativeForm("resizes to one pixel, for which torch raises an error in some memory layouts")


def in_torch(op: AnyOp, transform: Any, probe: ImageOp) -> AnyOp:
    """`op`, which was read from `transform`, in torch's arithmetic. Raises NoNativeForm if `transform` isn't
    v2's, or torch doesn't compute `probe` as native code does."""
    require_v2(transform)
    if not torch_computes_as_expected(replace(probe, arithmetic="torch")):
        raise NoNativeForm(OTHER_PIXELS)
    return replace(op, arithmetic="torch")


def require_v2(transform: Any) -> None:
    """Raises NoNativeForm for what isn't a transform of v2."""
    if not isinstance(transform, v2.Transform):
        raise NoNativeForm(
            "v1 computes tensors otherwise than v2; the class of that name in v2 runs natively"
        )


def mean_problem(before: Extent) -> str:
    """Reason why the mean of an image's luma isn't certain, or ""."""
    # Beyond, native code can't say which of torch's additions round.
    known = before.exact and before.height * before.width <= MOST_SUMMED
    return "" if known else f"takes the mean of an image that may have more than {MOST_SUMMED:,} pixels"


@lru_cache
def torch_computes_as_expected(op: ImageOp) -> bool:
    """Returns whether torchvision's functions give native code's pixels for `op` with drawn numbers."""
    rng = np.random.default_rng(0)
    call = [lowered(op)]
    for index, size in itertools.product(range(4), ((17, 45), (32, 32), (1, 3))):
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        pixels //= 16 if index == 0 else 1  # few levels, many of them equal
        ours = _run(call, pixels, index)
        assert ours is not None
        theirs = replay_one(op, Image.fromarray(pixels), ours[1][: len(op.draws)])
        if not np.array_equal(ours[0], np.asarray(theirs)):
            return False
    return True


def native_pixels(op: ImageOp, pixels: Pixels, draw: Draw) -> Pixels | None:
    """`pixels` after `op`, which keeps their size, with the numbers of `draw`, or None if refused."""
    values = np.zeros((1, abi.DRAWS))
    values[0, : len(draw)] = draw
    out = np.empty_like(pixels)
    pipeline = ffi.Pipeline([lowered(op)], *pixels.shape[:2])
    return out if pipeline.apply(pixels, values, out.ctypes.data) else None


def native_draw(op: ImageOp, index: int) -> Draw:
    """The numbers that native code draws for sample `index`, an image of one pixel; none if it refuses."""
    drawn = ffi.Pipeline([lowered(op)], 1, 1).draw(SampleKey(0, 0, index), 1, 1)
    return () if drawn is None else tuple(drawn.values[0, : len(op.draws)].tolist())


def lowered(op: ImageOp, inside: int = 0) -> abi.Op:
    """The native form of `op`, which `inside` other ops follow that it holds."""
    return ffi.op(op.native_name, op.params(), inside, op.data())


def _run(ops: list[abi.Op], pixels: Pixels, index: int) -> tuple[Pixels, Draw] | None:
    """`pixels` after one op, as sample `index`, and what was drawn, or None if torchvision does it."""
    height, width, _ = pixels.shape
    drawn = ffi.Pipeline(ops, 1, 1).draw(SampleKey(0, 0, index), width, height)
    if drawn is None:
        return None
    out = np.empty((drawn.height, drawn.width, 3), np.uint8)
    done = ffi.Pipeline(ops, drawn.height, drawn.width).apply(pixels, drawn.values, out.ctypes.data)
    return (out, tuple(drawn.values[0].tolist())) if done else None
