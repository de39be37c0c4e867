"""Calls of OpenCV's functions as steps on a recipe, or None if OpenCV has to run.

Pixels are kept as red, green and blue between steps, whatever the order of an array's channels; the recipe's
store says that. So a conversion between the two orders is no work.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import cv2
import numpy as np

from headrace.deferred.arrays import Recipe
from headrace.deferred.chain import Chain
from headrace.deferred.steps import (
    GRAY_ROWS,
    MAX_EDGE,
    RGB_ROWS,
    FromHsv,
    OpencvBlur,
    OpencvWarp,
    PillowPoint,
    ToHsv,
    in_other_order,
)
from headrace.records import Draw
from headrace.transforms.colors import ChannelPermutation, Grayscale
from headrace.transforms.crops import Pad
from headrace.transforms.op import ImageOp
from headrace.transforms.warps import RandomRotation

Made = Recipe | None

FILTERS = {cv2.INTER_NEAREST: 10, cv2.INTER_LINEAR: 11, cv2.INTER_AREA: 12}  # as native code numbers them
BORDERS = {
    cv2.BORDER_CONSTANT: "constant",
    cv2.BORDER_REPLICATE: "edge",
    cv2.BORDER_REFLECT: "symmetric",
    cv2.BORDER_REFLECT_101: "reflect",
}
MAX_PADDING = 1 << 14
MOST_TAPS = 31
LARGEST_PLACE = 1e5  # in pixels, of what a warp shows
TURNS = {cv2.ROTATE_90_CLOCKWISE: 270.0, cv2.ROTATE_180: 180.0, cv2.ROTATE_90_COUNTERCLOCKWISE: 90.0}
TURN = RandomRotation((0.0, 360.0), 0, True, None, (0, 0, 0))
SWAP = (ChannelPermutation(), (2.0, 1.0, 0.0))


# What depends on the installed libraries, the processor and settings: the version whose warps are computed,
# the pixels that are converted from HSV together, and whether NumKong rather than OpenCV blends with gray.
VARIANTS = {
    "warpAffine": (4, 5),
    "warpPerspective": (4, 5),
    "cvtColor": (16, 32, 64),
    "adjust_saturation_torchvision": (0, 1),
}
_VERSION = int(cv2.__version__.split(".")[0])


class Variant(threading.local):
    """The variants that a thread records with, by the names of functions."""

    of: Mapping[str, int] = {
        "warpAffine": _VERSION,
        "warpPerspective": _VERSION,
        "cvtColor": 32,
        "adjust_saturation_torchvision": 0,
    }


variant = Variant()


# --- arguments ---------------------------------------------------------------------------------------------


def integers(values: Any, count: int, low: int, high: int) -> tuple[int, ...] | None:
    """`values` if they are `count` integers within bounds, else None."""
    if len(values) != count or not all(
        type(value) is int or isinstance(value, np.integer) for value in values
    ):
        return None
    found = tuple(map(int, values))
    return found if all(low <= value <= high for value in found) else None


def number(value: Any) -> float | None:
    """`value` as a float if it is one finite number of Python's, else None."""
    usual = isinstance(value, (int, float)) and type(value) is not bool and math.isfinite(value)
    return float(value) if usual else None


def size_of(dsize: Any) -> tuple[int, int] | None:
    """(width, height) if `dsize` says that, else None."""
    found = integers(dsize, 2, 1, MAX_EDGE) if isinstance(dsize, (tuple, list)) else None
    return None if found is None else (found[0], found[1])


def color_of(value: Any, seen: Recipe) -> tuple[int, int, int] | None:
    """Red, green and blue of a border's value for the array of a recipe, or None if they aren't levels."""
    listed = [value] if number(value) is not None else value
    if not isinstance(listed, (list, tuple)) or len(listed) > 4:
        return None
    levels = [number(each) for each in listed]
    if not all(level is not None and level in range(256) for level in levels):
        return None
    first, second, third = [int(level or 0) for level in (*levels, 0, 0, 0)][:3]
    if seen.store.channels == 1:
        return first, first, first
    return (third, second, first) if seen.store.blue_first else (first, second, third)


def _is_int(value: Any, number: int) -> bool:
    return type(value) is int and value == number


def _border_of(value: Any) -> str | None:
    return BORDERS.get(value) if type(value) is int else None


