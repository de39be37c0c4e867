"""v2.RandomChannelPermutation and v2.RandomPhotometricDistort."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F  # noqa: N812  (torchvision's own name for it)
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.color_jitter import EACH_ADJUSTMENT
from headrace.transforms.on_tensors import mean_problem, require_torch, through_tensor
from headrace.transforms.op import Extent, ImageOp, Settled
from headrace.transforms.reading import bounds, check_probability, check_range, made, number, range_text

CHANNELS = ("channel that becomes red", "green", "blue")


@dataclass(frozen=True)
class ChannelPermutation(ImageOp):
    """The channels in a random order."""

    native = "channel_permutation"
    matches = (v2.RandomChannelPermutation,)
    draws = CHANNELS
    examples = ({},)

    def __str__(self) -> str:
        return "RandomChannelPermutation()"

    @classmethod
    def read(cls, transform: Any) -> Self:  # noqa: ARG003  (it has no arguments)
        return cls()

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        return cls.read(transform)

    def params(self) -> tuple[float, ...]:
        return ()

    def keeps_info(self, height: int, width: int, draw: Draw) -> bool:
        return False

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return permuted(image, draw)


@dataclass(frozen=True)
class PhotometricDistort(ImageOp):
    """Brightness, contrast, saturation and hue changed, and channels permuted, each with probability `p`.

    Contrast comes before saturation or after hue, with equal probability. Factors are drawn from the ranges.
    """

    p: float
    brightness: tuple[float, float]
    contrast: tuple[float, float]
    saturation: tuple[float, float]
    hue: tuple[float, float]

    native = "photometric_distort"
    matches = (v2.RandomPhotometricDistort,)
    draws = (
        *(f"1: {name} changes, 0: not" for name in ("brightness", "contrast", "saturation", "hue")),
        *(f"factor of {name}" for name in ("brightness", "contrast", "saturation", "hue")),
        "1: contrast comes before saturation, 0: after hue",
        "1: channels are permuted, 0: not",
        *CHANNELS,
    )
    examples = ({}, {"p": 0.0}, {"p": 1.0, "brightness": (0, 3), "contrast": (0.5, 2), "hue": (-0.5, 0.5)})

    def __post_init__(self) -> None:
        check_probability(self.p)
        for name in ("brightness", "contrast", "saturation"):
            check_range(name, getattr(self, name), lowest=0, exclusive=False)
        check_range("hue", self.hue, lowest=-0.5, exclusive=False)
        if self.hue[1] > 0.5:
            raise ValueError(f"hue {self.hue} must be at most 0.5")

    def __str__(self) -> str:
        names = ("brightness", "contrast", "saturation", "hue")
        ranges = [f"{name} {range_text(getattr(self, name))}" for name in names]
        return f"RandomPhotometricDistort({', '.join(ranges)}, p {self.p:g})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        names = ("brightness", "contrast", "saturation", "hue")
        ranges = (bounds(name, getattr(transform, name)) for name in names)
        return made(cls, number("p", transform.p), *ranges)

    @classmethod
    def read_on_tensor(cls, transform: Any) -> PhotometricDistort:
        require_torch(EACH_ADJUSTMENT, transform)
        return TensorPhotometricDistort.read(transform)

    def params(self) -> tuple[float, ...]:
        return (self.p, *self.brightness, *self.contrast, *self.saturation, *self.hue)

    def keeps_info(self, height: int, width: int, draw: Draw) -> bool:
        brightness, contrast, _, hue = draw[:4]
        return not (brightness or contrast or hue or draw[9])

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return self._distorted(image, draw)

    def _distorted(self, image: Any, draw: Draw) -> Any:
        brightness, contrast, saturation, hue = draw[:4]
        if brightness:
            image = F.adjust_brightness(image, draw[4])
        if contrast and draw[8]:
            image = F.adjust_contrast(image, draw[5])
        if saturation:
            image = F.adjust_saturation(image, draw[6])
        if hue:
            image = F.adjust_hue(image, draw[7])
        if contrast and not draw[8]:
            image = F.adjust_contrast(image, draw[5])
        return permuted(image, draw[10:]) if draw[9] else image


@dataclass(frozen=True)
class TensorPhotometricDistort(PhotometricDistort):
    """The same of a uint8 tensor, in torchvision's own arithmetic."""

    native = "tensor_photometric_distort"
    parity = "torch"

    def settle(self, before: Extent, *, on_tensor: bool) -> Settled:
        settled = super().settle(before, on_tensor=on_tensor)
        return replace(settled, problem=settled.problem or mean_problem(before))

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return through_tensor(image, lambda tensor: self._distorted(tensor, draw))


def permuted(image: Any, channels: Draw) -> Any:
    """`image`, whose red, green and blue become those channels of it."""
    return v2.functional.permute_channels(image, torch.tensor([int(c) for c in channels]).tolist())
