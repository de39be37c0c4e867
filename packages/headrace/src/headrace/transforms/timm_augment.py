"""timm's RandAugment, AutoAugment, 3-Augment and AugMix: Pillow operations of random magnitudes.

What timm does with a magnitude differs between its versions: each operation of the user's object is asked for
its argument, run on a small image, and must agree with native code.
"""

from __future__ import annotations

import copy
import importlib
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.changed import find_change
from headrace.transforms.on_tensors import native_draw, native_pixels
from headrace.transforms.op import NO_GRAY, ImageOp, NoNativeForm
from headrace.transforms.reading import WARP_FILTERS, filter_text, integer, number

# As native code numbers them.
OPERATIONS = (
    *("Nothing", "ShearX", "ShearY", "TranslateX", "TranslateY", "TranslateXRel", "TranslateYRel", "Rotate"),
    *("AutoContrast", "Equalize", "Invert", "Posterize", "PosterizeIncreasing", "PosterizeOriginal"),
    *("Solarize", "SolarizeIncreasing", "SolarizeAdd", "Color", "Contrast", "Brightness", "Sharpness"),
    *("ColorIncreasing", "ContrastIncreasing", "BrightnessIncreasing", "SharpnessIncreasing"),
    *("Desaturate", "GaussianBlur", "GaussianBlurRand"),
)
# What timm calls with the argument that it has computed, or drawn.
COMPUTED = {"Desaturate": "Color", "GaussianBlurRand": "GaussianBlur"}
WITHOUT_ARGUMENT = ("AutoContrast", "Equalize", "Invert")
NO_FILTER = -1.0
UNIFORM = -1.0
MOST_ROWS, MOST_STEPS, MOST_DRAWS = 256, 10, 32
DRAWN_DEPTH = 3
PROBES = (0.0, 2.5, 7.0, 10.0)
DRAWS_OF_BOTH_SIGNS = 16


class Shared(NamedTuple):
    """The parameters that all operations of a policy share.

    Attributes:
        filters: filters that are chosen from.
        fill: color outside of the image.
        deviation: standard deviation of magnitudes, or -1 if they are uniform.
        most: upper bound of magnitudes.
        translation, fraction: the largest translation in pixels, and as a fraction of the edge.
    """

    filters: tuple[int, ...]
    fill: tuple[int, int, int]
    deviation: float
    most: float
    translation: float
    fraction: float

    def __str__(self) -> str:
        return f"{' or '.join(map(filter_text, self.filters))}, fill {self.fill}"

    def params(self) -> tuple[float, ...]:
        """Numbers for native code."""
        filters = (*self.filters, NO_FILTER)
        return (*filters[:2], *self.fill, *self[2:])


class Operation(NamedTuple):
    """Applied if a random number is at most `p`."""

    name: str
    p: float
    magnitude: float


