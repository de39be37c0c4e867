"""AugMix, in the arithmetic of torch on uint8 tensors, in which torchvision computes all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms._torchvision_compat import most_severe
from headrace.transforms.on_tensors import native_pixels
from headrace.transforms.op import NO_GRAY, NoNativeForm
from headrace.transforms.policies import Operation, OperationTable, Policy, read_table
from headrace.transforms.reading import filter_of, integer, mode_of, number

# As native code numbers them, which is the order in which torchvision chooses from them.
OPERATIONS = (
    *("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Posterize", "Solarize", "AutoContrast"),
    *("Equalize", "Brightness", "Color", "Contrast", "Sharpness"),
)
BINS = 10
MOST_DRAWS = 32
DRAWN_DEPTH = 3
NEAREST, BILINEAR = 0, 2
PARTIAL = OPERATIONS[:9]  # with all_ops=False

Fill = tuple[float, float, float]


@dataclass(frozen=True)
class AugMix(Policy):
    """The image mixed with `width` copies of it, each changed by `depth` operations (if 0, 1 to 3).
    Without a `fill`, torch takes zeros, and blends them in another way.

    Attributes:
        severity: number of magnitudes that an operation may have, the first ones; 1 to 10.
        alpha: parameter of the Dirichlet distributions that the weights are drawn from.
        count: number of `OPERATIONS` that are chosen from, the first ones.
        fused: see `grid_is_fused`.
    """

    severity: int
    width: int
    depth: int
    alpha: float
    count: int
    fused: bool

    native = "aug_mix"
    gray_problem = NO_GRAY
    matches = (v1.AugMix, v2.AugMix)
    draws = ("weights of the image and of each chain", "each operation, its magnitude and sign in one number")
    examples = (
        {},
        {"severity": 10, "all_ops": False, "interpolation": InterpolationMode.NEAREST, "fill": 9},
        {"severity": 7, "mixture_width": 2, "chain_depth": 4, "fill": [10, 200.5, 30], "alpha": 0.3},
        {"mixture_width": 1, "chain_depth": 1, "alpha": 2.5, "fill": (77,)},
    )

    def __post_init__(self) -> None:
        if self.filter not in (NEAREST, BILINEAR):
            raise NoNativeForm(f"filter {self.filter} must be nearest or bilinear")
        if self.fill is not None and not all(0 <= level <= 255 for level in self.fill):
            raise NoNativeForm(f"fill {self.fill} must be levels of 0 to 255")
        if not 1e-3 <= self.alpha <= 1e3:
            raise NoNativeForm(f"alpha ({self.alpha}) must be 0.001 to 1000")
        numbers = 1 + self.width * (1 + self.most_depth)
        if self.width < 1 or numbers > MOST_DRAWS:
            raise NoNativeForm(f"{self.width} chains of {self.most_depth} operations are too few or too many")
        names = ("weight",) * (self.width + 1) + ("operation",) * (self.width * self.most_depth)
        object.__setattr__(self, "draws", names)

    def _arguments(self) -> str:
        depth = self.depth or f"1–{DRAWN_DEPTH}"
        return f"{self.width} chains of {depth} operations, severity {self.severity}"

    @classmethod
    def read(cls, transform: Any) -> Self:
        is_v2 = isinstance(transform, v2.Transform)
        if most_severe(transform) != BINS:
            raise NoNativeForm("this torchvision has other magnitudes")
        if type(transform.alpha) is not float:
            raise NoNativeForm(f"alpha={transform.alpha!r} isn't a float, which torch needs")
        severity = integer("severity", transform.severity)
        width = integer("mixture_width", transform.mixture_width)
        depth = max(0, integer("chain_depth", transform.chain_depth))
        chosen = OPERATIONS if getattr(transform, "all_ops", True) else PARTIAL
        table = read_table(transform, BINS, OPERATIONS, chosen, _most)
        if table.most is None:
            raise NoNativeForm("this torchvision's translations aren't as expected")
        fused = grid_is_fused(is_v2)
        if fused is None:
            raise NoNativeForm("torch computes in another order on this machine")
        how = filter_of(transform), _fill(transform.fill), is_v2, table
        op = cls(*how, severity, width, depth, transform.alpha, len(chosen), fused)
        if transform.interpolation not in (mode_of(op.filter).value, mode_of(op.filter), op.filter):
            raise NoNativeForm(f"interpolation={transform.interpolation!r} isn't one for tensors")
        return op

    @property
    def most_depth(self) -> int:
        """The most operations that a chain can have."""
        return self.depth or DRAWN_DEPTH

    def params(self) -> tuple[float, ...]:
        fill = self.fill or (0.0, 0.0, 0.0)
        how = (self.filter, self.fill is not None, *fill, self.is_v2)
        chains = (self.severity, self.width, self.depth, self.alpha, self.count)
        return (*how, *chains, *self.table.params(), self.fused)

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        functional: Any = v2.functional if self.is_v2 else v1.functional
        original = functional.pil_to_tensor(image)[None]
        weights = torch.tensor(draw[: self.width + 1], dtype=torch.float32).view(-1, 1, 1, 1, 1)
        mixed = weights[0] * original
        for weight, steps in zip(weights[1:], self.chains(draw), strict=True):
            mixed.add_(weight * self.apply(steps, original, image.width, image.height))
        return functional.to_pil_image(mixed[0].to(torch.uint8))

    def steps(self, draw: Draw) -> Iterator[Operation]:
        return chain.from_iterable(self.chains(draw))

    def chains(self, draw: Draw) -> Iterator[list[Operation]]:
        """The operations of each chain."""
        for begin in range(1 + self.width, len(self.draws), self.most_depth):
            chosen = (int(each) for each in draw[begin : begin + self.most_depth] if each >= 0)
            places = ((*divmod(each // 2, BINS), bool(each % 2)) for each in chosen)
            yield [Operation(OPERATIONS[kind], place, negative) for kind, place, negative in places]


def _fill(fill: Any) -> Fill | None:
    """Levels of the three channels of a tensor."""
    if fill is None:
        return None
    levels = [number("fill", level) for level in (fill if isinstance(fill, (list, tuple)) else [fill])]
    if len(levels) not in (1, 3):
        raise NoNativeForm(f"fill={fill!r} isn't one level, or one for each channel")
    red, green, blue = (levels * 3)[:3]
    return red, green, blue


def _most(edge: int) -> float:
    """The largest translation."""
    return edge / 3.0


@lru_cache(maxsize=2)
def grid_is_fused(is_v2: bool) -> bool | None:
    """Returns whether torch makes affine grids of fused multiply-adds, which depends on the machine, or None
    if it rounds in other places than native code."""
    pixels = np.random.default_rng(0).integers(0, 256, (37, 61, 3), np.uint8)
    probes = {"Rotate": (-7.25, 21.0), "ShearX": (0.1, -0.2), "ShearY": (0.1, -0.2), "Color": (-0.75, 0.6875)}
    magnitudes = tuple((*probes[name], *[0.0] * BINS)[:BINS] if name in probes else () for name in OPERATIONS)
    # A single operation, of which the result is the mixture.
    draws = [
        (0.0, 1.0, 2 * (BINS * OPERATIONS.index(name) + place))
        for name, values in probes.items()
        for place in range(len(values))
    ]
    for fused in (False, True):
        table = OperationTable(OPERATIONS, BINS, magnitudes, frozenset(), None)
        op = AugMix(BILINEAR, None, is_v2, table, BINS, 1, 1, 1.0, len(OPERATIONS), fused)
        theirs = (np.asarray(op.replay(Image.fromarray(pixels), draw)) for draw in draws)
        ours = (native_pixels(op, pixels, draw) for draw in draws)
        if all(
            each is not None and np.array_equal(each, other) for each, other in zip(ours, theirs, strict=True)
        ):
            return fused
    return None
