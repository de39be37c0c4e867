"""RandomRotation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.op import UNKNOWN, Extent, ImageOp, NoNativeForm
from headrace.transforms.reading import (
    MAX_SIZE,
    check_range,
    filter_of,
    filter_text,
    image_fill,
    made,
    mode_of,
    number,
    range_text,
)

WARPS = (Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
MAX_DEGREES = 1e6


@dataclass(frozen=True)
class RandomRotation(ImageOp):
    """Rotated counter-clockwise by a random angle between `degrees`.

    `expand` makes the result as large as it must be, else it is as large as the input. `center` (x, y) is in
    pixels; None: the middle. What comes from outside the input is of the colour `fill`.
    """

    degrees: tuple[float, float]
    filter: int
    expand: bool
    center: tuple[float, float] | None
    fill: tuple[int, int, int]

    native = "random_rotation"
    gray_problem = ""
    matches = (v1.RandomRotation, v2.RandomRotation)
    draws = ("degrees, counter-clockwise",)
    examples = (
        {"degrees": 30},
        {"degrees": (10, 350.5), "interpolation": InterpolationMode.BILINEAR, "fill": (1, 2, 3)},
        {"degrees": 180, "interpolation": InterpolationMode.BICUBIC, "fill": 200.7},
        {"degrees": 90, "expand": True, "fill": [9]},
        {"degrees": [-400, 400], "expand": True, "interpolation": InterpolationMode.BILINEAR},
        {"degrees": 45, "center": (3, 40.5), "interpolation": InterpolationMode.BILINEAR},
        {"degrees": 45, "center": [0, 0], "expand": True, "interpolation": 3},
        *({"degrees": (turn, turn), "expand": turn < 0} for turn in (-270, -90, 0, 90, 180, 270, 360)),
        {"degrees": (0, 0), "center": (1, 1), "interpolation": 2},
    )
    v2_examples = (
        {"degrees": 30, "fill": {Image.Image: (5, 6, 7), "others": 0}},
        {"degrees": 30, "fill": None},
    )

    def __post_init__(self) -> None:
        check_range("degrees", self.degrees, lowest=-MAX_DEGREES, exclusive=False)
        if self.degrees[1] > MAX_DEGREES:
            raise ValueError(f"degrees {self.degrees} must be at most {MAX_DEGREES:g}")
        if self.filter not in WARPS:
            raise ValueError(
                f"Pillow rotates by nearest, bilinear and bicubic, not {filter_text(self.filter)}"
            )
        if self.center is not None and not all(abs(c) <= MAX_SIZE for c in self.center):
            raise ValueError(f"center {self.center} must be within {MAX_SIZE} pixels")

    def __str__(self) -> str:
        extras = [f"{range_text(self.degrees)}°", filter_text(self.filter)]
        extras += ["expand"] if self.expand else []
        extras += [] if self.center is None else [f"center {self.center}"]
        extras += [f"fill {self.fill}"] if any(self.fill) else []
        return f"RandomRotation({', '.join(extras)})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        low, high = (number("degrees", value) for value in transform.degrees)
        center = transform.center
        if center is not None:
            x, y = (number("center", value) for value in center)
            center = (x, y)
        fill = image_fill(transform.fill) if isinstance(transform, v2.Transform) else transform.fill
        filter_ = filter_of(transform)
        return made(cls, (low, high), filter_, bool(transform.expand), center, _colour(fill))

    def params(self) -> tuple[float, ...]:
        center = (0, 0, 0) if self.center is None else (1, *self.center)
        return (*self.degrees, self.filter, self.expand, *center, *self.fill)

    def extent(self, before: Extent) -> Extent:
        return UNKNOWN if self.expand else before

    def output_size(self, height: int, width: int, draw: Draw) -> tuple[int, int]:
        result = self.replay(Image.new("RGB", (width, height)), draw) if self.expand else None
        return (height, width) if result is None else (result.height, result.width)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        center = None if self.center is None else list(self.center)
        return F.rotate(image, draw[0], mode_of(self.filter), self.expand, center, list(self.fill))


def _colour(fill: Any) -> tuple[int, int, int]:
    """What torchvision makes of `fill`, asked of torchvision: the colour of a corner from outside."""
    try:
        turned: Any = F.rotate(Image.new("RGB", (9, 9)), 45, fill=fill)
    except (TypeError, ValueError, OverflowError) as error:
        raise NoNativeForm(f"fill={fill!r} raises {type(error).__name__}: {error}") from None
    red, green, blue = turned.getpixel((0, 0))
    return red, green, blue