@dataclass(frozen=True)
class TimmAugment(ImageOp):
    """`steps` of `rows`, one after another; or, if rows are policies of several operations, one of these.
    With `weights` none is chosen twice; without, all are equally likely."""

    shared: Shared
    rows: tuple[tuple[Operation, ...], ...]
    steps: int
    policies: bool
    weights: tuple[float, ...] | None

    native = "timm_augment"
    gray_problem = NO_GRAY
    matches_imported = ("timm.data.auto_augment.RandAugment", "timm.data.auto_augment.AutoAugment")
    draws = ("of each step: operation", "its argument", "filter")  # an op: `steps` times

    def __post_init__(self) -> None:
        if not 1 <= len(self.rows) <= MOST_ROWS or not 0 <= self.steps <= MOST_STEPS:
            raise NoNativeForm(f"{len(self.rows)} choices, {self.steps} steps: too few or too many")
        if self.weights is not None and (min(self.weights) <= 0 or self.steps > len(self.rows)):
            raise NoNativeForm("weights must be positive, and no fewer than steps")
        object.__setattr__(self, "draws", type(self).draws * self.steps)

    def __str__(self) -> str:
        if self.policies:
            return f"timm's AutoAugment({len(self.rows)} policies, {self.shared})"
        return f"timm's RandAugment({self.steps} of {len(self.rows)} operations, {self.shared})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        policies = isinstance(transform, sys.modules["timm.data.auto_augment"].AutoAugment)
        rows = transform.policy if policies else [[op] for op in transform.ops]
        operations = [op for row in rows for op in row]
        if not operations:
            raise NoNativeForm("there are no operations")
        shared = _shared(operations[0])
        read = tuple(tuple(_operation(op, shared) for op in row) for row in rows)
        steps, weights = (max(map(len, rows)), None) if policies else _choice(transform)
        return cls(shared, read, steps, policies, weights)

    def params(self) -> tuple[float, ...]:
        how = (self.steps, self.policies, self.weights is not None, _posterizes_to_nothing())
        return (*self.shared.params(), len(self.rows), *how)

    def data(self) -> npt.NDArray[np.float32]:
        nothing = Operation("Nothing", 1.0, 0.0)
        per_row = self.steps if self.policies else 1
        padded = [op for row in self.rows for op in (*row, *[nothing] * (per_row - len(row)))]
        return np.concatenate([_rows(padded), np.array(self.weights or (), np.float32)])

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return _apply_drawn(image, draw, self.shared)


@dataclass(frozen=True)
class TimmAugMix(ImageOp):
    """The image blended towards a mixture of `width` copies of it, each changed by `depth` of
    `operations`, or by 1 to 3 if that is 0.

    Attributes:
        alpha: parameter of the Dirichlet and beta distributions that the weights are drawn from.
        blended: whether the copies are blended into the image one after another instead.
    """

    shared: Shared
    operations: tuple[Operation, ...]
    width: int
    depth: int
    alpha: float
    blended: bool

    native = "timm_aug_mix"
    gray_problem = NO_GRAY
    matches_imported = ("timm.data.auto_augment.AugMixAugment",)
    draws = ("weight of the mixture", "weights of its parts", "of each step: operation, argument, filter")

    def __post_init__(self) -> None:
        if not 1 <= len(self.operations) <= MOST_ROWS:
            raise NoNativeForm(f"{len(self.operations)} operations: too few or too many")
        if not 1e-3 <= self.alpha <= 1e3:
            raise NoNativeForm(f"alpha ({self.alpha}) must be 0.001 to 1000")
        if self.width < 1 or 1 + self.width * (1 + 3 * self.most_depth) > MOST_DRAWS:
            raise NoNativeForm(f"{self.width} chains of {self.most_depth} operations are too few or too many")
        steps = ("operation", "its argument", "filter") * (self.width * self.most_depth)
        object.__setattr__(self, "draws", ("weight",) * (1 + self.width) + steps)

    def __str__(self) -> str:
        depth = f"{self.depth}" if self.depth else f"1–{DRAWN_DEPTH}"
        return f"timm's AugMix({self.width} chains of {depth} operations, {self.shared})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        if not transform.ops:
            raise NoNativeForm("there are no operations")
        shared = _shared(transform.ops[0])
        operations = tuple(_operation(op, shared) for op in transform.ops)
        width, depth = integer("width", transform.width), max(0, integer("depth", transform.depth))
        alpha = number("alpha", transform.alpha)
        op = cls(shared, operations, width, depth, alpha, bool(transform.blended))
        if not _mixes(transform, op):
            raise NoNativeForm("this timm mixes otherwise than expected")
        return op

    @property
    def most_depth(self) -> int:
        """The most operations that a chain can have."""
        return self.depth or DRAWN_DEPTH

    def params(self) -> tuple[float, ...]:
        how = (0, False, False, _posterizes_to_nothing())
        mixture = (self.width, self.depth, self.alpha, self.blended)
        return (*self.shared.params(), len(self.operations), *how, *mixture)

    def data(self) -> npt.NDArray[np.float32]:
        return _rows(self.operations)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        chains = np.reshape(draw[1 + self.width :], (self.width, -1))
        changed = [_apply_drawn(image, tuple(chain), self.shared) for chain in chains.tolist()]
        return self.mixed(image, changed, draw[1 : 1 + self.width], draw[0])

    def mixed(
        self, image: Image.Image, changed: Sequence[Image.Image], weights: Sequence[float], weight: float
    ) -> Image.Image:
        """Returns timm's mix of the image and its changed copies."""
        if self.blended:
            for other, part in zip(changed, weights, strict=True):
                image = Image.blend(image, other, part)
            return image
        total = np.zeros_like(image, np.float32)
        for other, part in zip(changed, weights, strict=True):
            total += np.float32(part) * np.asarray(other, np.float32)
        return Image.blend(image, Image.fromarray(np.clip(total, 0, 255).astype(np.uint8)), weight)


