"""RandomApply, RandomChoice and RandomOrder, and a Compose inside of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.chance import probability
from headrace.transforms.levels import Identity
from headrace.transforms.lookup import COMPOSE, find_op, read_op
from headrace.transforms.op import UNKNOWN, Extent, ImageOp, NoNativeForm, Settled, flat, parity_of
from headrace.transforms.reading import number

MAX_DEPTH = 6
MAX_INSIDE = 32
MAX_WEIGHTS = 22

_JITTER = v1.ColorJitter(0.4, 0.4, 0.2, 0.1)
_FLIPS = (v1.RandomHorizontalFlip(), v2.RandomVerticalFlip())


@dataclass(frozen=True)
class Holder(ImageOp):
    """`ops`, of which some are applied, in some order."""

    ops: tuple[ImageOp, ...]

    def __post_init__(self) -> None:
        if len(list(flat(self.ops))) > MAX_INSIDE:
            raise NoNativeForm(f"holds more than {MAX_INSIDE} transforms")
        # On images some follow Pillow, on tensors some follow torch.
        versions = {*map(parity_of, self.ops)} - {"exact"}
        if versions:
            object.__setattr__(self, "parity", versions.pop())
        problems = (f"{op} {op.gray_problem}" for op in self.ops if op.gray_problem)
        object.__setattr__(self, "gray_problem", next(problems, ""))

    @classmethod
    def read(cls, transform: Any) -> Self:
        return cls(read_inside(transform))

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        op = cls.read(transform)
        return replace(op, ops=read_inside(transform, on_tensor=True))

    def __str__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self.ops))})"

    @property
    def inside(self) -> tuple[ImageOp, ...]:
        return self.ops

    def params(self) -> tuple[float, ...]:
        return ()

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        """Runs only if nothing is inside: `op.replay` runs the ops themselves."""
        return image

    def channels(self, before: int) -> int:
        return before if all(op.channels(before) == before for op in self.ops) else 0

    def order(self, draw: Draw) -> Sequence[int]:
        return range(len(self.ops))

    def extents_inside(self, before: Extent) -> list[Extent]:
        """Sizes of the image before each of `ops`, if it is applied."""
        return _one_after_another(self.ops, before)[:-1]

    def settle(self, before: Extent, *, on_tensor: bool) -> Settled:
        places = zip(self.ops, self.extents_inside(before), strict=True)
        settled = [(op, op.settle(extent, on_tensor=on_tensor)) for op, extent in places]
        problems = [f"{op} {each.problem}" for op, each in settled if each.problem]
        return Settled(self, self.extent(before), problem=problems[0] if problems else "")


@dataclass(frozen=True)
class Group(Holder):
    """All of `ops`, one after another: a Compose that another container holds."""

    native = "group"

    def extent(self, before: Extent) -> Extent:
        return _one_after_another(self.ops, before)[-1]


@dataclass(frozen=True)
class RandomApply(Holder):
    """All of `ops`, one after another, with probability `p`; if `inclusive`, as in v1, for a random number of
    just `p`, too."""

    p: float
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
        {"transforms": [v1.RandomCrop(20, padding=4, pad_if_needed=True), v2.RandomInvert()]},
        {"transforms": [v1.Compose([*_FLIPS, nn.Identity()]), v1.RandomApply([_JITTER], p=0.3)], "p": 1.0},
        {"transforms": [v1.GaussianBlur(3, (0.1, 2.0))], "p": 0.5},
    )

    def __str__(self) -> str:
        return f"RandomApply(p {self.p:g}, {', '.join(map(str, self.ops))})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        p = probability(transform, as_tensor=True)
        return cls(read_inside(transform), p, not isinstance(transform, v2.Transform))

    def params(self) -> tuple[float, ...]:
        return (self.p, self.inclusive)

    def order(self, draw: Draw) -> Sequence[int]:
        return super().order(draw) if draw[0] else ()

    def extent(self, before: Extent) -> Extent:
        return _any_of([before, _one_after_another(self.ops, before)[-1]])


@dataclass(frozen=True)
class RandomChoice(Holder):
    """One of `ops`, chosen by `weights`, or each as often as any other if these are None."""

    weights: tuple[float, ...] | None

    native = "random_choice"
    matches = (v1.RandomChoice, v2.RandomChoice)
    draws = ("the place of what is applied",)
    examples = (
        {"transforms": [*_FLIPS, _JITTER]},
        {
            "transforms": [v1.Compose([_JITTER, *_FLIPS]), nn.Identity(), v2.RandomInvert(1.0)],
            "p": [3, 0, 0.5],
        },
        {"transforms": [v1.Resize((24, 30)), v2.CenterCrop((24, 30)), v1.RandomCrop(24, pad_if_needed=True)]},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ops:
            raise NoNativeForm("holds no transforms")
        if self.weights is None:
            return
        if len(self.weights) != len(self.ops) or len(self.ops) > MAX_WEIGHTS:
            raise NoNativeForm(f"p must have a weight for each transform, at most {MAX_WEIGHTS}")
        if not all(0 <= weight < math.inf for weight in self.weights) or not 0 < sum(self.weights) < math.inf:
            raise NoNativeForm(f"p={list(self.weights)} must be finite, 0 or more, and not all 0")

    def __str__(self) -> str:
        weights = "" if self.weights is None else f", p {', '.join(f'{p:.4g}' for p in self.weights)}"
        return f"RandomChoice({', '.join(map(str, self.ops))}{weights})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        weights = None if transform.p is None else tuple(number("p", p) for p in transform.p)
        if weights is not None and isinstance(transform, v2.Transform):
            weights = tuple(float(np.float32(weight)) for weight in weights)  # it makes a tensor of them
        return cls(read_inside(transform), weights)

    def params(self) -> tuple[float, ...]:
        return (len(self.ops), self.weights is not None, *accumulate(self.weights or ()))

    def order(self, draw: Draw) -> Sequence[int]:
        return (int(draw[0]),)

    def extents_inside(self, before: Extent) -> list[Extent]:
        return [before] * len(self.ops)

    def extent(self, before: Extent) -> Extent:
        return _any_of([op.extent(before) for op in self.ops])


@dataclass(frozen=True)
class RandomOrder(Holder):
    """All of `ops` in a random order."""

    native = "random_order"
    matches = (v1.RandomOrder, v2.RandomOrder)
    draws = ("what comes first, second, …",)  # of the class; those of an op are as many as `ops`
    examples = (
        {"transforms": [*_FLIPS, v1.RandomAffine(20, (0.1, 0.2)), _JITTER]},
        {"transforms": [v1.CenterCrop((19, 23)), v1.Pad((1, 2)), v1.Compose([v2.Resize((19, 23)), _JITTER])]},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "draws", ("place",) * len(self.ops))

    def params(self) -> tuple[float, ...]:
        return (len(self.ops),)

    def order(self, draw: Draw) -> Sequence[int]:
        return [int(place) for place in draw]

    def extents_inside(self, before: Extent) -> list[Extent]:
        return [self.extent(before)] * len(self.ops)

    def extent(self, before: Extent) -> Extent:
        return before if all(op.extent(before) == before for op in self.ops) else UNKNOWN


def read_inside(holder: Any, *, on_tensor: bool = False) -> tuple[ImageOp, ...]:
    """The ops of the transforms that `holder` holds, which are called with uint8 tensors if `on_tensor`.
    Raises NoNativeForm if one of them has none."""
    _check_depth(holder, MAX_DEPTH)
    return tuple(_read_inner(inner, on_tensor=on_tensor) for inner in holder.transforms)


def _read_inner(transform: Any, *, on_tensor: bool) -> ImageOp:
    name, cls = type(transform).__name__, type(transform)
    kind: Any = Group if cls in COMPOSE else find_op(cls)
    if kind is None:
        raise NoNativeForm(f"holds {name}, which has no native form")
    try:
        op = read_op(kind, transform, on_tensor=on_tensor)
    except NoNativeForm as verdict:
        raise NoNativeForm(f"holds {name}: {verdict}") from None
    if type(op) is Identity:
        return Group(())
    if not isinstance(op, ImageOp) or op.views > 1:
        raise NoNativeForm(f"holds {name}, which native code runs at the end only")
    return op


def _check_depth(holder: Any, left: int) -> None:
    if not left:
        raise NoNativeForm(f"is nested more than {MAX_DEPTH} deep")
    known = (*COMPOSE, *RandomApply.matches, *RandomChoice.matches, *RandomOrder.matches)
    for inner in holder.transforms:
        if type(inner) in known:
            _check_depth(inner, left - 1)


def _one_after_another(ops: Sequence[ImageOp], before: Extent) -> list[Extent]:
    """Sizes of the image before each op, and after the last."""
    return list(accumulate(ops, lambda extent, op: op.extent(extent), initial=before))


def _any_of(extents: Sequence[Extent]) -> Extent:
    """Returns what is certain of an image that has any of `extents`."""
    if len(set(extents)) == 1:
        return extents[0]
    return Extent(min(each.height for each in extents), min(each.width for each in extents), exact=False)
