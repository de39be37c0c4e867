"""Steps on RGB pixels that an image records: Pillow's own methods, and what torchvision does to a PIL image.

Each is an op of native code with its numbers, and the same by Pillow or torchvision for whatever native code
does not take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from headrace._native import abi, ffi
from headrace._native.decoders import decoder_bits, pillow_resizes_vertically_first
from headrace.records import Draw
from headrace.transforms.colors import FACTORS, ChannelPermutation, ColorJitter
from headrace.transforms.crops import PADDING_MODES
from headrace.transforms.on_tensors import lowered
from headrace.transforms.op import NO_GRAY, ImageOp
from headrace.transforms.reading import WARP_FILTERS

# A pipeline of native code has room for 64.
MAX_STEPS = 32
MAX_EDGE = 1 << 15
MAX_RADIUS = 100.0
MAX_FACTOR = 1e4
MAX_PADDING = 1 << 14  # pixels on a side
MAX_TABLES = 64  # that are kept of functions on levels
WARP_COEFFICIENTS: dict[int, int] = {Image.Transform.AFFINE: 6, Image.Transform.PERSPECTIVE: 8}
LARGEST_COEFFICIENT = 1e6
ITEM_NBYTES = (1, 2, 2, 4, 8)  # of a value, by `Store.dtype`


class Step(NamedTuple):
    """An op with its numbers.

    Attributes:
        op: what is done.
        draw: the numbers that a transform would have drawn for it.
        size: (width, height) of the result, in pixels.
        mode: of the result: "RGB", or "L", which is carried as three equal channels.
    """

    op: ImageOp
    draw: Draw
    size: tuple[int, int]
    mode: str


class PillowOp(ImageOp):
    """An op that no transform is read as."""

    gray_problem = NO_GRAY

    def __str__(self) -> str:
        return type(self).__name__

    def params(self) -> tuple[float, ...]:
        return ()


@dataclass(frozen=True)
class PillowBlur(PillowOp):
    """`filter(ImageFilter.GaussianBlur(radius))`."""

    native = "pillow_blur"
    draws = ("standard deviation along x, in pixels", "along y")

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return image.filter(ImageFilter.GaussianBlur(draw))


@dataclass(frozen=True)
class PillowPoint(PillowOp):
    """`point(levels)`: what the 256 levels of red become, then those of green and blue."""

    levels: bytes

    native = "pillow_point"

    def data(self) -> npt.NDArray[np.float32]:
        return np.frombuffer(self.levels, np.uint8).astype(np.float32)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return image.point(list(self.levels))


@dataclass(frozen=True)
class PillowWarp(PillowOp):
    """`transform(size, AFFINE or PERSPECTIVE, coefficients)`; `size` is (width, height)."""

    size: tuple[int, int]
    method: Image.Transform
    filter: int
    fill: tuple[int, int, int]

    native = "pillow_warp"

    @property
    def draws(self) -> tuple[str, ...]:  # type: ignore[override]
        """The coefficients."""
        return ("coefficient",) * WARP_COEFFICIENTS[self.method]

    def params(self) -> tuple[float, ...]:
        return (self.filter, *self.fill, *self.size, self.method == Image.Transform.PERSPECTIVE)

    def output_size(self, height: int, width: int, draw: Draw) -> tuple[int, int]:
        return self.size[1], self.size[0]

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return image.transform(
            self.size, self.method, draw, Image.Resampling(self.filter), fillcolor=self.fill
        )


class OpencvOp(PillowOp):
    """An op that only a call of OpenCV is read as."""

    def replay(self, image: Any, draw: Draw) -> Any:
        raise NotImplementedError("ops of OpenCV are recorded alone, and never replayed")


@dataclass(frozen=True)
class ToHsv(OpencvOp):
    """`cvtColor(COLOR_RGB2HSV)`."""

    native = "opencv_to_hsv"


@dataclass(frozen=True)
class FromHsv(OpencvOp):
    """`cvtColor(COLOR_HSV2RGB)` of an OpenCV that converts `vector` pixels together."""

    vector: int

    native = "opencv_from_hsv"

    def params(self) -> tuple[float, ...]:
        return (self.vector,)


@dataclass(frozen=True)
class OpencvBlur(OpencvOp):
    """`GaussianBlur`, or `sepFilter2D` of arrays with so many channels, with kernels of these sizes; the
    draws are half of each kernel, in 256ths for the first."""

    size_x: int
    size_y: int
    array_channels: int = 0
    blue_first: bool = False

    native = "opencv_blur"

    def params(self) -> tuple[float, ...]:
        return (self.size_x, self.size_y, self.array_channels, self.blue_first)


@dataclass(frozen=True)
class OpencvWarp(OpencvOp):
    """`warpAffine` or `warpPerspective` to `size` (width, height); the draws are the inverted matrix."""

    linear: bool
    border: str
    fill: tuple[int, int, int]
    size: tuple[int, int]
    perspective: bool
    version: int

    native = "opencv_warp"

    def params(self) -> tuple[float, ...]:
        border = PADDING_MODES.index(self.border)
        return (self.linear, border, *self.fill, *self.size, self.perspective, self.version)

    def output_size(self, height: int, width: int, draw: Draw) -> tuple[int, int]:
        return self.size[1], self.size[0]


@dataclass(frozen=True)
class OpencvContrast(OpencvOp):
    """albumentations' `adjust_contrast_torchvision` or `apply_brightness_contrast_torchvision`; the draws are
    the factors of contrast and brightness, and 1 if brightness comes first."""

    native = "opencv_contrast"


@dataclass(frozen=True)
class OpencvSaturation(OpencvOp):
    """albumentations' `adjust_saturation_torchvision`; the draw is its factor. With `numkong` it is that of
    AlbumentationsX, on images whose number of values is a multiple of 8."""

    numkong: bool

    native = "opencv_saturation"

    def params(self) -> tuple[float, ...]:
        return (self.numkong,)


@dataclass(frozen=True)
class FillBoxes(OpencvOp):
    """Fills boxes (left, top, right, bottom), the draws, with a color."""

    fill: tuple[int, int, int]

    native = "fill_boxes"

    def params(self) -> tuple[float, ...]:
        return self.fill


def adjustment(which: int, factor: Any) -> tuple[ImageOp, Draw] | None:
    """The op that changes brightness, contrast, saturation or hue, by their number in `FACTORS`, or None if
    the library has to do it."""
    (low, high), op = _ADJUSTMENTS[which]
    if type(factor) not in (int, float) or not low <= factor <= high:
        return None
    factors = [0.0] * len(FACTORS)
    factors[which] = float(factor)
    return op, (*map(float, range(len(FACTORS))), *factors)


def _adjustments() -> Iterator[tuple[tuple[float, float], ColorJitter]]:
    for which, name in enumerate(FACTORS):
        bounds = (-0.5, 0.5) if name == "hue" else (0.0, MAX_FACTOR)
        yield bounds, ColorJitter(*(bounds if i == which else None for i in range(len(FACTORS))))


_ADJUSTMENTS = tuple(_adjustments())


def blur_of(filter: Any) -> tuple[ImageOp, Draw] | None:
    """The op of a Pillow filter, or None if Pillow has to apply it."""
    if type(filter) is not ImageFilter.GaussianBlur:
        return None
    radius = filter.radius
    pair = tuple(radius) if isinstance(radius, (tuple, list)) else (radius, radius)
    plain = len(pair) == 2 and all(isinstance(r, (int, float)) and 0 <= r <= MAX_RADIUS for r in pair)
    return (PillowBlur(), (float(pair[0]), float(pair[1]))) if plain else None


def point_of(table: Any) -> tuple[ImageOp, Draw] | None:
    """The op of Pillow's look-up table, or of a function of a level, or None if Pillow has to apply it."""
    if not isinstance(table, (list, tuple)) or len(table) != 3 * 256:
        return None
    levels = tuple(table)
    known = all(type(level) is int and 0 <= level <= 255 for level in levels)
    return (PillowPoint(bytes(levels)), ()) if known else None


