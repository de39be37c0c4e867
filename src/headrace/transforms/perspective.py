"""RandomPerspective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.affine import WARP_FILTERS
from headrace.transforms.chance import ChanceOp, probability
from headrace.transforms.reading import (
    colour,
    filter_of,
    filter_text,
    functional_of,
    image_fill,
    made,
    mode_of,
    number,
)

CORNERS = ("top left", "top right", "bottom right", "bottom left")


@dataclass(frozen=True)
class RandomPerspective(ChanceOp):
    """Seen from elsewhere with probability `p`: corners move inwards, by up to `distortion` / 2 of an edge.

    The coefficients are the solution of linear equations. Where the last bits of torch's solution could
    matter, native code leaves the sample to torchvision: 3 to 11 % of the applied ones for images of 224 to
    500 pixels, 24 % for 32×32.
    """

    distortion: float
    filter: int
    fill: tuple[int, int, int]

    native = "random_perspective"
    gray_problem = ""
    matches = (v1.RandomPerspective, v2.RandomPerspective)
    draws = (*ChanceOp.draws, *(f"{axis} of the {corner} corner" for corner in CORNERS for axis in "xy"))
    examples = (
        {"p": 0.0},
        {},
        {"p": 1.0, "fill": (255, 0, 7)},
        {"p": 1.0, "distortion_scale": 1.0, "interpolation": InterpolationMode.NEAREST},
        {"p": 1.0, "distortion_scale": 0.2, "interpolation": InterpolationMode.BICUBIC, "fill": 99},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.distortion <= 1:
            raise ValueError(f"distortion_scale ({self.distortion}) must be 0 to 1")
        if self.filter not in WARP_FILTERS:
            raise ValueError(f"filter {self.filter} must be nearest, bilinear or bicubic")

    def __str__(self) -> str:
        filter_and_fill = f"{filter_text(self.filter)}, fill {self.fill}"
        return f"RandomPerspective(distortion {self.distortion:g}, p {self.p:g}, {filter_and_fill})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        is_v2 = isinstance(transform, v2.Transform)
        return made(
            cls,
            probability(transform, as_tensor=True),
            number("distortion_scale", transform.distortion_scale),
            filter_of(transform),
            colour(image_fill(transform.fill) if is_v2 else transform.fill, functional_of(transform)),
        )

    def params(self) -> tuple[float, ...]:
        return (self.distortion, self.p, self.filter, *self.fill)

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        right, bottom = image.width - 1, image.height - 1
        starts = [[0, 0], [right, 0], [right, bottom], [0, bottom]]
        ends = [[int(x), int(y)] for x, y in zip(draw[1::2], draw[2::2], strict=True)]
        return F.perspective(image, starts, ends, mode_of(self.filter), list(self.fill))
