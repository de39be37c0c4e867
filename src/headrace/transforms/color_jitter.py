"""ColorJitter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F  # noqa: N812  (torchvision's own name for it)
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.on_tensors import mean_problem, require_torch, through_tensor
from headrace.transforms.op import Extent, ImageOp, Settled
from headrace.transforms.reading import bounds, check_range, made, range_text

Bounds = tuple[float, float]

# In torchvision's order, and native code's.
FACTORS = ("brightness", "contrast", "saturation", "hue")
ADJUST = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)


@dataclass(frozen=True)
class ColorJitter(ImageOp):
    """Brightness, contrast, saturation and hue changed in a random order, each by a random factor.

    Factors lie between the bounds given; None: that one isn't changed.
    """

    brightness: Bounds | None
    contrast: Bounds | None
    saturation: Bounds | None
    hue: Bounds | None

    native = "color_jitter"
    gray_problem = ""
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

    def __post_init__(self) -> None:
        for name in FACTORS:
            value = getattr(self, name)
            if value is not None:
                check_range(name, value, lowest=-0.5 if name == "hue" else 0.0, exclusive=False)
        if self.hue is not None and self.hue[1] > 0.5:
            raise ValueError(f"hue {self.hue} must be within -0.5 to 0.5")

    def __str__(self) -> str:
        values = [(name, getattr(self, name)) for name in FACTORS]
        shown = [f"{name} {range_text(value)}" for name, value in values if value is not None]
        return f"ColorJitter({', '.join(shown)})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        values = [getattr(transform, name) for name in FACTORS]
        pairs = zip(FACTORS, values, strict=True)
        return made(cls, *(None if value is None else bounds(name, value) for name, value in pairs))

    @classmethod
    def read_on_tensor(cls, transform: Any) -> ColorJitter:
        require_torch(EACH_ADJUSTMENT, transform)
        return TensorColorJitter.read(transform)

    def params(self) -> tuple[float, ...]:
        values = [getattr(self, name) for name in FACTORS]
        return tuple(number for value in values for number in ((0, 0, 0) if value is None else (1, *value)))

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return self._adjusted(image, draw)

    def keeps_info(self, height: int, width: int, draw: Draw) -> bool:
        return self.brightness is None and self.contrast is None and self.hue is None

    def _adjusted(self, image: Any, draw: Draw) -> Any:
        for which in self._order(draw):
            image = ADJUST[which](image, draw[len(FACTORS) + which])
        return image

    def _order(self, draw: Draw) -> Sequence[int]:
        places = (int(which) for which in draw[: len(FACTORS)])
        return [which for which in places if getattr(self, FACTORS[which]) is not None]


@dataclass(frozen=True)
class TensorColorJitter(ColorJitter):
    """`ColorJitter` of a uint8 tensor, in torchvision's own arithmetic."""

    native = "tensor_color_jitter"
    parity = "torch"

    def settle(self, before: Extent, *, on_tensor: bool) -> Settled:
        settled = super().settle(before, on_tensor=on_tensor)
        unsure = "" if self.contrast is None else mean_problem(before)
        return replace(settled, problem=settled.problem or unsure)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return through_tensor(image, lambda tensor: self._adjusted(tensor, draw))


EACH_ADJUSTMENT = TensorColorJitter((0.3, 1.7), (0.3, 1.7), (0.3, 1.7), (-0.5, 0.5))
