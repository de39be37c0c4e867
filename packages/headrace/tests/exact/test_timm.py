"""timm's transforms: for the same random numbers, timm's own bits; and what its factory makes is native."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exact.test_ops import EPOCH, SEED, native, pipeline_of, read, same, samples
from PIL import Image
from torchvision import datasets
from torchvision import transforms as v1

import headrace.testing
from headrace.engine.lower import draws_of
from headrace.records import BatchKeys, SampleKey
from headrace.transforms import OPS, RandomErasing
from headrace.transforms.op import ImageOp, replay
from headrace.transforms.random_erasing import draw_boxes
from support.extras import integration
from support.jpegs import image_folder
from support.lowering import refusal
from support.same_numbers import StreamRandom, stream, timm_drawing

timm_data = integration("timm.data")
auto_augment = integration("timm.data.auto_augment")
random_erasing = integration("timm.data.random_erasing")
timm_transforms = integration("timm.data.transforms")

PARAMS = {"translate_const": 100, "img_mean": (124, 116, 104)}
POLICIES: dict[str, Any] = {
    **{
        text: lambda text=text: auto_augment.rand_augment_transform(text, dict(PARAMS))
        for text in (
            *("rand-m9-mstd0.5-inc1", "rand-m7-n4-p1", "rand-m15-mmax20-n3-mstd101", "rand-m5-n10-inc1-p0.9"),
            *("rand-m9-n3-tweights-mstd0.5", "rand-m6-n3-t3aw", "rand-m8-n3-t3a-inc1-p1"),
        )
    },
    **{
        text: lambda text=text: auto_augment.auto_augment_transform(text, dict(PARAMS))
        for text in ("original-mstd0.5", "originalr", "v0", "v0r-mstd1", "3a")
    },
    **{
        text: lambda text=text: auto_augment.augment_and_mix_transform(text, dict(PARAMS))
        for text in (
            "augmix-m5-w4-d2",
            "augmix",
            "augmix-m7-w2-a0.4-mstd0.5",
            "augmix-d2-b1",
            "augmix-w1-d1",
        )
    },
    "one filter": lambda: auto_augment.rand_augment_transform("rand-m9-n4", {**PARAMS, "interpolation": 0}),
    "all operations": lambda: auto_augment.RandAugment(
        [auto_augment.AugmentOp(name, 1.0, 8, PARAMS) for name in auto_augment.NAME_TO_OP], 4
    ),
}


def sized() -> dict[str, Any]:
    """The classes with sizes, each with the examples of its op."""
    found: dict[str, Any] = {}
    for op in OPS:
        names = [name.rpartition(".")[2] for name in op.matches_imported if issubclass(op, ImageOp)]
        for cls in (getattr(timm_transforms, name) for name in names if hasattr(timm_transforms, name)):
            for number, example in enumerate(op.examples):
                found[f"{cls.__name__} {number}"] = lambda cls=cls, example=example: cls(**example)
    pads: tuple[dict[str, Any], ...] = (
        {"size": (60, 20), "fill": [1, 2, 3]},
        {"size": (60, 51), "padding_mode": "reflect"},
    )
    for number, example in enumerate(pads):
        found[f"CenterCropOrPad with padding {number}"] = lambda e=example: timm_transforms.CenterCropOrPad(
            **e
        )
    return found


CASES = {**sized(), **POLICIES}


def theirs(transform: Any, image: Image.Image, index: int) -> Image.Image | None:
    with timm_drawing(stream(SEED, EPOCH, index, 0)):
        try:
            result: Image.Image = transform(image)
        except (ValueError, ZeroDivisionError):
            return None
    return result


@pytest.mark.parametrize("name", CASES)
def test_native_pixels_are_timms_for_the_same_numbers(name: str) -> None:
    transform = CASES[name]()
    op = read(transform)
    compared = 0
    for index, image in samples(12 if name in POLICIES else 3):
        key = SampleKey(SEED, EPOCH, index)
        expected = theirs(transform, image, index)
        draws = draws_of(pipeline_of([op]), [op], key, image.width, image.height)
        found = native([op], image, key)
        if expected is None:
            assert found is None
            continue
        assert draws is not None
        assert same(replay(image, [op], draws), expected), f"replay of {index}, {image.size}: {draws}"
        assert op.output_size(image.height, image.width, draws[0]) == (expected.height, expected.width)
        if found is not None:
            assert same(found, expected), f"sample {index}, {image.size}: {draws}"
            compared += 1
    assert compared >= 10


RECIPES: dict[str, dict[str, Any]] = {
    "default": {},
    "bicubic": {"interpolation": "bicubic", "color_jitter": 0.3},
    "random interpolation": {"interpolation": "random", "vflip": 0.5},
    "rand": {"auto_augment": "rand-m9-mstd0.5-inc1", "interpolation": "bicubic"},
    "DeiT III": {"auto_augment": "3a", "color_jitter": 0.3, "interpolation": "bicubic"},
    "original": {"auto_augment": "original-mstd0.5"},
    "AugMix": {"auto_augment": "augmix-m5-w4-d2", "interpolation": "random", "re_prob": 0.3},
    "SimCLR-like": {"color_jitter_prob": 0.8, "grayscale_prob": 0.2, "gaussian_blur_prob": 0.5},
    "rkrc": {"train_crop_mode": "rkrc"},
    "rkrr": {"train_crop_mode": "rkrr", "interpolation": "random"},
    "bytes": {"normalize": False, "auto_augment": "rand-m9-mstd0.5-inc1"},
    **{f"erasing, {mode}": {"re_prob": 0.8, "re_mode": mode} for mode in ("const", "rand", "pixel")},
    "no augmentation": {"no_aug": True},
    "evaluation": {"is_training": False, "crop_pct": 0.9, "interpolation": "bicubic"},
    "squash": {"is_training": False, "crop_mode": "squash", "crop_pct": 1.0},
    "border": {"is_training": False, "crop_mode": "border"},
    "evaluation, not square": {"is_training": False, "input_size": (3, 40, 32)},
}


@pytest.mark.parametrize("name", RECIPES)
def test_what_the_factory_makes_is_native(name: str, tmp_path: Path) -> None:
    settings = {"input_size": 40, "is_training": True, **RECIPES[name]}
    dataset = datasets.ImageFolder(str(image_folder(tmp_path, 6)), timm_data.create_transform(**settings))
    loader = headrace.DataLoader(dataset, 6, num_workers=2, seed=0)
    assert "python" not in loader.explain(), loader.explain()
    ((images, _),) = loader
    for index in range(6):
        assert torch.equal(images[index], headrace.testing.replay(loader, index))
    if not settings["is_training"]:
        ((expected, _),) = torch.utils.data.DataLoader(dataset, 6)
        assert torch.equal(images, expected)


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
def test_timms_mixing_collate_gets_native_samples(mode: str, tmp_path: Path) -> None:
    mixup = timm_data.FastCollateMixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10, mode=mode)
    transform = timm_data.create_transform(
        40, is_training=True, use_prefetcher=True, auto_augment="augmix-m5"
    )
    dataset = datasets.ImageFolder(str(image_folder(tmp_path, 6)), transform)
    states = []

    def collate(samples: list[Any]) -> Any:
        states.append(np.random.get_state())
        return mixup(samples)

    loader = headrace.DataLoader(dataset, 6, num_workers=2, seed=0, collate_fn=collate)
    assert loader.explain().count("native") > 2
    ((images, targets),) = loader
    samples = [(headrace.testing.replay(loader, i), dataset.targets[i]) for i in range(6)]
    np.random.set_state(states[0])
    expected = mixup(samples)
    assert images.dtype == torch.uint8
    assert torch.equal(images, expected[0])
    assert torch.equal(targets, expected[1])


@pytest.mark.parametrize("mode", ["const", "rand", "pixel"])
def test_erased_boxes_are_timms_for_the_same_numbers(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transform = random_erasing.RandomErasing(0.6, min_area=0.01, mode=mode, max_count=1, device="cpu")
    erase = RandomErasing.read(transform)
    torch.manual_seed(0)  # now and then two of its numbers are equal
    erased = 0
    for index in range(200):
        height, width = 3 + index % 40, 3 + index % 31
        with monkeypatch.context() as patch:
            patch.setattr(random_erasing, "random", StreamRandom(stream(SEED, EPOCH, index, 4)))
            image = transform(torch.full((3, height, width), 7.0))
        keys = BatchKeys(SEED, EPOCH, np.array([index]), np.array([0]))
        ((top, left, high, wide),) = draw_boxes(erase, keys, 4, height, width).tolist()
        changed = torch.zeros(height, width, dtype=torch.bool)
        changed[top : top + high, left : left + wide] = True
        assert torch.equal((image != 7.0).any(0), changed), index
        numbers = image[:, changed].unique()
        per_pixel = high * wide if mode == "pixel" else 1
        assert len(numbers) == (0 if not high * wide else 1 if mode == "const" else 3 * per_pixel)
        assert erase.noise_size(high, wide)[0] * erase.noise_size(high, wide)[1] == (
            1 if mode == "rand" else high * wide
        )
        erased += high * wide > 0
    assert erased > 60


def test_several_boxes_stay_python() -> None:
    transform = random_erasing.RandomErasing(0.5, max_count=3, device="cpu")
    assert "erases up to 3 boxes" in refusal([v1.CenterCrop(8), v1.ToTensor(), transform])


def test_an_operation_of_another_version_stays_python() -> None:
    changed = auto_augment.rand_augment_transform("rand-m9", dict(PARAMS))
    changed.ops[3].level_fn = lambda level, _: (level / 10.0 * 31.0,)
    other = auto_augment.rand_augment_transform("rand-m9", dict(PARAMS))
    other.ops[4].aug_fn = lambda image, *_, **__: image.copy()
    mixed = auto_augment.rand_augment_transform("rand-m9", dict(PARAMS))
    mixed.ops[5].kwargs["fillcolor"] = (0, 0, 0)
    for transform, name in ((changed, "Rotate"), (other, "Posterize"), (mixed, "Solarize")):
        assert name in refusal([transform, v1.CenterCrop(8), v1.ToTensor()])


def reason_of(transform: Any) -> str:
    return refusal([transform, v1.CenterCrop(8), v1.ToTensor()])


def test_a_negative_deviation_is_none_as_in_timm() -> None:
    for deviation in (-1.0, -0.5):
        op = auto_augment.AugmentOp("Rotate", 1.0, 8, {**PARAMS, "magnitude_std": deviation})
        assert read(auto_augment.RandAugment([op])).shared.deviation == 0.0  # type: ignore[attr-defined]


def test_a_policy_that_only_looks_like_autoaugment_is_not() -> None:
    ops = [auto_augment.AugmentOp(name, 1.0, 8, PARAMS) for name in ("Rotate", "Invert")]
    transform = auto_augment.RandAugment(ops, 2)
    expected = read(transform)
    transform.policy = [ops[:1]]
    assert read(transform) == expected


def test_what_numpy_or_timm_raise_for_their_arguments_makes_a_policy_python() -> None:
    inverts = [auto_augment.AugmentOp("Invert", 1.0, 8, PARAMS)]
    weighted = auto_augment.RandAugment(inverts, 1, [7.0])
    assert reason_of(weighted).startswith("numpy.random.choice raises ValueError: probabilities")
    shifted = auto_augment.AugmentOp("TranslateX", 1.0, 8, {"img_mean": (1, 2, 3)})
    assert reason_of(auto_augment.RandAugment([shifted], 1)).startswith("can't be read: KeyError")
