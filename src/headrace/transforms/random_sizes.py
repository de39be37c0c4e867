"""v2's resizes to a random size, and RandomZoomOut, which pads to one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.chance import ChanceOp, probability
from headrace.transforms.crops import TENSOR_PADDING
from headrace.transforms.op import UNKNOWN, Extent, ImageOp, NoNativeForm
from headrace.transforms.reading import (
    bounds,
    check_filter,
    check_range,
    check_size,
    colour,
    filter_of,
    filter_text,
    functional_of,
    image_fill,
    integer,
    made,
    mode_of,
    pair,
    range_text,
)
from headrace.transforms.resize import TENSOR_RESIZE

MOST_SIZES = 21
MOST_GROWTH = 16.0


@dataclass(frozen=True)
class _Resizing(ImageOp):
    """Both edges multiplied by one random number, as far as pixels allow."""

    filter: int

    parity = "pillow"
    tensor_problem = TENSOR_RESIZE
    gray_problem = ""
    draws = ("height", "width")

    def __post_init__(self) -> None:
        check_filter(self.filter)

    def extent(self, before: Extent) -> Extent:
        return UNKNOWN

    def output_size(self, height: int, width: int, draw: Draw) -> tuple[int, int]:
        return int(draw[0]), int(draw[1])

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return F.resize(image, [int(draw[0]), int(draw[1])], mode_of(self.filter))


@dataclass(frozen=True)
class RandomShortestSize(_Resizing):
    """The shorter edge becomes one of `sizes`, or less where the longer would exceed `max_size`."""

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
        super().__post_init__()
        if not 1 <= len(self.sizes) <= MOST_SIZES:
            raise ValueError(f"{len(self.sizes)} sizes: native code takes 1 to {MOST_SIZES}")
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
        return made(cls, filter_of(transform), sizes, limit)

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
        super().__post_init__()
        check_size(self.least, self.end)
        if self.least >= self.end:
            raise ValueError(f"min_size ({self.least}) must be less than max_size ({self.end})")

    def __str__(self) -> str:
        return f"RandomResize(shorter edge {self.least}–{self.end - 1}, {filter_text(self.filter)})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        sizes = (integer(name, getattr(transform, name)) for name in ("min_size", "max_size"))
        return made(cls, filter_of(transform), *sizes)

    def params(self) -> tuple[float, ...]:
        return (self.filter, self.least, self.end)


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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size(*self.target)
        check_range("scale_range", self.scale, lowest=0.0, exclusive=False)
        _check_growth("scale_range", self.scale)

    def __str__(self) -> str:
        size = f"{self.target[0]}×{self.target[1]}"
        return f"ScaleJitter({size}, scale {range_text(self.scale)}, {filter_text(self.filter)})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        scale = bounds("scale_range", transform.scale_range)
        return made(cls, filter_of(transform), pair(transform.target_size), scale)

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
    gray_problem = ""
    draws = ("1: applied, 0: not", "height", "width", "top of the image in it", "left")
    examples = (
        {},
        {"p": 1.0, "side_range": (1.0, 1.5), "fill": (9, 200, 77)},
        {"p": 0.9, "side_range": (2, 2), "fill": {Image.Image: 7, "others": 0}},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("side_range", self.sides, lowest=1.0, exclusive=False)
        _check_growth("side_range", self.sides)

    def __str__(self) -> str:
        return f"RandomZoomOut(p {self.p:g}, edges times {range_text(self.sides)}, fill {self.fill})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        fill = colour(image_fill(transform.fill), functional_of(transform))
        return made(
            cls, probability(transform, as_tensor=True), bounds("side_range", transform.side_range), fill
        )

    def params(self) -> tuple[float, ...]:
        return (self.p, self.sides[0], self.sides[1] - self.sides[0], *self.fill)

    def extent(self, before: Extent) -> Extent:
        return Extent(before.height, before.width, exact=False)

    def output_size(self, height: int, width: int, draw: Draw) -> tuple[int, int]:
        return (int(draw[1]), int(draw[2])) if draw[0] else (height, width)

    def keeps_info(self, height: int, width: int, draw: Draw) -> bool:
        return not draw[0]

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        _, height, width, top, left = map(int, draw)
        sides = [left, top, width - left - image.width, height - top - image.height]
        return F.pad(image, sides, fill=self.fill)


def _check_growth(name: str, value: tuple[float, float]) -> None:
    if value[1] > MOST_GROWTH:
        raise ValueError(
            f"{name} {value} must be at most {MOST_GROWTH:g}: native code makes no larger images"
        )
