"""Pad."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms import v2
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.crops import PADDING_MODES, TENSOR_PADDING, PaddingMode, check_padding, sides_of
from headrace.transforms.op import Extent, ImageOp
from headrace.transforms.reading import colour, functional_of, image_fill, made, tensor_fill


@dataclass(frozen=True)
class Pad(ImageOp):
    """`padding` (left, top, right, bottom), in pixels, around the input, which is cut where it is negative;
    `fill` is for 'constant'."""

    padding: tuple[int, int, int, int]
    padding_mode: PaddingMode
    fill: tuple[int, int, int]

    native = "pad"
    gray_problem = ""
    matches = (v1.Pad, v2.Pad)
    tensor_problem = TENSOR_PADDING
    examples = (
        {"padding": 3},
        {"padding": 0},
        {"padding": [4], "fill": (1, 2, 3)},
        {"padding": (2, 5), "padding_mode": "edge"},
        {"padding": (1, 2, 3, 4), "padding_mode": "reflect"},
        {"padding": (9, 0, 1, 60), "padding_mode": "symmetric"},
        {"padding": (-3, 2, 1, -2), "fill": 200},
    )
    v2_examples = ({"padding": 2, "fill": {Image.Image: 7, "others": 0}},)

    def __post_init__(self) -> None:
        check_padding(self.padding, self.padding_mode)

    def __str__(self) -> str:
        kind = f"fill {self.fill}" if self.padding_mode == "constant" else self.padding_mode
        return f"Pad({self.padding}, {kind})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        is_v2 = isinstance(transform, v2.Transform)
        fill = (0, 0, 0)
        if transform.padding_mode == "constant":
            fill = colour(image_fill(transform.fill) if is_v2 else transform.fill, functional_of(transform))
        return made(cls, sides_of(transform.padding), transform.padding_mode, fill)

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        return replace(cls.read(transform), fill=tensor_fill(transform))

    def params(self) -> tuple[float, ...]:
        return (*self.padding, PADDING_MODES.index(self.padding_mode), *self.fill)

    def extent(self, before: Extent) -> Extent:
        left, top, right, bottom = self.padding
        after = before.grown(top + bottom, left + right)
        if after.height >= 1 and after.width >= 1:
            return after
        return Extent(max(1, after.height), max(1, after.width), exact=False)

    def keeps_info(self, height: int, width: int, draw: Draw) -> bool:
        return False

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return F.pad(image, list(self.padding), fill=self.fill, padding_mode=self.padding_mode)
