"""RandomApply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.changed import find_change
from headrace.transforms.op import Extent, ImageOp, NoNativeForm
from headrace.transforms.reading import check_probability, made, number


@dataclass(frozen=True)
class RandomApply(ImageOp):
    """All of `steps`, one after another, with probability `p`, or none of them.

    `inclusive`: a random number that equals `p` counts, as in v1.
    """

    p: float
    steps: tuple[ImageOp, ...]
    inclusive: bool

    native = "random_apply"
    matches = (v1.RandomApply, v2.RandomApply)
    draws = ("1: applied, 0: not",)
    examples = (
        {"transforms": [v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], "p": 0.8},
        {"transforms": [v2.RandomRotation(30), v1.RandomHorizontalFlip()]},
        {"transforms": [v1.CenterCrop(20), v1.RandomApply([v1.Resize((9, 8))], p=0.3), v2.RandomCrop(3)]},
        {"transforms": [v1.RandomVerticalFlip(1.0)], "p": 0.0},
        {"transforms": [v1.RandomVerticalFlip(1.0)], "p": 1.0},
    )

    def __post_init__(self) -> None:
        check_probability(self.p)
        if any(step.parity == "pillow" for step in self.steps):
            object.__setattr__(self, "parity", "pillow")

    def __str__(self) -> str:
        return f"RandomApply(p {self.p:g}, {', '.join(map(str, self.steps))})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        steps = tuple(read_inside(inner) for inner in transform.transforms)
        return made(cls, number("p", transform.p), steps, not isinstance(transform, v2.Transform))

    @property
    def inside(self) -> tuple[ImageOp, ...]:
        return self.steps

    def order(self, draw: Draw) -> Sequence[int]:
        return range(len(self.steps)) if draw[0] else ()

    def params(self) -> tuple[float, ...]:
        return (self.p, self.inclusive)

    def extent(self, before: Extent) -> Extent:
        after = before
        for step in self.steps:
            after = step.extent(after)
        if after == before:
            return before
        height, width = min(before.height, after.height), min(before.width, after.width)
        return Extent(height, width, exact=False)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return image  # there is nothing inside: else those are replayed


def read_inside(transform: Any) -> ImageOp:
    """The op of a transform that another one holds. Raises NoNativeForm."""
    from headrace.transforms import find_op  # it lists this module's ops

    name, cls = type(transform).__name__, find_op(type(transform))
    if cls is None or not issubclass(cls, ImageOp):
        raise NoNativeForm(f"{name} inside of it has no native form")
    change = find_change(transform)
    if change is not None:
        raise NoNativeForm(f"{name} inside of it: {change}")
    op = cls.read(transform)
    assert isinstance(op, ImageOp)
    return op