# --- steps -------------------------------------------------------------------------------------------------


def with_chain(seen: Recipe, chain: Chain | None) -> Made:
    """The recipe with other steps."""
    return None if chain is None else Recipe(chain, seen.store, seen.axes)


def after(seen: Recipe, op: ImageOp, draw: Draw = ()) -> Made:
    """The recipe with a further step that treats all channels alike."""
    return with_chain(seen, seen.chain.after(op, draw))


def in_order(seen: Recipe, *, blue_first: bool) -> Chain | None:
    """The steps to pixels whose red, green and blue are the channels of an array with that order."""
    return seen.chain if seen.store.blue_first == blue_first else seen.chain.after(*SWAP)


def cvt_color(seen: Recipe, code: Any, dst: Any = None, dstCn: Any = 0) -> Made:  # noqa: N803
    """`cv2.cvtColor`."""
    convert = CONVERSIONS.get(code) if type(code) is int and dst is None and _is_int(dstCn, 0) else None
    return None if convert is None else convert(seen)


def _swapped(seen: Recipe) -> Made:
    return None if seen.store.channels == 1 else seen._replace(store=in_other_order(seen.store))


def _to_gray(blue_first: bool) -> Callable[[Recipe], Made]:
    def convert(seen: Recipe) -> Made:
        chain = in_order(seen, blue_first=blue_first) if seen.store.channels == 3 else None
        gray = chain and chain.after(Grayscale(1, arithmetic="opencv"), ())
        return None if gray is None else Recipe(gray, GRAY_ROWS, "HW")

    return convert


def _from_gray(seen: Recipe) -> Made:
    return Recipe(seen.chain, RGB_ROWS, "HWC") if seen.store.channels == 1 else None


def _to_hsv(blue_first: bool) -> Callable[[Recipe], Made]:
    def convert(seen: Recipe) -> Made:
        chain = in_order(seen, blue_first=blue_first) if seen.store.channels == 3 else None
        return None if chain is None else with_chain(seen._replace(store=RGB_ROWS), chain.after(ToHsv(), ()))

    return convert


def _from_hsv(blue_first: bool) -> Callable[[Recipe], Made]:
    def convert(seen: Recipe) -> Made:
        chain = in_order(seen, blue_first=False) if seen.store.channels == 3 else None
        made = chain and chain.after(FromHsv(variant.of["cvtColor"]), ())
        store = in_other_order(RGB_ROWS) if blue_first else RGB_ROWS
        return with_chain(seen._replace(store=store), made)

    return convert


CONVERSIONS: dict[int, Callable[[Recipe], Made]] = {
    cv2.COLOR_BGR2RGB: _swapped,
    cv2.COLOR_BGR2GRAY: _to_gray(True),
    cv2.COLOR_RGB2GRAY: _to_gray(False),
    cv2.COLOR_GRAY2BGR: _from_gray,
    cv2.COLOR_BGR2HSV: _to_hsv(True),
    cv2.COLOR_RGB2HSV: _to_hsv(False),
    cv2.COLOR_HSV2BGR: _from_hsv(True),
    cv2.COLOR_HSV2RGB: _from_hsv(False),
}


def resize(
    seen: Recipe, dsize: Any = None, dst: Any = None, fx: Any = 0, fy: Any = 0, interpolation: Any = 1
) -> Made:
    """`cv2.resize` to a given size."""
    size, usual = size_of(dsize), dst is None and type(interpolation) is int
    usual = usual and all(type(each) in (int, float) and each == 0 for each in (fx, fy))
    filter = FILTERS.get(interpolation) if usual else None
    return None if size is None or filter is None else with_chain(seen, seen.chain.resized(size, filter))


def flip(seen: Recipe, flipCode: Any, dst: Any = None) -> Made:  # noqa: N803
    """`cv2.flip`."""
    if type(flipCode) is not int or abs(flipCode) >= 1 << 31 or dst is not None:
        return None
    chain: Chain | None = seen.chain
    if flipCode != 0:
        chain = chain and chain.flipped(x=True)
    if flipCode <= 0:
        chain = chain and chain.flipped(y=True)
    return with_chain(seen, chain)


