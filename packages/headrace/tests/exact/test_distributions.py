"""What ops do to images is distributed as what torchvision's own transforms do, which draw from torch.

Other tests show that the same numbers give the same pixels; this shows that the numbers themselves, and how
many of them are drawn, are what they should be. Seeds are fixed: a result never changes from run to run.
"""

from __future__ import annotations

import math
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from headrace.engine.lower import draws_of
from headrace.records import SampleKey
from headrace.transforms.op import ImageOp, replay
from support.images import noise
from support.op_cases import CASES, joined, made, native, pipeline_of, read
from support.sampling import one_in

SAMPLES = 300
IMAGE = noise(46, 37, 3)
# Of the distance of two samples' distributions, in units of its standard deviation: exceeded by chance in one
# of 40,000 comparisons.
LIMIT = 2.4


def is_random(op: ImageOp) -> bool:
    return bool(op.draws) or any(map(is_random, op.inside))


RANDOM = {name: case for name, case in CASES.items() if is_random(read(made(case)))}


def measured(image: Image.Image | None) -> tuple[float, ...]:
    """Numbers that depend on an op's parameters: sizes, levels of some pixels, and means of parts."""
    if image is None:
        return (0.0,) * 8
    pixels = np.asarray(image).astype(np.float64)
    height, width, _ = pixels.shape
    left, top = pixels[:, : (width + 1) // 2], pixels[: (height + 1) // 2]
    middle = pixels[height // 2, width // 2]
    return (height, width, *middle[:2], pixels[0, 0, 0], pixels[-1, -1, 2], left.mean(), top.std())


def by_native_code(op: ImageOp, key: SampleKey) -> Image.Image | None:
    """The image with native code's numbers; made of them by torchvision if native code leaves that to it."""
    image = native([op], IMAGE, key)
    draws = draws_of(pipeline_of([op]), [op], key, IMAGE.width, IMAGE.height)
    return replay(IMAGE, [op], draws) if image is None and draws is not None else image


def by_torchvision(transform: Any) -> np.ndarray[Any, Any]:
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    rows = []
    for _ in range(SAMPLES):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows.append(measured(joined(transform(IMAGE))))
        except (ValueError, RuntimeError):
            rows.append(measured(None))
    return np.array(rows)


def distance(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    """Kolmogorov's and Smirnov's, in units of its standard deviation; for few values it is smaller still."""
    both = np.sort(np.concatenate((left, right)))
    sums = [np.searchsorted(np.sort(each), both, "right") / len(each) for each in (left, right)]
    return float(np.abs(sums[0] - sums[1]).max() * math.sqrt(SAMPLES / 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(4, RANDOM))
def test_results_are_distributed_as_torchvisions(name: str) -> None:
    transform = made(RANDOM[name])
    op = read(transform)
    ours = np.array([measured(by_native_code(op, SampleKey(9, 0, i))) for i in range(SAMPLES)])
    theirs = by_torchvision(transform)
    for column, (left, right) in enumerate(zip(ours.T, theirs.T, strict=True)):
        assert distance(left.round(6), right.round(6)) < LIMIT, f"measure {column}"


def test_the_comparison_can_fail() -> None:
    """Slightly other parameters must show, or the test above proves nothing."""
    name = next(name for name in RANDOM if name.startswith("v1.ColorJitter") or "ColorJitter" in name)
    cls, _ = RANDOM[name]
    ours, theirs = (by_torchvision(cls(brightness=(low, 1.4))) for low in (0.6, 0.8))
    assert max(distance(left, right) for left, right in zip(ours.T, theirs.T, strict=True)) > LIMIT
