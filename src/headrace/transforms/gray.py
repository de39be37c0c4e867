"""Grayscale and RandomGrayscale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms import v2
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.chance import ChanceOp, probability
from headrace.transforms.op import ImageOp, NoNativeForm
from headrace.transforms.reading import made


@dataclass(frozen=True)
class Grayscale(ImageOp):
    """The luma of each pixel, in all three channels."""

    native = "grayscale"
    matches = (v1.Grayscale, v2.Grayscale)
    examples = ({"num_output_channels": 3},)

    def __str__(self) -> str:
        return "Grayscale(3 channels)"

    @classmethod
    def read(cls, transform: Any) -> Self:
        channels = transform.num_output_channels
        if channels != 3:
            raise NoNativeForm(f"num_output_channels={channels!r}: native images have three channels")
        return cls()

    def params(self) -> tuple[float, ...]:
        return ()

    def keeps_info(self, height: int, width: int, draw: Draw) -> bool:
        return False

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return F.rgb_to_grayscale(image, num_output_channels=3)


@dataclass(frozen=True)
class RandomGrayscale(ChanceOp):
    """The same with probability `p`."""

    native = "random_grayscale"
    matches = (v1.RandomGrayscale, v2.RandomGrayscale)
    examples = ({}, {"p": 0.0}, {"p": 0.5}, {"p": 1.0})

    def __str__(self) -> str:
        return f"RandomGrayscale(p {self.p:g})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        return made(cls, probability(transform, as_tensor=True))

    def keeps_info(self, height: int, width: int, draw: Draw) -> bool:
        return not draw[0]

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.rgb_to_grayscale(image, num_output_channels=3)