def rotate(seen: Recipe, rotateCode: Any, dst: Any = None) -> Made:  # noqa: N803
    """`cv2.rotate`."""
    degrees = TURNS.get(rotateCode) if type(rotateCode) is int and dst is None else None
    return None if degrees is None else after(seen, TURN, (degrees,))


def copy_make_border(  # noqa: PLR0913  (those of OpenCV)
    seen: Recipe,
    top: Any,
    bottom: Any,
    left: Any,
    right: Any,
    borderType: Any,  # noqa: N803
    dst: Any = None,
    value: Any = 0,
) -> Made:
    """`cv2.copyMakeBorder`."""
    sides = integers((left, top, right, bottom), 4, 0, MAX_PADDING)
    mode, color = _border_of(borderType), color_of(0 if value is None else value, seen)
    if sides is None or mode is None or color is None or dst is not None:
        return None
    left, top, right, bottom = sides
    return after(seen, Pad((left, top, right, bottom), mode, color))  # type: ignore[arg-type]


def _warp(seen: Recipe, inverse: Sequence[float], dsize: Any, flags: int, border: Any, value: Any) -> Made:
    size, mode, color = size_of(dsize), _border_of(border), color_of(value, seen)
    interpolation = flags & ~cv2.WARP_INVERSE_MAP
    known = interpolation in (cv2.INTER_NEAREST, cv2.INTER_LINEAR)
    if size is None or mode is None or color is None or not known or not _in_reach(inverse, size):
        return None
    perspective = len(inverse) == 9
    version = variant.of["warpPerspective" if perspective else "warpAffine"]
    op = OpencvWarp(interpolation == cv2.INTER_LINEAR, mode, color, size, perspective, version)
    return after(seen, op, tuple(inverse))


def _in_reach(inverse: Sequence[float], size: tuple[int, int]) -> bool:
    """Returns whether each pixel comes from a place that native code computes as OpenCV does."""
    width, height = size
    nearest = 1.0
    if len(inverse) == 9:
        x, y, z = inverse[6:]
        depths = [x * column + y * row + z for column in (0, width) for row in (0, height)]
        nearest = min(map(abs, depths))
        # A plane that changes its sign has places in infinity.
        if not min(depth * z for depth in depths) > 0 or nearest < 1e-3:
            return False
    most = LARGEST_PLACE * min(1.0, nearest)
    return all(
        abs(inverse[i]) * width + abs(inverse[i + 1]) * height + abs(inverse[i + 2]) <= most for i in (0, 3)
    )


def _matrix(M: Any, rows: int) -> Any:  # noqa: N803
    usual = type(M) is np.ndarray and M.shape == (rows, 3) and M.dtype in (np.float32, np.float64)
    return M.astype(np.float64) if usual else None


def inverted(matrix: Any) -> list[float]:
    """The inverse of an affine matrix, in the arithmetic of warpAffine."""
    (a, b, c), (d, e, f) = matrix.tolist()
    determinant = a * e - b * d
    factor = 1.0 / determinant if determinant != 0 else 0.0
    a, b, d, e = e * factor, b * -factor, d * -factor, a * factor
    return [a, b, -a * c - b * f, d, e, -d * c - e * f]


def _warping(rows: int, invert: Callable[[Any], Sequence[float]]) -> Callable[..., Made]:
    """`cv2.warpAffine` or `cv2.warpPerspective`, with a matrix of so many rows."""

    def warp(
        seen: Recipe,
        M: Any,  # noqa: N803
        dsize: Any,
        dst: Any = None,
        flags: Any = 1,
        borderMode: Any = 0,  # noqa: N803
        borderValue: Any = 0,  # noqa: N803
    ) -> Made:
        matrix = _matrix(M, rows)
        if matrix is None or dst is not None or type(flags) is not int:
            return None
        inverse = matrix.ravel().tolist() if flags & cv2.WARP_INVERSE_MAP else invert(matrix)
        return _warp(seen, inverse, dsize, flags, borderMode, borderValue)

    return warp


warp_affine = _warping(2, inverted)
warp_perspective = _warping(3, lambda matrix: cv2.invert(matrix)[1].ravel().tolist())


