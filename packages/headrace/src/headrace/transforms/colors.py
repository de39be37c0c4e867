"""Grayscale, ColorJitter, and what changes colors or channels by chance."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F  # noqa: N812  (torchvision's own name for it)
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.chance import PROBABILITIES, PlainChanceOp
from headrace.transforms.on_tensors import in_torch, mean_problem
from headrace.transforms.op import NO_GRAY, Extent, ImageOp, NoNativeForm, Settled
from headrace.transforms.reading import bounds, chance, range_text

Bounds = tuple[float, float]

# In torchvision's order, and native code's.
FACTORS = ("brightness", "contrast", "saturation", "hue")
ADJUST = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
CHANNELS = ("channel that becomes red", "green", "blue")


@dataclass(frozen=True)
class Grayscale(ImageOp):
    """The luma of each pixel, in one channel or in three."""

    num_output_channels: int

    native = "grayscale"
    torch_native = "tensor_grayscale"  # with torchvision's weights, truncated
    opencv_native = "opencv_grayscale"  # with weights of 15 bits
    matches = (v1.Grayscale, v2.Grayscale)
    examples = ({"num_output_channels": 3}, {})

    def __str__(self) -> str:
        plural = "" if self.num_output_channels == 1 else "s"
        return f"Grayscale({self.num_output_channels} channel{plural})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        channels = transform.num_output_channels
        if type(channels) is not int or channels not in (1, 3):
            raise NoNativeForm(f"num_output_channels={channels!r} must be 1 or 3")
        return cls(channels)

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        op = cls.read(transform)
        if op.num_output_channels == 1:
            raise NoNativeForm("num_output_channels=1 has no native form on tensors")
        return in_torch(op, transform, probe=op)

    def params(self) -> tuple[float, ...]:
        return ()

    def channels(self, before: int) -> int:
        return self.num_output_channels

    @property
    def keeps_info(self) -> bool:  # type: ignore[override]
        return self.num_output_channels == 1

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        gray = F.rgb_to_grayscale(image, num_output_channels=self.num_output_channels)
        # Three equal channels, as long as images are.
        return gray.convert("RGB") if self.num_output_channels == 1 else gray


@dataclass(frozen=True)
class RandomGrayscale(PlainChanceOp):
    """Three channels of luma with probability `p`."""

    native = "random_grayscale"
    torch_native = "random_tensor_grayscale"
    as_tensor = True
    matches = (v1.RandomGrayscale, v2.RandomGrayscale)
    examples = ({}, *PROBABILITIES)

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        return in_torch(cls.read(transform), transform, probe=Grayscale(3))

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.rgb_to_grayscale(image, num_output_channels=3)


def _factors_of(transform: Any, name: str) -> Bounds:
    """(low, high) of the attribute `name`, one of `FACTORS`."""
    lowest, highest = (-0.5, 0.5) if name == "hue" else (0.0, math.inf)
    return bounds(name, getattr(transform, name), lowest, highest)


@dataclass(frozen=True)
class _ColorsOp(ImageOp):
    """An op that may change the contrast, for which torch takes a mean of all pixels."""

    @classmethod
    @abstractmethod
    def read(cls, transform: Any) -> Self: ...

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        return in_torch(cls.read(transform), transform, probe=EACH_ADJUSTMENT)

    def settle(self, before: Extent, *, on_tensor: bool) -> Settled:
        settled = super().settle(before, on_tensor=on_tensor)
        averages = self.arithmetic == "torch" and getattr(self, "contrast", None) is not None
        return replace(settled, problem=settled.problem or mean_problem(before)) if averages else settled


@dataclass(frozen=True)
class ColorJitter(_ColorsOp):
    """Brightness, contrast, saturation and hue changed in a random order, each by a random factor between its
    bounds, if it has any."""

    brightness: Bounds | None
    contrast: Bounds | None
    saturation: Bounds | None
    hue: Bounds | None

    native = "color_jitter"
    torch_native = "tensor_color_jitter"
    matches = (v1.ColorJitter, v2.ColorJitter)
    draws = ("what is changed first", "second", "third", "fourth", *(f"factor of {name}" for name in FACTORS))
    examples = (
        {},
        {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
        {"brightness": 0.8, "contrast": (0.2, 3.0)},
        {"saturation": 2.0},
        {"saturation": [0.0, 0.5], "hue": (-0.5, 0.5)},
        {"hue": 0.5},
        {"brightness": 5, "contrast": 0, "saturation": (1.0, 1.0), "hue": 0},
    )

    def __str__(self) -> str:
        bounds_of = {name: getattr(self, name) for name in FACTORS}
        changed = (f"{name} {range_text(value)}" for name, value in bounds_of.items() if value is not None)
        return f"ColorJitter({', '.join(changed)})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        changed = (getattr(transform, name) is not None for name in FACTORS)
        factors = zip(FACTORS, changed, strict=True)
        return cls(*(_factors_of(transform, name) if changes else None for name, changes in factors))

    def params(self) -> tuple[float, ...]:
        values = [getattr(self, name) for name in FACTORS]
        return tuple(number for value in values for number in ((0, 0, 0) if value is None else (1, *value)))

    @property
    def keeps_info(self) -> bool:  # type: ignore[override]
        return self.brightness is None and self.contrast is None and self.hue is None

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        for which in map(int, draw[: len(FACTORS)]):
            if getattr(self, FACTORS[which]) is not None:
                image = ADJUST[which](image, draw[len(FACTORS) + which])
        return image


EACH_ADJUSTMENT = ColorJitter((0.3, 1.7), (0.3, 1.7), (0.3, 1.7), (-0.5, 0.5))


@dataclass(frozen=True)
class ChannelPermutation(ImageOp):
    """The channels in a random order."""

    native = "channel_permutation"
    keeps_info = False
    gray_problem = NO_GRAY
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

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return F.permute_channels(image, list(map(int, draw)))


@dataclass(frozen=True)
class PhotometricDistort(_ColorsOp):
    """Brightness, contrast, saturation and hue changed, and channels permuted, each with probability `p`;
    contrast comes before saturation or after hue. Factors are drawn from the ranges."""

    p: float
    brightness: Bounds
    contrast: Bounds
    saturation: Bounds
    hue: Bounds

    native = "photometric_distort"
    torch_native = "tensor_photometric_distort"
    gray_problem = NO_GRAY
    matches = (v2.RandomPhotometricDistort,)
    draws = (
        *(f"1: {name} changes, 0: not" for name in FACTORS),
        *(f"factor of {name}" for name in FACTORS),
        "1: contrast comes before saturation, 0: after hue",
        "1: channels are permuted, 0: not",
        *CHANNELS,
    )
    examples = ({}, {"p": 0.0}, {"p": 1.0, "brightness": (0, 3), "contrast": (0.5, 2), "hue": (-0.5, 0.5)})

    def __str__(self) -> str:
        ranges = [f"{name} {range_text(getattr(self, name))}" for name in FACTORS]
        return f"RandomPhotometricDistort({', '.join(ranges)}, p {self.p:g})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        return cls(chance("p", transform.p), *(_factors_of(transform, name) for name in FACTORS))

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        for which in (0, 1, 2, 3) if draw[8] else (0, 2, 3, 1):
            if draw[which]:
                image = ADJUST[which](image, draw[4 + which])
        return F.permute_channels(image, list(map(int, draw[10:]))) if draw[9] else image
