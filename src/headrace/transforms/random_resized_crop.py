"""RandomResizedCrop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms import v2

from headrace.records import Draw
from headrace.transforms.on_tensors import check_result, tensor_filter_of, through_tensor
from headrace.transforms.op import Extent, ImageOp, Parity
from headrace.transforms.reading import (
    bounds,
    check_filter,
    check_range,
    check_size,
    filter_of,
    filter_text,
    made,
    mode_of,
    pair,
    range_text,
)
from headrace.transforms.resize import TENSOR_RESIZE


@dataclass(frozen=True)
class RandomResizedCrop(ImageOp):
    """A random box of the input, resized to height × width.

    `scale` bounds the box's area as a share of the input's, `ratio` its width / height; ten tries, then the
    central box that fits, as torchvision does it.
    """

    height: int
    width: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    filter: int

    native = "random_resized_crop"
    gray_problem = ""
    matches = (v1.RandomResizedCrop, v2.RandomResizedCrop)
    parity: ClassVar[Parity] = "pillow"
    tensor_problem = TENSOR_RESIZE
    draws = ("top", "left", "height", "width")
    examples = (
        {"size": 24},
        {"size": (20, 31), "scale": (0.5, 2.0), "ratio": (1.0, 3.0), "antialias": False},
        {"size": 24, "scale": (3.0, 4.0)},  # never fits: the central box
        {"size": 24, "scale": (0.9, 1.0), "ratio": (9.0, 11.0)},  # the same, cut to the ratio
        {"size": 24, "scale": (0.9, 1.0), "ratio": (0.05, 0.1)},
        *({"size": 24, "interpolation": n} for n in range(6)),
    )

    def __post_init__(self) -> None:
        check_size(self.height, self.width)
        check_filter(self.filter, self.parity)
        check_range("scale", self.scale, lowest=0.0, exclusive=False)
        check_range("ratio", self.ratio, lowest=0.0, exclusive=True)

    def __str__(self) -> str:
        size, filter_ = f"{self.height}×{self.width}", filter_text(self.filter)
        scale, ratio = range_text(self.scale), range_text(self.ratio)
        return f"RandomResizedCrop({size}, scale {scale}, ratio {ratio}, {filter_})"

    @classmethod
    def read(cls, transform: Any) -> RandomResizedCrop:
        """`antialias` says nothing about PIL images: Pillow always does it."""
        return made(RandomResizedCrop, *_arguments(transform), filter_of(transform))

    @classmethod
    def read_on_tensor(cls, transform: Any) -> RandomResizedCrop:
        return made(TensorResizedCrop, *_arguments(transform), tensor_filter_of(transform))

    def params(self) -> tuple[float, ...]:
        # As torchvision computes it: the logarithm in float32.
        log_ratio = torch.log(torch.tensor(self.ratio)).tolist()
        return (self.height, self.width, self.filter, *self.scale, *log_ratio, *self.ratio)

    def extent(self, before: Extent) -> Extent:
        return Extent(self.height, self.width, exact=True)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        top, left, height, width = (int(value) for value in draw)
        size = [self.height, self.width]
        return F.resized_crop(image, top, left, height, width, size, mode_of(self.filter))


@dataclass(frozen=True)
class TensorResizedCrop(RandomResizedCrop):
    """The same of a uint8 tensor, resized by torch, antialiased."""

    parity = "torch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_result(self.height, self.width)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        top, left, height, width = (int(value) for value in draw)
        size, mode = [self.height, self.width], mode_of(self.filter)
        return through_tensor(
            image,
            lambda tensor: v2.functional.resized_crop(
                tensor, top, left, height, width, size, mode, antialias=True
            ),
        )


def _arguments(transform: Any) -> tuple[int, int, tuple[float, float], tuple[float, float]]:
    return (*pair(transform.size), bounds("scale", transform.scale), bounds("ratio", transform.ratio))
