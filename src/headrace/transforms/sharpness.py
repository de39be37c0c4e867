"""RandomAdjustSharpness."""

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
from headrace.transforms.reading import check_range, made, number


@dataclass(frozen=True)
class RandomSharpness(ChanceOp):
    """Blended with its smoothed self with probability `p`: factor 0 is smooth, 1 the image, 2 sharper."""

    factor: float

    native = "random_sharpness"
    gray_problem = ""
    matches = (v1.RandomAdjustSharpness, v2.RandomAdjustSharpness)
    examples = (
        *({"sharpness_factor": factor, "p": 1.0} for factor in (0, 0.3, 1, 2, 12.5)),
        {"sharpness_factor": 2, "p": 0.5},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("sharpness_factor", (self.factor, self.factor), lowest=0, exclusive=False)

    def __str__(self) -> str:
        return f"RandomAdjustSharpness(factor {self.factor:g}, p {self.p:g})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        factor = number("sharpness_factor", transform.sharpness_factor)
        return made(cls, probability(transform, as_tensor=False), factor)

    def params(self) -> tuple[float, ...]:
        return (self.p, self.factor)

    def applied(self, image: Image.Image, draw: Draw) -> Any:
        return F.adjust_sharpness(image, self.factor)
