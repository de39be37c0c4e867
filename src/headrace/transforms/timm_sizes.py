"""timm's RandomResizedCropAndInterpolation and ResizeKeepRatio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.op import UNKNOWN, Extent, ImageOp, NoNativeForm
from headrace.transforms.reading import (
    FILTERS,
    bounds,
    check_filter,
    check_probability,
    check_range,
    check_size,
    filter_text,
    made,
    mode_of,
    number,
    pair,
    range_text,
)
from headrace.transforms.resize import TENSOR_RESIZE

NO_FILTER = -1.0


@dataclass(frozen=True)
class _Sized(ImageOp):
    """To height × width, with one of `filters`."""

    height: int
    width: int
    filters: tuple[int, ...]

    matches = ()
    parity = "pillow"
    tensor_problem = TENSOR_RESIZE

    def __post_init__(self) -> None:
        check_size(self.height, self.width)
        if len(self.filters) not in (1, 2):
            raise ValueError(f"{len(self.filters)} interpolations: native code chooses between two at most")
        for each in self.filters:
            check_filter(each)

    @property
    def _filters_text(self) -> str:
        return " or ".join(map(filter_text, self.filters))

    @property
    def _filter_params(self) -> tuple[float, float]:
        return self.filters[0], self.filters[1] if len(self.filters) > 1 else NO_FILTER


@dataclass(frozen=True)
class TimmResizedCrop(_Sized):
    """A random box of the input, resized to height × width; `scale` and `ratio` as of RandomResizedCrop."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("scale", self.scale, lowest=0.0, exclusive=False)
        check_range("ratio", self.ratio, lowest=0.0, exclusive=True)

    def __str__(self) -> str:
        size, scale, ratio = f"{self.height}×{self.width}", range_text(self.scale), range_text(self.ratio)
        return (
            f"RandomResizedCropAndInterpolation({size}, scale {scale}, ratio {ratio}, {self._filters_text})"
        )

    @classmethod
    def read(cls, transform: Any) -> Self:
        scale, ratio = bounds("scale", transform.scale), bounds("ratio", transform.ratio)
        return made(cls, *pair(transform.size), _filters(transform.interpolation), scale, ratio)

    def params(self) -> tuple[float, ...]:
        filter_, other = self._filter_params
        logs = (math.log(self.ratio[0]), math.log(self.ratio[1]))
        return (self.height, self.width, filter_, *self.scale, *logs, *self.ratio, other)

    def extent(self, before: Extent) -> Extent:
        return Extent(self.height, self.width, exact=True)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        top, left, height, width = (int(value) for value in draw[:4])
        mode = mode_of(int(draw[4]))
        return F.resized_crop(image, top, left, height, width, [self.height, self.width], mode)


@dataclass(frozen=True)
class ResizeKeepRatio(_Sized):
    """Both edges divided by one ratio: the smaller of input / size where `longest` is 0, the larger where it
    is 1. With some probability the result is scaled by `scale` and its aspect changed by `aspect`.

    Attributes:
        area: `scale` is that of an area which is cut out, not of an edge.
    """

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability(self.longest)
        check_range("random_scale_range", self.scale, lowest=1e-6, exclusive=False)
        check_range("random_aspect_range", self.aspect, lowest=1e-6, exclusive=False)

    def __str__(self) -> str:
        size = f"ResizeKeepRatio({self.height}×{self.width}, longest {self.longest:g}, {self._filters_text}"
        changes = (
            f", scale {range_text(self.scale)} with p {self.scale_chance:g}" if self.scale_chance else ""
        )
        if self.aspect_chance:
            changes += f", aspect {range_text(self.aspect)} with p {self.aspect_chance:g}"
        return f"{size}{changes})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        return made(
            cls,
            *pair(transform.size),
            _filters(transform.interpolation),
            number("longest", transform.longest),
            number("random_scale_prob", transform.random_scale_prob),
            bounds("random_scale_range", transform.random_scale_range),
            bool(transform.random_scale_area),
            number("random_aspect_prob", transform.random_aspect_prob),
            bounds("random_aspect_range", transform.random_aspect_range),
        )

    def params(self) -> tuple[float, ...]:
        scale = (self.scale_chance, *self.scale, self.area)
        logs = (math.log(self.aspect[0]), math.log(self.aspect[1]))
        return (
            *(self.height, self.width, *self._filter_params, self.longest),
            *(*scale, self.aspect_chance, *logs),
        )

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
    return tuple(int(FILTERS[mode]) for mode in modes)
