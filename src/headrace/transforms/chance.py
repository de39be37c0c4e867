"""Ops that are applied with a probability, and otherwise change nothing."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from torchvision.transforms import v2
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.op import ImageOp
from headrace.transforms.reading import check_probability, made, number

PROBABILITIES: tuple[dict[str, float], ...] = ({"p": 0.0}, {"p": 0.5}, {"p": 1.0})


@dataclass(frozen=True)
class ChanceOp(ImageOp):
    """Applied with probability `p`: where ``torch.rand(1) < p``."""

    p: float

    draws: ClassVar[tuple[str, ...]] = ("1: applied, 0: not",)

    def __post_init__(self) -> None:
        check_probability(self.p)

    def params(self) -> tuple[float, ...]:
        return (self.p,)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return self.applied(image, draw) if draw[0] else image

    @abstractmethod
    def applied(self, image: Image.Image, draw: Draw) -> Any:
        """What torchvision makes of the image where the op is applied."""


@dataclass(frozen=True)
class PlainChanceOp(ChanceOp):
    """One whose only argument is `p`.

    Attributes:
        as_tensor: see `probability`.
    """

    as_tensor: ClassVar[bool] = False
    examples = PROBABILITIES

    def __str__(self) -> str:
        return f"{type(self).__name__}(p {self.p:g})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        return made(cls, probability(transform, as_tensor=cls.as_tensor))


def probability(transform: Any, *, as_tensor: bool) -> float:
    """The attribute `p`, in the precision of torchvision's comparison.

    Args:
        as_tensor: the class compares a float32 tensor with it, as all of v2's do, and not a Python float.
    """
    p = number("p", transform.p)
    made(check_probability, p)
    return float(np.float32(p)) if as_tensor or isinstance(transform, v2.Transform) else p
