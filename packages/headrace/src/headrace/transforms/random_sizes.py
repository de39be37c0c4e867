"""v2's and timm's resizes to a random size, and RandomZoomOut, which pads to one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.chance import ChanceOp, probability
from headrace.transforms.crops import TENSOR_PADDING
from headrace.transforms.op import NO_GRAY, UNKNOWN, Extent, ImageOp, NoNativeForm, SizedOp
from headrace.transforms.reading import (
    FILTERS,
    bounds,
    chance,
    check_size,
    fill_color,
    filter_of,
    filter_text,
    integer,
    mode_of,
    number,
    pair,
    range_text,
)
from headrace.transforms.resize import TENSOR_RESIZE

MOST_SIZES = 21
MOST_GROWTH = 16.0
NO_FILTER = -1.0


@dataclass(frozen=True)
class _Resizing(ImageOp):
    """Both edges multiplied by one random number, as far as pixels allow."""

    filter: int

    parity = "pillow"
    tensor_problem = TENSOR_RESIZE
    draws = ("height", "width")

    def extent(self, before: Extent) -> Extent:
        return UNKNOWN

    def output_size(self, height: int, width: int, draw: Draw) -> tuple[int, int]:
        return int(draw[0]), int(draw[1])

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return F.resize(image, [int(draw[0]), int(draw[1])], mode_of(self.filter))


@dataclass(frozen=True)
class RandomShortestSize(_Resizing):
    """The shorter edge becomes one of `sizes`, or less if the longer would exceed `max_size`."""

    sizes: tuple[int, ...]
    max_size: int | None

    native = "random_shortest_size"
    matches = (v2.RandomShortestSize,)
    examples = (
        {"min_size": 30},
        {"min_size": [9, 20, 35], "max_size": 40, "interpolation": InterpolationMode.BICUBIC},
        {"min_size": (300, 20), "max_size": 2},
    )

    def __post_init__(self) -> None:
        if not 1 <= len(self.sizes) <= MOST_SIZES:
            raise NoNativeForm(f"{len(self.sizes)} sizes: native code takes 1 to {MOST_SIZES}")
        for size in (*self.sizes, self.max_size or 1):
            check_size(size, size)

    def __str__(self) -> str:
        limit = "" if self.max_size is None else f", longer at most {self.max_size}"
        sizes = " or ".join(map(str, self.sizes))
        return f"RandomShortestSize(shorter edge {sizes}{limit}, {filter_text(self.filter)})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        sizes = tuple(integer("min_size", size) for size in transform.min_size)
        limit = None if transform.max_size is None else integer("max_size", transform.max_size)
        if limit == 0:
            raise NoNativeForm("max_size=0 leaves nothing of an image")
        return cls(filter_of(transform), sizes, limit)

    def params(self) -> tuple[float, ...]:
        return (self.filter, self.max_size or 0, len(self.sizes), *self.sizes)


@dataclass(frozen=True)
class RandomResize(_Resizing):
    """The shorter edge becomes a random size from `least`, below `end`; the longer
    ``int(size * long / short)``."""

    least: int
    end: int

    native = "random_resize"
    matches = (v2.RandomResize,)
    examples = ({"min_size": 9, "max_size": 70}, {"min_size": 31, "max_size": 32, "interpolation": 0})

    def __post_init__(self) -> None:
        check_size(self.least, self.end)
        if self.least >= self.end:
            raise NoNativeForm(f"min_size ({self.least}) must be less than max_size ({self.end})")

    def __str__(self) -> str:
        return f"RandomResize(shorter edge {self.least}–{self.end - 1}, {filter_text(self.filter)})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        sizes = (integer(name, getattr(transform, name)) for name in ("min_size", "max_size"))
        return cls(filter_of(transform), *sizes)


@dataclass(frozen=True)
class ScaleJitter(_Resizing):
    """The input scaled to fit `target`, and then by a random number of `scale`."""

    target: tuple[int, int]
    scale: tuple[float, float]

    native = "scale_jitter"
    matches = (v2.ScaleJitter,)
    examples = (
        {"target_size": (40, 50)},
        {"target_size": [30, 21], "scale_range": (0.9, 1.3), "interpolation": 3},
        {"target_size": (24, 24), "scale_range": (1, 1)},
    )

    def __str__(self) -> str:
        size = f"{self.target[0]}×{self.target[1]}"
        return f"ScaleJitter({size}, scale {range_text(self.scale)}, {filter_text(self.filter)})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        scale = _growth("scale_range", transform.scale_range, 0.0)
        return cls(filter_of(transform), pair(transform.target_size), scale)

    def params(self) -> tuple[float, ...]:
        return (self.filter, *self.target, self.scale[0], self.scale[1] - self.scale[0])


@dataclass(frozen=True)
class RandomZoomOut(ChanceOp):
    """The input somewhere in an image of `fill` (red, green, blue) whose edges are longer by a factor of
    `sides`."""

    sides: tuple[float, float]
    fill: tuple[int, int, int]

    native = "random_zoom_out"
    matches = (v2.RandomZoomOut,)
    tensor_problem = TENSOR_PADDING
    draws = ("1: applied, 0: not", "height", "width", "top of the image in it", "left")
    examples = (
        {},
        {"p": 1.0, "side_range": (1.0, 1.5), "fill": (9, 200, 77)},
        {"p": 0.9, "side_range": (2, 2), "fill": {Image.Image: 7, "others": 0}},
    )

    def __str__(self) -> str:
        return f"RandomZoomOut(p {self.p:g}, edges times {range_text(self.sides)}, fill {self.fill})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        sides = _growth("side_range", transform.side_range, 1.0)
        return cls(probability(transform, as_tensor=True), sides, fill_color(transform))

    def params(self) -> tuple[float, ...]:
        return (self.p, self.sides[0], self.sides[1] - self.sides[0], *self.fill)

    def extent(self, before: Extent) -> Extent:
        return Extent(before.height, before.width, exact=False)

    def output_size(self, height: int, width: int, draw: Draw) -> tuple[int, int]:
        return (int(draw[1]), int(draw[2])) if draw[0] else (height, width)

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        _, height, width, top, left = map(int, draw)
        sides = [left, top, width - left - image.width, height - top - image.height]
        return F.pad(image, sides, fill=self.fill)


def _growth(name: str, value: Any, lowest: float) -> tuple[float, float]:
    """(low, high) of what edges are multiplied by."""
    low, high = bounds(name, value, lowest)
    if high > MOST_GROWTH:
        raise NoNativeForm(f"{name} {low, high} must be at most {MOST_GROWTH:g}: native code makes no larger")
    return low, high


@dataclass(frozen=True)
class _TimmResizing(SizedOp):
    """Resizes to height × width with one of `filters`."""

    filters: tuple[int, ...]

    gray_problem = NO_GRAY
    parity = "pillow"
    tensor_problem = TENSOR_RESIZE

    @property
    def _filters_text(self) -> str:
        return " or ".join(map(filter_text, self.filters))

    @property
    def _filter_params(self) -> tuple[float, ...]:
        return (*self.filters, NO_FILTER)[:2]


@dataclass(frozen=True)
class TimmResizedCrop(_TimmResizing):
    """A random box of the input, resized to height × width; for `scale` and `ratio` see RandomResizedCrop."""

    scale: tuple[float, float]
    ratio: tuple[float, float]

    native = "timm_resized_crop"
    matches_imported = ("timm.data.transforms.RandomResizedCropAndInterpolation",)
    draws = ("top", "left", "height", "width", "filter")
    examples = (
        {"size": 24},
        {"size": (20, 31), "scale": (0.5, 2.0), "ratio": (1.0, 3.0), "interpolation": "random"},
        {"size": 24, "scale": (3.0, 4.0), "interpolation": "bicubic"},
        {"size": 24, "scale": (0.9, 1.0), "ratio": (9.0, 11.0), "interpolation": "lanczos"},
        {"size": 24, "scale": (0.001, 0.002)},
    )

    def __str__(self) -> str:
        size, scale, ratio = f"{self.height}×{self.width}", range_text(self.scale), range_text(self.ratio)
        arguments = f"{size}, scale {scale}, ratio {ratio}, {self._filters_text}"
        return f"RandomResizedCropAndInterpolation({arguments})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        scale, ratio = bounds("scale", transform.scale), bounds("ratio", transform.ratio, exclusive=True)
        return cls(*pair(transform.size), _filters(transform.interpolation), scale, ratio)

    def params(self) -> tuple[float, ...]:
        filter_, other = self._filter_params
        logs = map(math.log, self.ratio)
        return (self.height, self.width, filter_, *self.scale, *logs, *self.ratio, other)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        top, left, height, width = (int(value) for value in draw[:4])
        mode = mode_of(int(draw[4]))
        return F.resized_crop(image, top, left, height, width, [self.height, self.width], mode)


@dataclass(frozen=True)
class ResizeKeepRatio(_TimmResizing):
    """Both edges divided by one ratio: the smaller of input / size if `longest` is 0, the larger if it is 1.
    With some probability the result is scaled by `scale` (that of an `area` which is cut out, or of an edge),
    and its aspect changed by `aspect`."""

    longest: float
    scale_chance: float
    scale: tuple[float, float]
    area: bool
    aspect_chance: float
    aspect: tuple[float, float]

    native = "resize_keep_ratio"
    matches_imported = ("timm.data.transforms.ResizeKeepRatio",)
    draws = ("height", "width", "filter")
    examples = (
        {"size": 24},
        {"size": (24, 31), "longest": 1.0, "interpolation": "bicubic"},
        {"size": 24, "interpolation": "random", "random_scale_prob": 0.5, "random_aspect_prob": 0.5},
        {"size": 24, "longest": 0.5, "random_scale_prob": 1.0, "random_scale_area": True},
    )

    def __str__(self) -> str:
        parts = [f"{self.height}×{self.width}", f"longest {self.longest:g}", self._filters_text]
        if self.scale_chance:
            parts.append(f"scale {range_text(self.scale)} with p {self.scale_chance:g}")
        if self.aspect_chance:
            parts.append(f"aspect {range_text(self.aspect)} with p {self.aspect_chance:g}")
        return f"ResizeKeepRatio({', '.join(parts)})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        return cls(
            *pair(transform.size),
            _filters(transform.interpolation),
            chance("longest", transform.longest),
            number("random_scale_prob", transform.random_scale_prob),
            bounds("random_scale_range", transform.random_scale_range, 1e-6),
            bool(transform.random_scale_area),
            number("random_aspect_prob", transform.random_aspect_prob),
            bounds("random_aspect_range", transform.random_aspect_range, 1e-6),
        )

    def params(self) -> tuple[float, ...]:
        scale, aspects = (self.scale_chance, *self.scale, self.area), map(math.log, self.aspect)
        size = (self.height, self.width, *self._filter_params, self.longest)
        return (*size, *scale, self.aspect_chance, *aspects)

    def extent(self, before: Extent) -> Extent:
        if not before.exact or self.scale_chance > 0 or self.aspect_chance > 0:
            return UNKNOWN
        ratios = before.height / self.height, before.width / self.width
        ratio = max(ratios) * self.longest + min(ratios) * (1.0 - self.longest)
        return Extent(round(before.height * 1.0 / ratio), round(before.width * 1.0 / ratio), exact=True)

    def output_size(self, height: int, width: int, draw: Draw) -> tuple[int, int]:
        return int(draw[0]), int(draw[1])

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return F.resize(image, [int(draw[0]), int(draw[1])], mode_of(int(draw[2])))


def _filters(interpolation: Any) -> tuple[int, ...]:
    modes = interpolation if isinstance(interpolation, (tuple, list)) else [interpolation]
    if not all(isinstance(mode, InterpolationMode) for mode in modes):
        raise NoNativeForm(f"interpolation={interpolation!r} isn't torchvision's")
    if len(modes) not in (1, 2):
        raise NoNativeForm(f"{len(modes)} interpolations: native code chooses between two at most")
    return tuple(int(FILTERS[mode]) for mode in modes)
