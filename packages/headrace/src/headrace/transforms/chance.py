"""Ops that are applied with a probability, and otherwise change nothing: flips, and functions of levels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F  # noqa: N812  (torchvision's own name for it)
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.on_tensors import in_torch, require_v2
from headrace.transforms.op import ImageOp, NoNativeForm
from headrace.transforms.reading import chance, finite, integer

PROBABILITIES: tuple[dict[str, float], ...] = ({"p": 0.0}, {"p": 0.5}, {"p": 1.0})


@dataclass(frozen=True)
class ChanceOp(ImageOp):
    """Applied with probability `p`: if ``torch.rand(1) < p``."""

    p: float

    draws: ClassVar[tuple[str, ...]] = ("1: applied, 0: not",)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return self.applied(image, draw) if draw[0] else image

    @abstractmethod
    def applied(self, image: Image.Image, draw: Draw) -> Any:
        """Returns torchvision's result for the image if the op is applied."""


@dataclass(frozen=True)
class PlainChanceOp(ChanceOp):
    """One whose only argument is `p`, compared `as_tensor` or not (see `probability`). `function` is
    torchvision's, which is applied."""

    as_tensor: ClassVar[bool] = False
    function: ClassVar[Callable[[Any], Any]]
    examples = PROBABILITIES

    def __str__(self) -> str:
        return f"{type(self).__name__}(p {self.p:g})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        return cls(probability(transform, as_tensor=cls.as_tensor))

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return type(self).function(image)


def probability(transform: Any, *, as_tensor: bool) -> float:
    """The attribute `p`, in the precision of torchvision's comparison: that of a float32 tensor if
    `as_tensor`, and in all classes of v2, else that of a Python float."""
    p = chance("p", transform.p)
    return float(np.float32(p)) if as_tensor or isinstance(transform, v2.Transform) else p


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
    matches = (v1.RandomHorizontalFlip, v2.RandomHorizontalFlip)
    function = staticmethod(F.horizontal_flip)


@dataclass(frozen=True)
class VerticalFlip(_Flip):
    """Mirrored top to bottom with probability `p`."""

    native = "vertical_flip"
    matches = (v1.RandomVerticalFlip, v2.RandomVerticalFlip)
    function = staticmethod(F.vertical_flip)


@dataclass(frozen=True)
class _LookUp(PlainChanceOp):
    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        require_v2(transform)
        return cls.read(transform)  # the same on tensors


@dataclass(frozen=True)
class RandomInvert(_LookUp):
    """255 minus every level, with probability `p`."""

    native = "random_invert"
    matches = (v1.RandomInvert, v2.RandomInvert)
    function = staticmethod(F.invert)


@dataclass(frozen=True)
class RandomEqualize(_LookUp):
    """Each channel's histogram is made even, with probability `p`."""

    native = "random_equalize"
    matches = (v1.RandomEqualize, v2.RandomEqualize)
    function = staticmethod(F.equalize)


@dataclass(frozen=True)
class RandomAutocontrast(PlainChanceOp):
    """Each channel's lowest level becomes 0 and its highest 255, with probability `p`."""

    native = "random_autocontrast"
    torch_native = "random_tensor_autocontrast"
    matches = (v1.RandomAutocontrast, v2.RandomAutocontrast)
    function = staticmethod(F.autocontrast)

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        return in_torch(cls.read(transform), transform, probe=cls(1.0))


@dataclass(frozen=True)
class RandomPosterize(ChanceOp):
    """The highest `bits` bits of every level are kept, with probability `p`."""

    bits: int

    native = "random_posterize"
    matches = (v1.RandomPosterize, v2.RandomPosterize)
    examples = tuple({"bits": bits, **p} for bits in (1, 2, 5, 8) for p in PROBABILITIES)

    def __str__(self) -> str:
        return f"RandomPosterize({self.bits} bits, p {self.p:g})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        bits = integer("bits", transform.bits)
        if not 1 <= bits <= 8:
            raise NoNativeForm(f"bits ({bits}) must be 1 to 8")
        return cls(probability(transform, as_tensor=False), bits)

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        require_v2(transform)
        if type(transform.bits) is not int:
            raise NoNativeForm(f"bits={transform.bits!r} isn't an int")
        return cls.read(transform)

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.posterize(image, self.bits)


@dataclass(frozen=True)
class RandomSolarize(ChanceOp):
    """Levels from `threshold` on are inverted, with probability `p`."""

    threshold: float

    native = "random_solarize"
    matches = (v1.RandomSolarize, v2.RandomSolarize)
    examples = (
        *({"threshold": 128, **p} for p in PROBABILITIES),
        *({"threshold": threshold, "p": 1.0} for threshold in (0, 99.5, 255, 256)),
    )

    def __str__(self) -> str:
        return f"RandomSolarize(from {self.threshold:g}, p {self.p:g})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        return cls(probability(transform, as_tensor=False), finite("threshold", transform.threshold))

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        require_v2(transform)
        op = cls.read(transform)
        if not 0 <= op.threshold <= 255:
            raise NoNativeForm(f"threshold={op.threshold:g} isn't a level")
        return replace(op, threshold=float(np.float32(op.threshold)))  # as torch compares

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.solarize(image, self.threshold)


@dataclass(frozen=True)
class RandomSharpness(ChanceOp):
    """Blended with its smoothed self with probability `p`: factor 0 is smooth, 1 the image, 2 sharper."""

    factor: float

    native = "random_sharpness"
    matches = (v1.RandomAdjustSharpness, v2.RandomAdjustSharpness)
    examples = (
        *({"sharpness_factor": factor, "p": 1.0} for factor in (0, 0.3, 1, 2, 12.5)),
        {"sharpness_factor": 2, "p": 0.5},
    )

    def __str__(self) -> str:
        return f"RandomAdjustSharpness(factor {self.factor:g}, p {self.p:g})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        factor = finite("sharpness_factor", transform.sharpness_factor)
        if factor < 0:
            raise NoNativeForm(f"sharpness_factor ({factor:g}) must be 0 or more")
        return cls(probability(transform, as_tensor=False), factor)

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.adjust_sharpness(image, self.factor)
