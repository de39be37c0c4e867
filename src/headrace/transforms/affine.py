"""RandomAffine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.op import ImageOp, NoNativeForm
from headrace.transforms.reading import (
    bounds,
    check_range,
    colour,
    filter_of,
    filter_text,
    functional_of,
    image_fill,
    made,
    mode_of,
    number,
    range_text,
)

# The filters that Pillow warps with.
WARP_FILTERS = (Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)


@dataclass(frozen=True)
class RandomAffine(ImageOp):
    """Rotated by `degrees` (clockwise), moved, scaled and sheared about the center, within the input's size.

    Attributes:
        translate: the largest moves, as fractions of width and height.
        shear: pairs of bounds in degrees, along x and along y.
        center: x, y in pixels; None: the image's.
        fill: red, green, blue of what comes in from outside.
        is_v2: whether v2's arithmetic is meant, which rounds the matrix in other places than v1's.
    """

    degrees: tuple[float, float]
    translate: tuple[float, float] | None
    scale: tuple[float, float] | None
    shear: tuple[tuple[float, float], ...]
    filter: int
    fill: tuple[int, int, int]
    center: tuple[float, float] | None
    is_v2: bool

    native = "random_affine"
    gray_problem = ""
    matches = (v1.RandomAffine, v2.RandomAffine)
    draws = ("degrees", "right, in pixels", "down", "scale", "shear along x, in degrees", "along y")
    examples = (
        {"degrees": 0},
        {"degrees": 30},
        {"degrees": (90, 90)},
        {"degrees": (0, 360), "interpolation": InterpolationMode.BILINEAR, "fill": (1, 130, 255)},
        {"degrees": 15, "translate": (0.3, 0.1), "interpolation": InterpolationMode.BICUBIC, "fill": 9},
        {"degrees": 0, "translate": (0.1, 0.1)},
        {"degrees": 0, "translate": (1.0, 0.0), "interpolation": InterpolationMode.BILINEAR},
        {"degrees": 0, "scale": (0.5, 2.0)},
        {"degrees": 5, "scale": (0.8, 1.2), "shear": 20, "interpolation": InterpolationMode.BILINEAR},
        {"degrees": 0, "shear": (-10, 40), "center": (3, 8.5)},
        {"degrees": 9, "shear": (0, 0, -30, 60), "interpolation": InterpolationMode.BICUBIC},
        {"degrees": 25, "translate": (0.1, 0.2), "scale": (0.1, 0.3), "shear": [-5, 5, -9, 9], "fill": 200},
    )
    v2_examples = ({"degrees": 20, "interpolation": 2, "fill": {Image.Image: 7, "others": 0}},)

    def __post_init__(self) -> None:
        if self.filter not in WARP_FILTERS:
            raise ValueError(f"filter {self.filter} must be nearest, bilinear or bicubic")
        if self.scale is not None:
            check_range("scale", self.scale, lowest=0, exclusive=True)

    def __str__(self) -> str:
        parts = [f"{range_text(self.degrees)} degrees"]
        parts += [] if self.translate is None else ["translate {:.4g}, {:.4g}".format(*self.translate)]
        parts += [] if self.scale is None else [f"scale {range_text(self.scale)}"]
        parts += [f"shear {', '.join(map(range_text, self.shear))}"] if self.shear else []
        parts += [] if self.center is None else ["center {:.4g}, {:.4g}".format(*self.center)]
        return f"RandomAffine({', '.join([*parts, filter_text(self.filter), f'fill {self.fill}'])})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        is_v2 = isinstance(transform, v2.Transform)
        shear = () if transform.shear is None else tuple(number("shear", s) for s in transform.shear)
        if len(shear) not in (0, 2, 4):
            raise NoNativeForm(f"shear={transform.shear!r} isn't 2 or 4 bounds")
        fill = image_fill(transform.fill) if is_v2 else transform.fill
        return made(
            cls,
            bounds("degrees", transform.degrees),
            None if transform.translate is None else bounds("translate", transform.translate),
            None if transform.scale is None else bounds("scale", transform.scale),
            tuple(zip(shear[::2], shear[1::2], strict=True)),
            filter_of(transform),
            colour(fill, functional_of(transform)),
            None if transform.center is None else bounds("center", transform.center),
            is_v2,
        )

    def params(self) -> tuple[float, ...]:
        def optional(pair: tuple[float, float] | None) -> tuple[float, ...]:
            return (0, 0, 0) if pair is None else (*pair, 1)

        shear = [bound for pair in self.shear for bound in pair]
        return (
            *self.degrees,
            *optional(self.translate),
            *optional(self.scale),
            *shear,
            *[0] * (4 - len(shear)),
            len(self.shear),
            self.filter,
            *self.fill,
            *optional(self.center),
            self.is_v2,
        )

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        degrees, right, down, scale, *shear = draw
        functional = v2.functional if self.is_v2 else v1.functional
        return functional.affine(
            image,
            degrees,
            [int(right), int(down)],
            scale,
            shear,
            mode_of(self.filter),
            list(self.fill),
            None if self.center is None else list(self.center),
        )
