"""Transforms after ToImage: which run natively in torch's arithmetic, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from headrace import transforms as ops
from headrace.plan.transform import LoweredTransform
from headrace.transforms import on_tensors
from headrace.transforms.op import UNKNOWN, Extent
from support import lowering

END = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)]
TORCH = f"exact (torch {'.'.join(torch.__version__.split('.')[:2])}, uint8)"

pytestmark = pytest.mark.skipif(
    not on_tensors.torch_resizes_as_expected(7), reason="this torch resizes uint8 tensors in float32"
)


def lowered(*transforms: Any, size: Extent = UNKNOWN) -> LoweredTransform:
    return lowering.lowered(v2.Compose([*transforms, *END]), size=size)


def refusal(*transforms: Any) -> str:
    """Returns why it isn't native as a whole."""
    return lowering.refusal([*transforms, *END])


def test_the_recommended_pipeline_is_native_and_names_its_reference() -> None:
    result = lowered(v2.ToImage(), v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip())
    assert [step.parity for step in result.op_steps] == [TORCH, "exact"]


def test_a_resize_before_the_conversion_is_pillows_and_one_after_it_torchs() -> None:
    result = lowered(v2.Resize(64), v2.ToImage(), v2.CenterCrop(60), v2.Resize((32, 24)))
    assert result.ops == (
        ops.ResizeShorter(64, None, 2),
        ops.CenterCrop(60, 60),
        ops.Resize(32, 24, 7, arithmetic="torch"),
    )


@pytest.mark.parametrize("conversion", [v2.ToImage(), v2.PILToTensor(), v1.PILToTensor()])
def test_each_conversion_to_levels(conversion: Any) -> None:
    result = lowered(conversion, v2.Resize(40, InterpolationMode.NEAREST), v2.CenterCrop(32))
    assert result.ops == (ops.ResizeShorter(40, None, 6, arithmetic="torch"), ops.CenterCrop(32, 32))


def test_a_conversion_that_changes_no_level_keeps_them() -> None:
    for same in (v2.ToDtype(torch.uint8, scale=True), v2.Identity(), v2.Lambda(lambda x: x)):
        lowered(v2.ToImage(), same, v2.Resize((8, 8)))


@pytest.mark.parametrize(
    "conversion",
    [
        [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
        [v1.ToTensor()],
        [v2.ToImage(), v2.ToDtype(torch.float32)],
    ],
)
def test_what_resizes_floats_stays_python(conversion: list[Any]) -> None:
    assert "other than uint8 RGB" in refusal(*conversion, v2.Resize((8, 8)))


def test_levels_that_were_changed_are_no_image() -> None:
    assert "other than uint8 RGB" in refusal(v2.ToImage(), v2.Lambda(lambda x: x * 2), v2.Resize((8, 8)))


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (lambda: v2.Resize((1, 1)), "resizes to one pixel, for which torch raises an error"),
        (lambda: v2.Resize(1), "resizes to one pixel"),
        (lambda: v2.RandomResizedCrop(1), "resizes to one pixel"),
        (lambda: v2.Resize((8, 8), antialias=False), "antialias=False has no native form on tensors"),
        (lambda: v2.RandomResizedCrop(8, antialias=None), "antialias=None has no native form"),
        (
            lambda: v2.Resize((8, 8), InterpolationMode.HAMMING),
            "interpolation 'hamming' has no native form on tensors",
        ),
        (
            lambda: v2.Resize(8, InterpolationMode.NEAREST_EXACT),
            "interpolation 'nearest-exact' has no native form",
        ),
        (lambda: v2.Resize((8, 8), 4), "interpolation 'box' has no native form on tensors"),
        (lambda: v1.Resize((8, 8)), "v1 computes tensors otherwise"),
        (lambda: v1.RandomResizedCrop(8), "v1 computes tensors otherwise"),
        (lambda: v1.ColorJitter(0.5), "v1 computes tensors otherwise"),
        (lambda: v2.RandomRotation(5), "runs natively on images only"),
        (lambda: v2.RandAugment(), "runs natively on images only"),
        (
            lambda: v2.RandomApply([v2.RandomRotation(5)]),
            "holds RandomRotation: runs natively on images",
        ),
        (lambda: v2.Pad(2, padding_mode="reflect"), "padding_mode='reflect' raises an error for tensors"),
        (lambda: v2.RandomCrop(8, 2, padding_mode="symmetric"), "padding_mode='symmetric' raises an error"),
        (lambda: v1.Pad(2), "pads tensors of different kinds differently"),
        (
            lambda: v2.Pad(2, fill={torch.Tensor: 1, "others": 2}),
            "pads tensors of different kinds differently",
        ),
        (lambda: v2.Grayscale(1), "num_output_channels=1"),
        (lambda: v2.RandomSolarize(300), "threshold=300 isn't a level"),
        (
            lambda: v2.ColorJitter(contrast=0.5),
            "takes the mean of an image that may have more than 1,048,576 pixels",
        ),
    ],
)
def test_what_stays_python_on_tensors_says_why(transform: Callable[[], Any], reason: str) -> None:
    assert reason in refusal(v2.ToImage(), transform(), v2.CenterCrop(8))


def test_the_mean_of_an_image_of_a_million_pixels_is_bounded() -> None:
    jitter = v2.ColorJitter(contrast=0.5)
    lowered(v2.ToImage(), v2.CenterCrop(1024), jitter)
    assert "1,048,576" in refusal(v2.ToImage(), v2.CenterCrop(1025), jitter)
    lowered(v2.ToImage(), jitter, v2.CenterCrop(8), size=Extent(256, 256, exact=True))


def test_fills_are_those_of_tensors() -> None:
    for fill, color in ((7, (7, 7, 7)), (200.7, (200, 200, 200)), ([1, 2, 3], (1, 2, 3)), (None, (0, 0, 0))):
        result = lowered(v2.ToImage(), v2.Pad(2, fill=fill), v2.CenterCrop(8))
        assert result.ops[0].fill == color  # type: ignore[attr-defined]


def test_a_torch_that_computes_otherwise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    resize = v2.functional.resize

    def otherwise(image: Any, *args: Any, **kwargs: Any) -> Any:
        resized = resize(image, *args, **kwargs)
        return resized ^ 1 if isinstance(resized, torch.Tensor) else resized

    try:
        with monkeypatch.context() as patch:
            on_tensors.torch_resizes_as_expected.cache_clear()
            patch.setattr(v2.functional, "resize", otherwise)
            assert on_tensors.OTHER_PIXELS in refusal(v2.ToImage(), v2.Resize((8, 8)))
    finally:
        on_tensors.torch_resizes_as_expected.cache_clear()
    lowered(v2.ToImage(), v2.Resize((8, 8)))


def test_a_torchvision_that_adjusts_colors_otherwise_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gray = v2.functional.rgb_to_grayscale
    try:
        with monkeypatch.context() as patch:
            on_tensors.torch_computes_as_expected.cache_clear()
            patch.setattr(v2.functional, "rgb_to_grayscale", lambda *a, **k: gray(*a, **k) ^ 1)
            assert on_tensors.OTHER_PIXELS in refusal(v2.ToImage(), v2.Grayscale(3), v2.CenterCrop(8))
    finally:
        on_tensors.torch_computes_as_expected.cache_clear()
    lowered(v2.ToImage(), v2.Grayscale(3), v2.CenterCrop(8))