def gaussian_blur(
    seen: Recipe,
    ksize: Any,
    sigmaX: Any = None,  # noqa: N803
    dst: Any = None,
    sigmaY: Any = 0,  # noqa: N803
    borderType: Any = 4,  # noqa: N803
) -> Made:
    """`cv2.GaussianBlur`."""
    x, y = number(sigmaX), number(sigmaY)
    if x is None or y is None or dst is not None or not _is_int(borderType, cv2.BORDER_REFLECT_101):
        return None
    sizes = integers(ksize, 2, 0, MOST_TAPS) if isinstance(ksize, (tuple, list)) else None
    if sizes is None:
        return None
    y = y if y > 0 else x
    if (sizes[0] == 0 and x <= 0) or (sizes[1] == 0 and y <= 0):
        return None
    width, height = (size or round(s * 6 + 1) | 1 for size, s in zip(sizes, (x, y), strict=True))
    if not all(size % 2 == 1 and size <= MOST_TAPS for size in (width, height)):
        return None
    halves = (_gaussian(width, max(x, 0.0)), _gaussian(height, max(y, 0.0)))
    return after(seen, OpencvBlur(width, height), _weights(halves))


def _weights(halves: Sequence[Sequence[float]]) -> Draw:
    most = MOST_TAPS // 2 + 1
    return tuple(float(weight) for half in halves for weight in (*half, *(0,) * (most - len(half))))


def sep_filter(  # noqa: PLR0913  (those of OpenCV)
    seen: Recipe,
    ddepth: Any,
    kernelX: Any,  # noqa: N803
    kernelY: Any,  # noqa: N803
    dst: Any = None,
    anchor: Any = (-1, -1),
    delta: Any = 0,
    borderType: Any = 4,  # noqa: N803
) -> Made:
    """`cv2.sepFilter2D` with kernels that smooth."""
    usual = _is_int(ddepth, -1) and dst is None and anchor == (-1, -1) and number(delta) == 0
    halves = [_smoothing(kernel) for kernel in (kernelX, kernelY)]
    if not usual or None in halves or not _is_int(borderType, cv2.BORDER_REFLECT_101):
        return None
    x, y = (2 * len(half or ()) - 1 for half in halves)
    blur = OpencvBlur(x, y, seen.store.channels, seen.store.blue_first)
    return after(seen, blur, _weights([half or () for half in halves]))


def _smoothing(kernel: Any) -> list[float] | None:
    """The first half of a symmetric kernel and its middle, or None if it is another one or OpenCV may take
    it for one of integers."""
    usual = type(kernel) is np.ndarray and kernel.dtype in (np.float32, np.float64)
    if not usual or kernel.size != max(kernel.shape) or kernel.size % 2 == 0 or kernel.size > MOST_TAPS:
        return None
    values = kernel.ravel()
    parts = values * 256
    smooths = np.array_equal(values, values[::-1]) and values.min() >= 0 and abs(values.sum() - 1) < 1e-7
    if not smooths or np.abs(parts - np.rint(parts)).max() < 1e-2:
        return None
    half: list[float] = values[: kernel.size // 2 + 1].astype(np.float32).tolist()
    return half


# Those of no standard deviation, in 256ths.
_SMALL = {1: (256,), 3: (64, 128), 5: (16, 64, 96), 7: (8, 28, 56, 72), 9: (4, 13, 30, 51, 60)}


@lru_cache(maxsize=64)
def _gaussian(size: int, sigma: float) -> tuple[int, ...]:
    """The first half of a kernel and its middle in 256ths, rounded with what is left of the weight before."""
    if sigma == 0 and size in _SMALL:
        return _SMALL[size]
    deviation = sigma or size * 0.15 + 0.35
    exponent = -0.125 / (deviation * deviation)
    values = [math.exp((2 * i + 1 - size) ** 2 * exponent) for i in range(size // 2)]
    total = sum(values) * 2 + 1
    weights, error = [], 0.0
    for value in values:
        exact = value * (1 / total) * 256 + error
        weights.append(round(exact))
        error = exact - weights[-1]
    return (*weights, 256 - 2 * sum(weights))


def looked_up(seen: Recipe, levels: np.ndarray[Any, Any]) -> Made:
    """The recipe with a table of uint8 [256, channels] for the array's levels."""
    planes = levels.T[::-1] if seen.store.blue_first else levels.T
    return after(seen, PillowPoint(planes.tobytes() * (3 // len(planes))))