def warp_of(size: Any, method: Any, data: Any, filter: Any, fill: Any) -> tuple[ImageOp, Draw] | None:
    """The op of `Image.transform`, or None if Pillow has to do it."""
    count = WARP_COEFFICIENTS.get(method) if isinstance(method, int) and isinstance(filter, int) else None
    if count is None or filter not in WARP_FILTERS or not is_size(size):
        return None
    if not isinstance(data, (list, tuple)) or len(data) < count:
        return None
    draw = tuple(data[:count])
    if not all(type(v) in (int, float) and abs(v) <= LARGEST_COEFFICIENT for v in draw):
        return None
    color = (0, 0, 0) if fill is None else fill
    if not is_color(color):
        return None
    return PillowWarp((size[0], size[1]), Image.Transform(method), int(filter), tuple(color)), draw


def is_size(size: Any) -> bool:
    """Returns whether `size` is (width, height) of an image that native code makes."""
    return (
        isinstance(size, (list, tuple))
        and len(size) == 2
        and all(type(edge) is int and 0 < edge <= MAX_EDGE for edge in size)
    )


def is_color(color: Any) -> bool:
    """Returns whether `color` is a tuple of three levels."""
    return (
        isinstance(color, tuple)
        and len(color) == 3
        and all(type(level) is int and 0 <= level <= 255 for level in color)
    )


