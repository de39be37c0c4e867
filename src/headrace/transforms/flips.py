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
from headrace.transforms.chance import PlainChanceOp


@dataclass(frozen=True)
class _Flip(PlainChanceOp):
    as_tensor = True
    tensor_problem = ""
    draws = ("1: flipped, 0: not",)

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
