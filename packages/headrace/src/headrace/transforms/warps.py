"""RandomRotation, RandomAffine and RandomPerspective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.chance import ChanceOp, probability
from headrace.transforms.op import MAX_SIZE, UNKNOWN, Extent, ImageOp, NoNativeForm
from headrace.transforms.reading import (
    bounds,
    chance,
    fill_color,
    filter_text,
    finite,
    mode_of,
    range_text,
    two,
    warp_filter_of,
)

MAX_DEGREES = 1e6
CORNERS = ("top left", "top right", "bottom right", "bottom left")


@dataclass(frozen=True)
class RandomRotation(ImageOp):
    """Rotated counter-clockwise by a random angle between `degrees`, about `center` (x, y), in pixels, or the
    middle. `expand` makes the result as large as it must be. What comes from outside has the color `fill`."""

    degrees: tuple[float, float]
    filter: int
    expand: bool
    center: tuple[float, float] | None
    fill: tuple[int, int, int]

    native = "random_rotation"
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

    def __str__(self) -> str:
        extras = [f"{range_text(self.degrees)}°", filter_text(self.filter)]
        extras += ["expand"] if self.expand else []
        extras += [] if self.center is None else [f"center {self.center}"]
        extras += [f"fill {self.fill}"] if any(self.fill) else []
        return f"RandomRotation({', '.join(extras)})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        degrees = bounds("degrees", transform.degrees, -MAX_DEGREES, MAX_DEGREES)
        center = None if transform.center is None else two("center", transform.center)
        if center is not None and not all(abs(c) <= MAX_SIZE for c in center):
            raise NoNativeForm(f"center {center} must be within {MAX_SIZE} pixels")
        # Its corners are from outside.
        fill = fill_color(transform, lambda fill: F.rotate(Image.new("RGB", (9, 9)), 45, fill=fill))
        return cls(degrees, warp_filter_of(transform), bool(transform.expand), center, fill)

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


@dataclass(frozen=True)
class RandomAffine(ImageOp):
    """Rotated by `degrees` (clockwise), moved, scaled and sheared about the center, within the input's size.

    Attributes:
        translate: the largest moves, as fractions of width and height.
        shear: pairs of bounds in degrees, along x and along y.
        center: x, y in pixels, or None for the middle.
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

    def __str__(self) -> str:
        parts = [f"{range_text(self.degrees)} degrees"]
        parts += [] if self.translate is None else ["translate {:.4g}, {:.4g}".format(*self.translate)]
        parts += [] if self.scale is None else [f"scale {range_text(self.scale)}"]
        parts += [f"shear {', '.join(map(range_text, self.shear))}"] if self.shear else []
        parts += [] if self.center is None else ["center {:.4g}, {:.4g}".format(*self.center)]
        return f"RandomAffine({', '.join([*parts, filter_text(self.filter), f'fill {self.fill}'])})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        shear = () if transform.shear is None else tuple(finite("shear", s) for s in transform.shear)
        if len(shear) not in (0, 2, 4):
            raise NoNativeForm(f"shear={transform.shear!r} isn't 2 or 4 bounds")
        return cls(
            two("degrees", transform.degrees),
            None if transform.translate is None else two("translate", transform.translate),
            None if transform.scale is None else bounds("scale", transform.scale, exclusive=True),
            tuple(zip(shear[::2], shear[1::2], strict=True)),
            warp_filter_of(transform),
            fill_color(transform),
            None if transform.center is None else two("center", transform.center),
            isinstance(transform, v2.Transform),
        )

    def params(self) -> tuple[float, ...]:
        optional = (self.translate, self.scale, self.center)
        translate, scale, center = ((0, 0, 0) if pair is None else (*pair, 1) for pair in optional)
        shear = (*(bound for pair in self.shear for bound in pair), 0, 0, 0, 0)[:4]
        shape = (*self.degrees, *translate, *scale, *shear, len(self.shear))
        return (*shape, self.filter, *self.fill, *center, self.is_v2)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        degrees, right, down, scale, *shear = draw
        functional = v2.functional if self.is_v2 else v1.functional
        center = None if self.center is None else list(self.center)
        how = mode_of(self.filter), list(self.fill), center
        return functional.affine(image, degrees, [int(right), int(down)], scale, shear, *how)


@dataclass(frozen=True)
class RandomPerspective(ChanceOp):
    """Seen from elsewhere with probability `p`: corners move inwards, by up to `distortion` / 2 of an edge.

    If the last bits of torch's solution of linear equations could matter, native code leaves the sample to
    torchvision: 3 to 11 % of the applied ones for images of 224 to 500 pixels, 24 % for 32×32.
    """

    distortion: float
    filter: int
    fill: tuple[int, int, int]

    native = "random_perspective"
    matches = (v1.RandomPerspective, v2.RandomPerspective)
    draws = (*ChanceOp.draws, *(f"{axis} of the {corner} corner" for corner in CORNERS for axis in "xy"))
    examples = (
        {"p": 0.0},
        {},
        {"p": 1.0, "fill": (255, 0, 7)},
        {"p": 1.0, "distortion_scale": 1.0, "interpolation": InterpolationMode.NEAREST},
        {"p": 1.0, "distortion_scale": 0.2, "interpolation": InterpolationMode.BICUBIC, "fill": 99},
    )

    def __str__(self) -> str:
        parts = f"distortion {self.distortion:g}, p {self.p:g}, {filter_text(self.filter)}, fill {self.fill}"
        return f"RandomPerspective({parts})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        distortion = chance("distortion_scale", transform.distortion_scale)
        p = probability(transform, as_tensor=True)
        return cls(p, distortion, warp_filter_of(transform), fill_color(transform))

    def params(self) -> tuple[float, ...]:
        return (self.distortion, self.p, self.filter, *self.fill)

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        right, bottom = image.width - 1, image.height - 1
        starts = [[0, 0], [right, 0], [right, bottom], [0, bottom]]
        ends = [[int(x), int(y)] for x, y in zip(draw[1::2], draw[2::2], strict=True)]
        return F.perspective(image, starts, ends, mode_of(self.filter), list(self.fill))