def _rows(operations: Sequence[Operation]) -> npt.NDArray[np.float32]:
    """Numbers for native code."""
    values = [(OPERATIONS.index(op.name), op.p, op.magnitude) for op in operations]
    return np.array(values, np.float32).ravel()


def _apply_drawn(image: Image.Image, draw: Draw, shared: Shared) -> Image.Image:
    """Applies timm's functions to the image."""
    functions = importlib.import_module("timm.data.auto_augment").NAME_TO_OP
    for kind, argument, filter_ in zip(draw[::3], draw[1::3], draw[2::3], strict=True):
        name = OPERATIONS[int(kind)]
        if name == "Nothing":
            continue
        inputs: tuple[float, ...] = () if name in WITHOUT_ARGUMENT else (argument,)
        if name.startswith(("Posterize", "Solarize")):
            inputs = (int(argument),)
        function = functions[COMPUTED.get(name, name)]
        image = function(image, *inputs, resample=int(filter_), fillcolor=shared.fill)
    return image


def _shared(op: Any) -> Shared:
    resample = op.kwargs["resample"]
    filters = resample if isinstance(resample, (tuple, list)) else [resample]
    if not all(each in WARP_FILTERS for each in filters) or len(filters) > 2:
        raise NoNativeForm(f"filters {tuple(filters)} must be one or two that Pillow warps with")
    fill = tuple(integer("img_mean", level) for level in op.kwargs["fillcolor"])
    if len(fill) != 3 or not all(0 <= level <= 255 for level in fill):
        raise NoNativeForm(f"img_mean={fill} isn't three levels of 0 to 255")
    deviation = number("magnitude_std", op.magnitude_std)
    most = number("magnitude_max", op.magnitude_max or 10.0)
    translation = float(op.hparams.get("translate_const", 0))
    fraction = number("translate_pct", op.hparams.get("translate_pct", 0.45))
    # Without a positive one timm takes the magnitude as it is.
    deviation = UNIFORM if deviation == math.inf else max(0.0, deviation)
    return Shared(tuple(int(each) for each in filters), fill, deviation, most, translation, fraction)


def _operation(op: Any, shared: Shared) -> Operation:
    """The operation of an AugmentOp. Raises NoNativeForm if it doesn't do what is expected."""
    name, p, magnitude = op.name, number("prob", op.prob), number("magnitude", op.magnitude)
    if type(op).__module__ != "timm.data.auto_augment" or type(op).__name__ != "AugmentOp" or find_change(op):
        raise NoNativeForm(f"holds {type(op).__name__}, which isn't timm's")
    if name not in OPERATIONS[1:] or _shared(op) != shared:
        raise NoNativeForm(f"{name} isn't known, or its arguments differ from those of the others")
    if not 0.0 <= p <= 1.0 or float(np.float32(magnitude)) != magnitude:
        raise NoNativeForm(f"prob={p} and magnitude={magnitude} must be 0 to 1, and a float32")
    with _generators_kept():
        if not all(_agrees(op, probe, shared) for probe in (*PROBES, magnitude)):
            raise NoNativeForm(f"this timm's {name} isn't as expected")
    # Compared with random numbers of 24 bits, of which the same are at most this one.
    return Operation(name, math.floor(p * 2.0**24) / 2.0**24, magnitude)


