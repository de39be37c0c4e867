"""Functions of a level: RandomInvert, -Posterize, -Solarize, -Autocontrast and -Equalize."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms import v2
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.chance import PROBABILITIES, ChanceOp, PlainChanceOp, probability
from headrace.transforms.on_tensors import require_torch, require_v2, through_tensor
from headrace.transforms.op import NoNativeForm
from headrace.transforms.reading import integer, made, number


@dataclass(frozen=True)
class _PlainLookUp(PlainChanceOp):
    @classmethod
    def read_on_tensor(cls, transform: Any) -> ChanceOp:
        require_v2(transform)
        return cls.read(transform)  # the same on tensors


@dataclass(frozen=True)
class RandomInvert(_PlainLookUp):
    """255 minus every level, with probability `p`."""

    native = "random_invert"
    gray_problem = ""
    matches = (v1.RandomInvert, v2.RandomInvert)

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.invert(image)


@dataclass(frozen=True)
class RandomAutocontrast(_PlainLookUp):
    """Each channel's lowest level becomes 0 and its highest 255, with probability `p`."""

    native = "random_autocontrast"
    gray_problem = ""
    matches = (v1.RandomAutocontrast, v2.RandomAutocontrast)

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.autocontrast(image)

    @classmethod
    def read_on_tensor(cls, transform: Any) -> ChanceOp:
        require_torch(RandomTensorAutocontrast(1.0), transform)
        return RandomTensorAutocontrast(cls.read(transform).p)


@dataclass(frozen=True)
class RandomTensorAutocontrast(RandomAutocontrast):
    """The same of a uint8 tensor, in torchvision's own arithmetic."""

    native = "random_tensor_autocontrast"
    parity = "torch"

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return through_tensor(image, v2.functional.autocontrast)


@dataclass(frozen=True)
class RandomEqualize(_PlainLookUp):
    """Each channel's histogram is made even, with probability `p`."""

    native = "random_equalize"
    gray_problem = ""
    matches = (v1.RandomEqualize, v2.RandomEqualize)

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.equalize(image)


@dataclass(frozen=True)
class RandomPosterize(ChanceOp):
    """The highest `bits` bits of every level are kept, with probability `p`."""

    bits: int

    native = "random_posterize"
    gray_problem = ""
    matches = (v1.RandomPosterize, v2.RandomPosterize)
    examples = tuple({"bits": bits, **p} for bits in (1, 2, 5, 8) for p in PROBABILITIES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.bits <= 8:
            raise ValueError(f"bits ({self.bits}) must be 1 to 8")

    def __str__(self) -> str:
        return f"RandomPosterize({self.bits} bits, p {self.p:g})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        return made(cls, probability(transform, as_tensor=False), integer("bits", transform.bits))

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        require_v2(transform)
        if type(transform.bits) is not int:
            raise NoNativeForm(f"bits={transform.bits!r} isn't an int")
        return cls.read(transform)

    def params(self) -> tuple[float, ...]:
        return (self.p, self.bits)

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.posterize(image, self.bits)


@dataclass(frozen=True)
class RandomSolarize(ChanceOp):
    """Levels from `threshold` on are inverted, with probability `p`."""

    threshold: float

    native = "random_solarize"
    gray_problem = ""
    matches = (v1.RandomSolarize, v2.RandomSolarize)
    examples = (
        *({"threshold": 128, **p} for p in PROBABILITIES),
        *({"threshold": threshold, "p": 1.0} for threshold in (0, 99.5, 255, 256)),
    )

    def __str__(self) -> str:
        return f"RandomSolarize(from {self.threshold:g}, p {self.p:g})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        threshold = number("threshold", transform.threshold)
        return made(cls, probability(transform, as_tensor=False), threshold)

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        require_v2(transform)
        op = cls.read(transform)
        if not 0 <= op.threshold <= 255:
            raise NoNativeForm(f"threshold={op.threshold:g} isn't a level")
        return replace(op, threshold=float(np.float32(op.threshold)))  # as torch compares

    def params(self) -> tuple[float, ...]:
        return (self.p, self.threshold)

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.solarize(image, self.threshold)
