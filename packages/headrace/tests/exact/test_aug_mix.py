"""AugMix: every operation in torch's arithmetic, all sizes, and draws distributed as torchvision's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from headrace._native import ffi
from headrace.engine.lower import draws_of
from headrace.records import Draw, SampleKey
from headrace.transforms import aug_mix
from headrace.transforms.aug_mix import BINS, OPERATIONS, AugMix
from headrace.transforms.op import replay
from support import op_cases
from support.images import noise
from support.lowering import refusal
from support.op_cases import native_drawn, operations_of_torchvision, pipeline_of

APIS = {"v1": v1, "v2": v2}
SAMPLES = 3000


@pytest.fixture(params=ffi.simd_names())
def simd(request: pytest.FixtureRequest) -> Iterator[str]:
    ffi.simd_force(request.param)
    yield request.param
    ffi.simd_force(None)


def read(transform: Any) -> AugMix:
    op = op_cases.read(transform)
    assert isinstance(op, AugMix)
    return op


def alone(op: AugMix, name: str, place: int, negative: int) -> Draw:
    """One operation, which nothing is mixed with."""
    code = 2 * (BINS * OPERATIONS.index(name) + place) + negative
    return (0.0, 1.0, *[0.0] * (op.width - 1), code, *[-1] * (op.width * op.most_depth - 1))


def all_operations(op: AugMix) -> list[tuple[str, int, int]]:
    return [
        (name, place, negative)
        for name, magnitudes in zip(OPERATIONS, op.table.magnitudes, strict=True)
        for place in range(BINS if magnitudes else 1)
        for negative in range(1 + (name in op.table.signed))
    ]


FILLS = [None, 7, [200.5, 30, 0.25]]


@pytest.mark.parametrize("fill", FILLS, ids=str)
@pytest.mark.parametrize(
    "mode", [InterpolationMode.NEAREST, InterpolationMode.BILINEAR], ids=lambda m: m.value
)
@pytest.mark.parametrize("api", APIS)
def test_each_magnitude_of_each_operation_is_torchs(api: str, mode: InterpolationMode, fill: Any) -> None:
    op = read(APIS[api].AugMix(severity=10, interpolation=mode, fill=fill))
    compared = 0
    for number, (name, place, negative) in enumerate(all_operations(op)):
        height, width = [(40, 61), (17, 9), (64, 64), (33, 100)][number % 4]
        image, draw = noise(height, width, number), alone(op, name, place, negative)
        found = native_drawn(op, image, draw)
        if found is None:
            continue
        expected = replay(image, [op], [draw])
        assert np.array_equal(found, np.asarray(expected)), (name, place, negative, width, height)
        compared += 1
    assert compared > 120


@pytest.mark.parametrize("api", APIS)
def test_images_of_all_sizes_are_torchs(api: str) -> None:
    op = read(APIS[api].AugMix(severity=10))
    names, left = ("ShearX", "Rotate", "TranslateY", "Contrast", "Sharpness", "AutoContrast"), 0
    for height in (*range(1, 12), 31, 65, 224):
        for width in (*range(1, 12), 32, 63, 225):
            name = names[(height + width) % len(names)]
            image, draw = (
                noise(height, width, height),
                alone(op, name, 7 if name in op.table.signed else 0, 1),
            )
            found = native_drawn(op, image, draw)
            left += found is None
            expected = replay(image, [op], [draw])
            assert found is None or np.array_equal(found, np.asarray(expected)), (name, height, width)
    assert left < 10


@pytest.mark.parametrize("api", APIS)
def test_contrast_of_one_colour_is_torchs_to_the_last_value(api: str) -> None:
    """torch rounds once less in values that fill a vector than in the few that are left over."""
    op = read(APIS[api].AugMix(severity=10))
    compared, rng = 0, np.random.default_rng(0)
    for colour in [(151, 241, 63), *rng.integers(0, 256, (400, 3)).tolist()]:
        size = [(22, 35), (7, 3), (3, 5)][compared % 3]
        image = Image.fromarray(np.full((*size, 3), colour, np.uint8))
        draw = alone(op, "Contrast", int(rng.integers(BINS)) if compared else 1, 1)
        found = native_drawn(op, image, draw)
        assert found is None or np.array_equal(found, np.asarray(replay(image, [op], [draw]))), colour
        compared += found is not None
    assert compared > 200


def test_every_instruction_set_mixes_alike(simd: str) -> None:
    op = read(v1.AugMix())
    rng = np.random.default_rng(0)
    for round_ in range(10):
        image = noise(30 + round_, 70 - round_, round_)
        weights = rng.dirichlet([1.0] * 4).astype(np.float32).tolist()
        draw = (*weights, *rng.integers(-1, 20 * len(OPERATIONS), 9).tolist())
        found = native_drawn(op, image, draw)
        if found is not None:
            assert np.array_equal(found, np.asarray(replay(image, [op], [draw]))), draw


@pytest.mark.parametrize("api", APIS)
def test_the_mean_of_a_large_bright_image_is_torchs_unless_its_order_of_adding_decides(api: str) -> None:
    op = read(APIS[api].AugMix(severity=10))
    rng, found = np.random.default_rng(0), 0
    sizes = [(300, 300), (257, 411), (512, 520), (999, 1001), (30, 30_000)]
    for number, (height, width) in enumerate(sizes * 5):
        pixels = rng.integers(40 + 8 * number, 256, (height, width, 3), np.uint8)
        pixels[: 9 * number] //= 2
        image, draw = Image.fromarray(pixels), alone(op, "Contrast", number % 10, number % 2)
        ours = native_drawn(op, image, draw)
        expected = np.asarray(replay(image, [op], [draw]))
        assert ours is None or np.array_equal(ours, expected), (number, height, width)
        found += ours is not None
    assert found > 18
    too_large = Image.new("RGB", (1025, 1024), (250, 255, 251))
    assert native_drawn(op, too_large, alone(op, "Contrast", 1, 0)) is None


@pytest.mark.parametrize("api", APIS)
def test_operations_are_as_frequent_as_torchvisions(api: str) -> None:
    transform = APIS[api].AugMix()
    op = read(transform)
    pipeline = pipeline_of([op], 4, 4)
    ours: Counter[tuple[str, bool]] = Counter()
    for index in range(SAMPLES):
        draws = draws_of(pipeline, [op], SampleKey(1, 0, index), 4, 4)
        assert draws is not None
        for step in op.steps(draws[0]):
            magnitudes = op.table.magnitudes[OPERATIONS.index(step.name)]
            ours[step.name, step.negative and bool(magnitudes[step.place])] += 1
    theirs = operations_of_torchvision(transform, noise(4, 4, 0), SAMPLES)
    theirs_names = Counter[str]()
    for (name, _), count in theirs.items():
        theirs_names[name] += count
    ours_names = Counter[str]()
    for (name, _), count in ours.items():
        ours_names[name] += count
    for name, count in theirs_names.items():
        # Five standard deviations of the difference of two counts.
        assert abs(count - ours_names[name]) < 5 * (count + ours_names[name]) ** 0.5, name
    negative = [sum(count for (_, below), count in seen.items() if below) for seen in (ours, theirs)]
    assert abs(negative[0] - negative[1]) < 5 * sum(negative) ** 0.5


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.5])
def test_weights_are_distributed_as_torchs(alpha: float) -> None:
    op = read(v1.AugMix(alpha=alpha))
    pipeline, rows = pipeline_of([op], 4, 4), []
    for index in range(SAMPLES):
        draws = draws_of(pipeline, [op], SampleKey(2, 0, index), 4, 4)
        assert draws is not None
        rows.append(draws[0][:4])
    ours = np.array(rows)
    assert np.allclose(ours.sum(axis=1), 1.0, atol=1e-6)
    torch.manual_seed(0)
    both = torch.distributions.Dirichlet(torch.full((2,), alpha)).sample((SAMPLES,))
    chains = torch.distributions.Dirichlet(torch.full((3,), alpha)).sample((SAMPLES,))
    theirs = torch.cat([both[:, :1], chains * both[:, 1:]], dim=1).numpy()
    for left, right in zip(ours.T, theirs.T, strict=True):
        merged = np.sort(np.concatenate((left, right)))
        distance = np.abs(
            np.searchsorted(np.sort(left), merged, "right") - np.searchsorted(np.sort(right), merged, "right")
        ).max()
        assert distance / SAMPLES * math.sqrt(SAMPLES / 2) < 1.95  # exceeded once in a thousand


def test_what_isnt_understood_stays_python(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = v1.InterpolationMode.NEAREST_EXACT
    named = v2.AugMix()
    named.interpolation = "nearest-exact"  # type: ignore[assignment]  # older versions take no names
    refused = (
        (v1.AugMix(interpolation=exact), "interpolation"),
        (v1.AugMix(interpolation=v1.InterpolationMode.BICUBIC), "nearest or bilinear"),
        (named, "interpolation"),
        (v1.AugMix(alpha=1), "isn't a float"),
        (v1.AugMix(alpha=0.0), "alpha"),
        (v1.AugMix(mixture_width=0), "too few or too many"),
        (v1.AugMix(mixture_width=9, chain_depth=9), "too few or too many"),
        (v1.AugMix(fill=[1, 2]), "fill"),
        (v1.AugMix(fill=300), "fill"),
        (v2.AugMix(fill={Image.Image: 7, "others": 0}), "fill"),
    )
    for transform, reason in refused:
        assert reason in refusal([transform, v1.CenterCrop(8), v1.ToTensor()])
    assert not refusal([v1.AugMix(), v1.CenterCrop(8), v1.ToTensor()])
    monkeypatch.setattr(aug_mix, "grid_is_fused", lambda is_v2: None)
    assert refusal([v1.AugMix(), v1.CenterCrop(8), v1.ToTensor()])
