"""RandomHorizontalFlip and RandomVerticalFlip."""

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
from headrace.transforms.reading import made


@dataclass(frozen=True)
class _Flip(ChanceOp):
    tensor_problem = ""
    draws = ("1: flipped, 0: not",)
    examples = ({"p": 0.0}, {"p": 0.5}, {"p": 1.0})

    def __str__(self) -> str:
        return f"{type(self).__name__}(p {self.p:g})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        return made(cls, probability(transform, as_tensor=True))

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        return cls.read(transform)


@dataclass(frozen=True)
class HorizontalFlip(_Flip):
    """Mirrored left to right with probability `p`."""

    native = "horizontal_flip"
    gray_problem = ""
    matches = (v1.RandomHorizontalFlip, v2.RandomHorizontalFlip)

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.hflip(image)


@dataclass(frozen=True)
class VerticalFlip(_Flip):
    """Mirrored top to bottom with probability `p`."""

    native = "vertical_flip"
    gray_problem = ""
    matches = (v1.RandomVerticalFlip, v2.RandomVerticalFlip)

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.vflip(image)
