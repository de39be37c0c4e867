"""v2 transforms on uint8 tensors: for the same random numbers, torch's own bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exact.test_ops import CASES, EPOCH, SEED, drawing, made, native, pipeline_of, same
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import datasets, tv_tensors
from torchvision.transforms import InterpolationMode, v2

import headrace
import headrace.testing
from headrace._native import ffi
from headrace.engine.lower import draws_of
from headrace.plan.pointwise import look_up
from headrace.plan.transform import LoweredTransform, lower_transform
from headrace.records import SampleKey
from headrace.transforms import OPS, find_op
from headrace.transforms.on_tensors import torch_resizes_as_expected
from headrace.transforms.op import ImageOp, NoNativeForm, flat, replay
from headrace.transforms.reading import TENSOR_FILTERS
from headrace.transforms.resize import Resize
from support.images import noise
from support.jpegs import image_folder

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
MODES = [mode for mode, number in TENSOR_FILTERS.items() if torch_resizes_as_expected(number)]
# torchvision 0.22 resizes bilinearly in float32 on processors with AVX-512.
needs_bilinear = pytest.mark.skipif(
    InterpolationMode.BILINEAR not in MODES, reason="this torch resizes uint8 tensors in float32"
)
SIZES = [(1, 1), (1, 9), (7, 1), (2, 3), (13, 29), (32, 32), (64, 31), (97, 203), (400, 5)]
HOLDERS = {
    "jitter": v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8),
    "choice": v2.RandomChoice([v2.Resize((9, 21)), v2.RandomGrayscale(1.0), v2.RandomInvert(1.0)]),
    "order": v2.RandomOrder([v2.RandomAutocontrast(1.0), v2.RandomSolarize(99.5), v2.RandomPosterize(3)]),
    "nested": v2.RandomApply([v2.RandomApply([v2.RandomEqualize(1.0)]), v2.Compose([v2.Grayscale(3)])]),
}


def tensor_of(image: Image.Image) -> tv_tensors.Image:
    return v2.functional.to_image(image)


def image_of(tensor: torch.Tensor) -> Image.Image:
    return Image.fromarray(tensor.permute(1, 2, 0).contiguous().numpy())


def on_tensor(transform: Any) -> ImageOp | None:
    """The op of `transform` where it is called with a uint8 tensor, or None if that is Python."""
    cls = find_op(type(transform))
    assert cls is not None
    assert issubclass(cls, ImageOp)
    try:
        return cls.read_on_tensor(transform)
    except NoNativeForm:
        return None


def theirs(transform: Any, image: Image.Image, index: int) -> Image.Image | None:
    """What the user's own transform gives, or None if it raises an error for this image."""
    try:
        return image_of(drawing(transform, index, iter(range(99)))(tensor_of(image)))
    except (ValueError, RuntimeError):
        return None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("before", SIZES)
def test_resizes_are_torchs_for_every_layout(mode: InterpolationMode, before: tuple[int, int]) -> None:
    image = noise(*before, seed=sum(before))
    pixels = np.asarray(image)
    larger = np.pad(pixels, ((2, 1), (1, 3), (0, 0)))
    view = torch.from_numpy(larger).permute(2, 0, 1)[:, 2 : 2 + before[0], 1 : 1 + before[1]]
    for after in SIZES[1:]:
        ours = native([Resize(*after, TENSOR_FILTERS[mode], arithmetic="torch")], image, SampleKey(0, 0, 0))
        assert ours is not None
        for tensor in (tensor_of(image), tensor_of(image).contiguous(), view):
            resized = v2.functional.resize(tensor, list(after), mode, antialias=True)
            assert same(ours, image_of(resized)), f"{before} to {after}"


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(MODES),
    st.tuples(*[st.integers(1, 150)] * 4),
    st.sampled_from(["noise", "extremes", "ramp"]),
)
def test_resizes_of_any_size_are_torchs(
    mode: InterpolationMode, sizes: tuple[int, int, int, int], kind: str
) -> None:
    height, width, *after = sizes
    assume(after != [1, 1])
    pixels = np.asarray(noise(height, width, sum(sizes)))
    if kind == "extremes":
        pixels = (pixels > 127).astype(np.uint8) * 255
    elif kind == "ramp":
        pixels = np.broadcast_to(np.arange(width, dtype=np.uint8)[None, :, None], pixels.shape)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    ours = native(
        [Resize(after[0], after[1], TENSOR_FILTERS[mode], arithmetic="torch")], image, SampleKey(0, 0, 0)
    )
    assert ours is not None
    assert same(ours, image_of(v2.functional.resize(tensor_of(image), after, mode, antialias=True)))


