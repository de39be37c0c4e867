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
from headrace.transforms.chance import PROBABILITIES, PlainChanceOp
from headrace.transforms.on_tensors import require_torch, through_tensor
from headrace.transforms.op import ImageOp, NoNativeForm


@dataclass(frozen=True)
class Grayscale(ImageOp):
    """The luma of each pixel, in one channel or in three."""

    num_output_channels: int

    native = "grayscale"
    gray_problem = ""
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
    def read_on_tensor(cls, transform: Any) -> Grayscale:
        if cls.read(transform).num_output_channels == 1:
            raise NoNativeForm("num_output_channels=1 has no native form on tensors")
        require_torch(TensorGrayscale(3), transform)
        return TensorGrayscale(3)

    def params(self) -> tuple[float, ...]:
        return ()

    def channels(self, before: int) -> int:
        return self.num_output_channels

    def keeps_info(self, height: int, width: int, draw: Draw) -> bool:
        return self.num_output_channels == 1

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        if self.num_output_channels == 1:  # three equal channels, as long as images are
            return F.rgb_to_grayscale(image, num_output_channels=1).convert("RGB")
        return F.rgb_to_grayscale(image, num_output_channels=3)


@dataclass(frozen=True)
class RandomGrayscale(PlainChanceOp):
    """The same with probability `p`."""

    native = "random_grayscale"
    gray_problem = ""
    as_tensor = True
    matches = (v1.RandomGrayscale, v2.RandomGrayscale)
    examples = ({}, *PROBABILITIES)

    @classmethod
    def read_on_tensor(cls, transform: Any) -> RandomGrayscale:
        require_torch(TensorGrayscale(3), transform)
        return RandomTensorGrayscale(cls.read(transform).p)

    def keeps_info(self, height: int, width: int, draw: Draw) -> bool:
        return not draw[0]

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.rgb_to_grayscale(image, num_output_channels=3)


@dataclass(frozen=True)
class TensorGrayscale(Grayscale):
    """`Grayscale` of a uint8 tensor: torchvision's weights, truncated."""

    native = "tensor_grayscale"
    parity = "torch"

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return _gray_by_torch(image)


@dataclass(frozen=True)
class RandomTensorGrayscale(RandomGrayscale):
    """The same with probability `p`."""

    native = "random_tensor_grayscale"
    parity = "torch"

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return _gray_by_torch(image)


def _gray_by_torch(image: Image.Image) -> Image.Image:
    return through_tensor(image, lambda tensor: v2.functional.rgb_to_grayscale(tensor, 3))