def _agrees(op: Any, magnitude: float, shared: Shared) -> bool:
    """Returns whether the object computes the same argument and the same image as native code."""
    theirs: Sequence[float] = () if op.level_fn is None else op.level_fn(magnitude, op.hparams)
    if len(theirs) > 1:
        return False
    image = _probe_image()
    always = Operation(op.name, 1.0, magnitude)
    exactly = shared._replace(deviation=0.0, most=max(*PROBES, magnitude))
    ours = TimmAugment(exactly, ((always,),), 1, policies=False, weights=None)
    argument = theirs[0] if theirs else 0.0
    if op.name == "Desaturate":
        argument = min(1.0, max(0.0, 1.0 - argument))
    if op.name == "GaussianBlurRand":  # its argument bounds the number that is drawn
        if argument != max(0.0, min(1.0, magnitude / 10.0)):
            return False
        random.seed(0)
        argument = random.uniform(0.1, 2.0 * argument)
    elif argument not in (native_draw(ours, index)[1] for index in range(DRAWS_OF_BOTH_SIGNS)):
        return False
    for filter_ in shared.filters:
        random.seed(0)
        given = _bytes(op.aug_fn, image, *theirs, **{**op.kwargs, "resample": filter_})
        made = native_pixels(ours, np.asarray(image), (OPERATIONS.index(op.name), argument, filter_))
        if given != (None if made is None else made.tobytes()):
            return False
    return True


def _mixes(transform: Any, op: TimmAugMix) -> bool:
    """Returns whether the object mixes an image with copies of it as `op` does."""
    probe = copy.copy(transform)
    probe.ops = [lambda image: image.point([level & 0xC0 for level in range(256)] * 3)]
    image, weight = _probe_image(), np.float32(0.37)
    changed = [probe.ops[0](image)] * op.width
    weights = np.linspace(0.1, 0.6, op.width, dtype=np.float32)
    with _generators_kept():
        if op.blended:
            theirs = probe._apply_blended(image, weights, weight)
            weights = probe._calc_blended_weights(weights, weight)
        else:
            theirs = probe._apply_basic(image, weights, weight)
    ours = op.mixed(image, changed, weights.tolist(), float(weight))
    return bool(theirs.size == ours.size and theirs.tobytes() == ours.tobytes())


def _probe_image() -> Image.Image:
    pixels = np.arange(7 * 5 * 3, dtype=np.uint32).reshape(5, 7, 3) * 40503 % 251
    return Image.fromarray(pixels.astype(np.uint8))


def _bytes(function: Callable[..., Image.Image], *inputs: Any, **options: Any) -> bytes | None:
    """Bytes of the image that `function` gives, or None if it raises ValueError."""
    try:
        return function(*inputs, **options).tobytes()
    except ValueError:
        return None


def _posterizes_to_nothing() -> bool:
    """Returns whether this Pillow keeps 0 bits, and doesn't raise an error for that."""
    return _bytes(ImageOps.posterize, Image.new("RGB", (1, 1)), 0) is not None


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Python's generator and NumPy's are afterwards as they were."""
    states = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def _choice(transform: Any) -> tuple[int, tuple[float, ...] | None]:
    """Returns how many operations RandAugment applies, and their weights."""
    weights = transform.choice_weights
    given = None if weights is None else tuple(number("weight", weight) for weight in weights)
    if given is not None and len(given) != len(transform.ops):
        raise NoNativeForm(f"{len(given)} weights for {len(transform.ops)} operations")
    steps = integer("num_layers", transform.num_layers)
    try:
        np.random.RandomState(0).choice(len(transform.ops), steps, replace=weights is None, p=weights)
    except ValueError as error:
        raise NoNativeForm(f"numpy.random.choice raises ValueError: {error}") from None
    return steps, given