@pytest.mark.parametrize("simd", ffi.simd_names())
@pytest.mark.parametrize("mode", MODES)
def test_every_instruction_set_gives_torchs_bits(mode: InterpolationMode, simd: str) -> None:
    image = noise(91, 83)
    expected = image_of(v2.functional.resize(tensor_of(image), [40, 112], mode, antialias=True))
    try:
        ffi.simd_force(simd)
        found = native([Resize(40, 112, TENSOR_FILTERS[mode], arithmetic="torch")], image, SampleKey(0, 0, 0))
    finally:
        ffi.simd_force(None)
    assert found is not None
    assert same(found, expected)


TENSOR_CASES: dict[str, Any] = {name: made(case) for name, case in CASES.items() if name.startswith("v2.")}
NATIVE_CASES = {
    name: transform
    for name, transform in (TENSOR_CASES | HOLDERS).items()
    if on_tensor(transform) is not None
}


@needs_bilinear
def test_what_is_native_on_tensors() -> None:
    """The classes of v2 of which some example has a native form on tensors, and those of which none has."""
    names = {type(transform).__name__ for transform in NATIVE_CASES.values()}
    expected = {
        *(
            "CenterCrop",
            "ColorJitter",
            "GaussianBlur",
            "Grayscale",
            "Pad",
            "RandomApply",
            "RandomAutocontrast",
        ),
        *("RandomChannelPermutation", "RandomChoice", "RandomCrop", "RandomEqualize", "RandomGrayscale"),
        *(
            "RandomHorizontalFlip",
            "RandomInvert",
            "RandomOrder",
            "RandomPhotometricDistort",
            "RandomPosterize",
        ),
        *("RandomResizedCrop", "RandomSolarize", "RandomVerticalFlip", "Resize"),
    }
    assert HOLDERS.keys() <= NATIVE_CASES.keys()
    assert names == expected
    refused = {type(transform).__name__ for transform in TENSOR_CASES.values()} - expected
    assert refused == {
        *("AutoAugment", "RandAugment", "RandomAdjustSharpness", "RandomAffine"),
        *("RandomPerspective", "RandomRotation", "TrivialAugmentWide", "AugMix", "FiveCrop", "TenCrop"),
        *("RandomResize", "RandomShortestSize", "RandomZoomOut", "ScaleJitter"),
    }


