"""RandAugment, TrivialAugmentWide and AutoAugment: simple operations of random magnitudes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import AutoAugmentPolicy, InterpolationMode, v2
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms._torchvision_compat import apply_operation, augmentation_space, policies_of
from headrace.transforms.op import ImageOp, NoNativeForm
from headrace.transforms.reading import (
    fill_color,
    filter_text,
    functional_of,
    integer,
    mode_of,
    number,
    warp_filter_of,
)

# As native code numbers them, which is the order in which torchvision chooses from them.
OPERATIONS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color"),
    *("Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert"),
)
CHOICES = OPERATIONS[:-1]
TRANSLATIONS = ("TranslateX", "TranslateY")

# The largest translation of RandAugment and AutoAugment.
FRACTION = 150.0 / 331.0
MOST_BINS = 1024
MOST_STEPS = 10
AUTO_BINS = 10
PIXEL = Image.new("RGB", (1, 1))

_FILTERS = (
    {"interpolation": InterpolationMode.BILINEAR, "fill": (9, 200, 77)},
    {"interpolation": InterpolationMode.BICUBIC, "fill": [128]},
)
_V2_FILL = {"fill": {Image.Image: 7, "others": 0}}


class Operation(NamedTuple):
    """An operation that is applied: its name, the place of its magnitude, and whether that is negative."""

    name: str
    place: int
    negative: bool


class OperationTable(NamedTuple):
    """The operations of a policy.

    Attributes:
        names: names of all operations that native code knows for it.
        bins: number of magnitudes that an operation has.
        magnitudes: magnitudes of each of `names`, if it has any.
        signed: operations whose magnitudes may be negative.
        most: the largest translation for an edge of so many pixels, or None if translations are in pixels.
    """

    names: tuple[str, ...]
    bins: int
    magnitudes: tuple[tuple[float, ...], ...]
    signed: frozenset[str]
    most: Callable[[int], float] | None

    def params(self) -> tuple[float, float]:
        """Parameters of native code: bits of what is signed, and of what has magnitudes."""
        signed = sum(1 << i for i, name in enumerate(self.names) if name in self.signed)
        return signed, sum(1 << i for i, magnitudes in enumerate(self.magnitudes) if magnitudes)

    def data(self) -> npt.NDArray[np.float32]:
        """The magnitudes as native code takes them."""
        return np.array([each or (0.0,) * self.bins for each in self.magnitudes], np.float32)

    def magnitude(self, step: Operation, width: int, height: int) -> float:
        """The magnitude of an operation on an image of `width` × `height` pixels."""
        magnitudes = self.magnitudes[self.names.index(step.name)]
        if step.name in TRANSLATIONS and self.most is not None:
            edge = width if step.name == "TranslateX" else height
            magnitudes = tuple(_translations(self.most(edge), self.bins).tolist())
        magnitude = magnitudes[step.place] if magnitudes else 0.0
        return -magnitude if step.negative else magnitude


def read_table(
    transform: Any, bins: int, names: tuple[str, ...], chosen: tuple[str, ...], most: Callable[[int], float]
) -> OperationTable:
    """torchvision's own magnitudes of the operations of a policy; the arguments are those of the table, and
    what torchvision must have `chosen` for it, in its order. Raises NoNativeForm if they differ."""
    sizes = ((331, 640), (224, 993))
    here, there = (augmentation_space(transform, bins, size) for size in sizes)
    if tuple(here) != chosen:
        raise NoNativeForm(f"this torchvision's operations are {', '.join(here)}")
    edges = zip(TRANSLATIONS, reversed(sizes[1]), strict=True)
    scaled = all(np.array_equal(there[name][0], _translations(most(edge), bins)) for name, edge in edges)
    magnitudes = []
    for name in names:
        values, others = (found[name][0] if name in chosen else np.empty(0) for found in (here, there))
        if scaled and name in TRANSLATIONS:
            values = others = np.linspace(0.0, most(1), bins)
        if not np.array_equal(values, others) or values.size not in (0, bins):
            raise NoNativeForm(f"this torchvision's magnitudes of {name} aren't as expected")
        magnitudes.append(tuple(values.tolist()))
    signed = frozenset(name for name, (_, may_be_negative) in here.items() if may_be_negative)
    return OperationTable(names, bins, tuple(magnitudes), signed, most if scaled else None)


def _translations(most: float, bins: int) -> npt.NDArray[np.float32]:
    """The magnitudes of a translation, in pixels."""
    return torch.linspace(0.0, most, bins).numpy()


def _most_of_policies(edge: int) -> float:
    return FRACTION * edge


@dataclass(frozen=True)
class Policy(ImageOp):
    """Operations of random magnitudes.

    Attributes:
        filter: filter of operations that move pixels, as in `PIL.Image.Resampling`.
        fill: levels of the pixels that they bring in from outside of the image, if any are given.
        is_v2: whether torchvision's v2 is followed, and not v1.
        table: the operations, and their magnitudes.
    """

    filter: int
    fill: tuple[float, float, float] | None
    is_v2: bool
    table: OperationTable

    def __str__(self) -> str:
        text = f"{filter_text(self.filter)}, fill {self.fill}"
        return f"{type(self).__name__}({self._arguments()}, {text})"

    @abstractmethod
    def _arguments(self) -> str: ...

    @abstractmethod
    def steps(self, draw: Draw) -> Iterator[Operation]:
        """Yields the operations that are applied, in order."""

    def params(self) -> tuple[float, ...]:
        fraction = 0 if self.table.most is None else FRACTION
        fill = self.fill or (0.0, 0.0, 0.0)
        return (self.filter, *fill, self.is_v2, self.table.bins, fraction, *self.table.params())

    def data(self) -> npt.NDArray[np.float32]:
        return self.table.data()

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return self.apply(self.steps(draw), image, image.width, image.height)

    def apply(self, steps: Iterable[Operation], changed: Any, width: int, height: int) -> Any:
        """An image, or tensor, of `width` × `height` pixels after `steps`."""
        mode, fill = mode_of(self.filter), None if self.fill is None else list(self.fill)
        for step in steps:
            magnitude = self.table.magnitude(step, width, height)
            changed = apply_operation(changed, step.name, magnitude, mode, fill, is_v2=self.is_v2)
        return changed


@dataclass(frozen=True)
class RandAugment(Policy):
    """`count` operations, one after another, each of the magnitude at `place`, or of any."""

    count: int
    place: int | None

    native = "rand_augment"
    matches = (v1.RandAugment, v2.RandAugment)
    # Of an op: `count` times.
    draws = ("of each step: operation", "place of its magnitude", "1: that is negative")
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"num_ops": 5, "magnitude": 30, **_FILTERS[0]},
        {"num_ops": 3, "magnitude": 4, "num_magnitude_bins": 11, **_FILTERS[1]},
        {"num_ops": 1, "magnitude": 0},
        {"num_ops": 0},
    )
    v2_examples = (_V2_FILL,)

    def __post_init__(self) -> None:
        if not 0 <= self.count <= MOST_STEPS:
            raise NoNativeForm(f"num_ops ({self.count}) must be 0 to {MOST_STEPS}")
        if self.place is not None and not 0 <= self.place < self.table.bins:
            raise NoNativeForm(f"magnitude ({self.place}) must be 0 to {self.table.bins - 1}")
        object.__setattr__(self, "draws", type(self).draws * self.count)

    def _arguments(self) -> str:
        return f"{self.count} operations, magnitude {self.place} of {self.table.bins - 1}"

    @classmethod
    def read(cls, transform: Any) -> Self:
        steps, place = integer("num_ops", transform.num_ops), integer("magnitude", transform.magnitude)
        return cls(*_read(transform, transform.num_magnitude_bins, CHOICES), steps, place)

    def params(self) -> tuple[float, ...]:
        return (*super().params(), len(CHOICES), self.count, -1 if self.place is None else self.place)

    def steps(self, draw: Draw) -> Iterator[Operation]:
        for i in range(self.count):
            operation, place, negative = draw[3 * i : 3 * i + 3]
            yield Operation(OPERATIONS[int(operation)], int(place), bool(negative))


@dataclass(frozen=True)
class TrivialAugmentWide(RandAugment):
    """One operation, of any magnitude."""

    matches = (v1.TrivialAugmentWide, v2.TrivialAugmentWide)
    draws = ("operation", "place of its magnitude", "1: that is negative")
    examples = ({}, *_FILTERS, {"num_magnitude_bins": 7})
    v2_examples = (_V2_FILL,)

    def _arguments(self) -> str:
        return f"{self.table.bins} magnitudes"

    @classmethod
    def read(cls, transform: Any) -> Self:
        return cls(*_read(transform, transform.num_magnitude_bins, CHOICES), 1, None)


class Part(NamedTuple):
    """An operation of a policy of AutoAugment."""

    name: str
    p: float
    place: int


@dataclass(frozen=True)
class AutoAugment(Policy):
    """One of `policies`, which are pairs of operations, each applied with a probability of its own."""

    policies: tuple[tuple[Part, Part], ...]

    native = "auto_augment"
    matches = (v1.AutoAugment, v2.AutoAugment)
    draws = (
        "policy",
        "number that decides on its first operation",
        "a sign, or a number that decides on one or on the second operation",
        *("another", "another"),
    )
    examples = (
        {},
        *({"policy": policy, **how} for policy, how in zip(AutoAugmentPolicy, ({}, *_FILTERS), strict=True)),
    )
    v2_examples = (_V2_FILL,)

    def _arguments(self) -> str:
        return f"{len(self.policies)} policies"

    @classmethod
    def read(cls, transform: Any) -> Self:
        policies = policies_of(transform)
        shared = _read(transform, AUTO_BINS, OPERATIONS[1:])
        if not 1 <= len(policies) <= MOST_BINS or not all(len(policy) == 2 for policy in policies):
            raise NoNativeForm(f"{len(policies)} policies: native code takes 1 to {MOST_BINS} pairs")
        pairs = (
            (_part(*first, table=shared[-1]), _part(*second, table=shared[-1])) for first, second in policies
        )
        return cls(*shared, tuple(pairs))

    def params(self) -> tuple[float, ...]:
        return (*super().params(), len(self.policies))

    def data(self) -> npt.NDArray[np.float32]:
        parts = [(OPERATIONS.index(part.name), part.p, part.place) for pair in self.policies for part in pair]
        return np.concatenate([super().data().ravel(), np.array(parts, np.float32).ravel()])

    def steps(self, draw: Draw) -> Iterator[Operation]:
        policy, *numbers = draw
        signs = iter(numbers[2:])
        decisions = iter(numbers) if self.is_v2 else iter(numbers[:2])
        for part in self.policies[int(policy)]:
            applied, signed = next(decisions) <= part.p, part.name in self.table.signed
            negative = False
            if self.is_v2:
                negative = applied and signed and next(decisions) <= 0.5
            else:
                negative = next(signs) == 0 and signed
            if applied:
                yield Operation(part.name, part.place, negative)


def _part(name: str, p: Any, place: Any, *, table: OperationTable) -> Part:
    magnitudes = table.magnitudes[OPERATIONS.index(name)] if name in OPERATIONS else ()
    known = name in OPERATIONS and (place is None) != bool(magnitudes)
    place = 0 if place is None else integer("magnitude", place)
    if not known or not 0 <= place < AUTO_BINS:
        raise NoNativeForm(f"a policy has ({name!r}, {p!r}, {place!r})")
    return Part(name, float(np.float32(number("p", p))), place)  # torch compares in this precision


def _read(
    transform: Any, num_bins: Any, names: tuple[str, ...]
) -> tuple[int, tuple[int, int, int], bool, OperationTable]:
    """The fields of `Policy`. Raises NoNativeForm."""
    bins = integer("num_magnitude_bins", num_bins)
    if not 1 <= bins <= MOST_BINS:
        raise NoNativeForm(f"num_magnitude_bins={bins}: native code takes 1 to {MOST_BINS}")
    functional = functional_of(transform)
    fill = fill_color(transform, lambda fill: functional.rotate(Image.new("RGB", (9, 9)), 45, fill=fill))
    if fill != fill_color(
        transform, lambda fill: functional.affine(PIXEL, 0.0, [2, 0], 1.0, [0.0, 0.0], fill=fill)
    ):
        raise NoNativeForm(f"fill={transform.fill!r} means different colors to different operations")
    table = read_table(transform, bins, OPERATIONS, names, _most_of_policies)
    bits = table.magnitudes[OPERATIONS.index("Posterize")]
    if not np.array_equal(bits, np.clip(bits, 1, 8)):
        raise NoNativeForm("it posterizes to bits that Pillow doesn't have")
    return warp_filter_of(transform), fill, isinstance(transform, v2.Transform), table