def native_form(
    steps: Sequence[Step], size: tuple[int, int], store: Store, *, gray: bool = False
) -> tuple[ffi.Pipeline, npt.NDArray[np.float64]]:
    """The pipeline of `steps`, which end with an image of `size` (width, height), and its draws.

    Args:
        gray: the image is decoded as ``convert("L")`` gives it.
    """
    if store.blue_first:
        steps = (*steps, Step(ChannelPermutation(), (2.0, 1.0, 0.0), size, "RGB"))
    draws = np.zeros((len(steps), abi.DRAWS)) if steps else _NO_DRAWS
    for row, step in zip(draws, steps, strict=True):
        row[: len(step.draw)] = step.draw
    return _pipeline(tuple([step.op for step in steps]), size, store, gray), draws


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """The format that pixels are written in.

    Attributes:
        values: address of float or uint8 [3, 256], each channel's value of each level, or None for the level.
        dtype: 0 uint8, 1 float16, 2 bfloat16, 3 float32, 4 int64.
        rows_of_pixels: whether the three values of a pixel lie side by side.
        keep: what the address is valid with.
        channels: 3, or 1 for the first of three equal ones; 4: as Pillow keeps RGB in memory.
        blue_first: whether the channels are blue, green and red; the first values are then blue's.
    """

    values: int | None
    dtype: int
    rows_of_pixels: bool
    keep: Any = None
    channels: int = 3
    blue_first: bool = False

    def nbytes(self, size: tuple[int, int]) -> int:
        """Bytes of an image of `size` (width, height)."""
        return size[0] * size[1] * self.channels * ITEM_NBYTES[self.dtype]


RGB_ROWS = Store(None, 0, True)
BGR_ROWS = Store(None, 0, True, blue_first=True)
PILLOW_ROWS = Store(None, 0, True, channels=4)
GRAY_ROWS = Store(None, 0, True, channels=1)


@lru_cache(maxsize=64)
def in_other_order(store: Store) -> Store:
    """The same with the levels' channels the other way round."""
    return replace(store, blue_first=not store.blue_first)


@lru_cache(maxsize=64)
def laid_out(store: Store, *, rows_of_pixels: bool) -> Store:
    """The same with the values of a pixel side by side, or in planes."""
    return replace(store, rows_of_pixels=rows_of_pixels)


_NO_DRAWS = np.zeros((0, abi.DRAWS))


_lowered = lru_cache(maxsize=256)(lowered)


@lru_cache(maxsize=256)
def _pipeline(ops: tuple[ImageOp, ...], size: tuple[int, int], store: Store, gray: bool) -> ffi.Pipeline:
    return ffi.Pipeline(
        [_lowered(op) for op in ops],
        size[1],
        size[0],
        dtype=store.dtype,
        nhwc=store.rows_of_pixels,
        table=store.values,
        keep=store.keep,
        decoders=allowed_decoders(),
        max_pixels=0,
        pillow_vertical_first=pillow_resizes_vertically_first(),
        channels=store.channels,
        gray=gray,
    )


@lru_cache(maxsize=1)
def allowed_decoders() -> int:
    """Decoders that images are made with: bit i for decoder i."""
    return decoder_bits()