@pytest.mark.parametrize("name", NATIVE_CASES)
def test_native_pixels_are_torchvisions_on_tensors(name: str) -> None:
    transform = NATIVE_CASES[name]
    op = on_tensor(transform)
    assert op is not None
    compared = 0
    for index, size in enumerate(
        [(40, 33), (33, 40), (33, 33), (1, 1), (2, 9), (7, 1), (64, 61), (90, 17)] * 3
    ):
        image = noise(*size, index)
        if index % 3 == 0:
            image = Image.fromarray(np.asarray(image) // 32 * 9)  # few levels, and equal channels
        key = SampleKey(SEED, EPOCH, index)
        expected, found = theirs(transform, image, index), native([op], image, key)
        draws = draws_of(pipeline_of([op]), [op], key, image.width, image.height)
        if expected is None:
            assert found is None
            continue
        assert draws is not None
        assert same(replay(image, [op], draws), expected), f"replay of sample {index}, {size}: {draws}"
        if found is not None:
            assert same(found, expected), f"sample {index}, {size}: {draws}"
            compared += 1
    assert compared >= 6


@pytest.mark.parametrize(
    "factors", [{"contrast": 0.9}, {"saturation": 0.9}, {"hue": 0.5}, {"brightness": 0.9}]
)
def test_adjustments_of_all_pairs_of_levels(factors: dict[str, float]) -> None:
    levels = np.arange(256, dtype=np.uint8)
    pixels = np.empty((256, 256, 3), np.uint8)
    transform = v2.ColorJitter(**factors)
    op = on_tensor(transform)
    assert op is not None
    for index, third in enumerate((0, 1, 77, 128, 200, 254, 255)):
        pixels[..., index % 3], pixels[..., (index + 1) % 3] = levels[:, None], levels[None]
        pixels[..., (index + 2) % 3] = third
        image = Image.fromarray(pixels[:, 3:].copy())  # a width that no register divides
        found = native([op], image, SampleKey(SEED, EPOCH, index))
        expected = theirs(transform, image, index)
        assert found is not None
        assert expected is not None
        assert same(found, expected), index


TRANSFORMS = st.sampled_from(list(NATIVE_CASES.values()))
END = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


@needs_bilinear
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    st.lists(TRANSFORMS, max_size=4),
    st.lists(st.sampled_from([v2.RandomVerticalFlip(), v2.ColorJitter(0.3, 0.4, 0.5, 0.1)]), max_size=2),
    st.sampled_from([v2.ToImage(), v2.PILToTensor()]),
    st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(0, 1000)),
)
def test_whole_pipelines_on_tensors_are_exact(
    before: list[Any], after: list[Any], conversion: Any, sample: tuple[int, int, int]
) -> None:
    height, width, index = sample
    transforms = [conversion, *before, v2.Resize((24, 31)), *after, *END]
    lowered = lower_transform(v2.Compose(transforms))
    assume(isinstance(lowered, LoweredTransform))
    assert isinstance(lowered, LoweredTransform)
    image = noise(height, width, index)
    value: Any = image
    reasons = iter([step.reason for step in lowered.op_steps])
    step = 0
    for transform in transforms:
        op = on_tensor(transform) if find_op(type(transform)) in IMAGE_OPS else None
        used = op is not None and not next(reasons)
        steps = range(step, step + 99) if used else range(1000, 1099)
        try:
            value = drawing(transform, index, iter(steps))(value)
        except (ValueError, RuntimeError):
            return
        step += len(list(flat([op]))) if used and op is not None else 0
    found = native(lowered.ops, image, SampleKey(SEED, EPOCH, index))
    if found is not None:
        assert torch.equal(look_up(found, lowered.table.values), value)


IMAGE_OPS = {op for op in OPS if issubclass(op, ImageOp)}


def recommended(size: int = 32) -> Any:
    """What torchvision's documentation recommends."""
    crop = v2.RandomResizedCrop(size, antialias=True)
    return v2.Compose([v2.ToImage(), crop, v2.RandomHorizontalFlip(), *END])


@needs_bilinear
def test_a_loader_of_the_recommended_pipeline_gives_torchvisions_samples(tmp_path: Path) -> None:
    dataset = datasets.ImageFolder(str(image_folder(tmp_path, 9)), recommended())
    Image.fromarray(np.asarray(noise(50, 60))).save(tmp_path / "class0" / "png in disguise.jpg", "PNG")
    dataset = datasets.ImageFolder(str(tmp_path), recommended())
    loader = headrace.DataLoader(dataset, 4, shuffle=False, seed=3, num_workers=2)
    assert loader.explain().startswith("plan: native")
    rows = torch.cat([images for images, _ in loader])
    assert len(rows) == 10
    for index, row in enumerate(rows):
        assert torch.equal(row, headrace.testing.replay(loader, index))


@needs_bilinear
def test_without_random_numbers_a_loader_equals_torchs(tmp_path: Path) -> None:
    transform = v2.Compose([v2.ToImage(), v2.Resize(40), v2.CenterCrop(36), v2.Grayscale(3), *END])
    dataset = datasets.ImageFolder(str(image_folder(tmp_path, 9)), transform)
    loader = headrace.DataLoader(dataset, 4, num_workers=2)
    assert loader.explain().startswith("plan: native")
    for (ours, labels), (expected, targets) in zip(
        loader, torch.utils.data.DataLoader(dataset, 4), strict=True
    ):
        assert torch.equal(ours, expected)
        assert torch.equal(labels, targets)
