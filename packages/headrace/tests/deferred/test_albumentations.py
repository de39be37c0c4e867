"""Datasets that read with OpenCV and augment with albumentations: torch's batches, bit for bit."""

from __future__ import annotations

import importlib
import io
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data

import headrace
from headrace._native import deferred as memory
from support.deferred_images import needs_native
from support.equal import same
from support.jpegs import jpeg

cv2 = pytest.importorskip("cv2", reason="OpenCV isn't installed")
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it asks PyPI otherwise
albumentations = pytest.importorskip("albumentations", reason="albumentations isn't installed")
opencv = importlib.import_module("headrace.deferred.opencv")
from support.opencv_datasets import IS_X  # noqa: E402  (which imports them)

COUNT = 24
NAMES = ("crop", "resize and jitter", "one of blurs", "shifts", "letterbox")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    folder = tmp_path_factory.mktemp("files")
    images, masks = [], []
    for i in range(COUNT):
        rng = np.random.default_rng(i)
        width, height = map(int, rng.integers(70, 160, 2))
        images.append(folder / f"{i}.jpg")
        images[-1].write_bytes(jpeg(rng, "4:2:0", width, height))
        mask = io.BytesIO()
        Image.fromarray(rng.integers(0, 21, (height, width), dtype=np.uint8)).save(mask, "PNG")
        masks.append(folder / f"{i}.png")
        masks[-1].write_bytes(mask.getvalue())
    return images, masks


def batches(kind: Any, dataset: Any, **arguments: Any) -> Any:
    torch.manual_seed(0)
    return list(kind(dataset, batch_size=4, num_workers=2, **arguments))


@pytest.mark.parametrize("pairs", [False, True], ids=["images", "pairs"])
@pytest.mark.parametrize("pipeline", NAMES)
def test_batches_are_those_of_torchs_loader(files: Any, pipeline: str, pairs: bool) -> None:
    from support.opencv_datasets import Augmented

    dataset = Augmented(files[0], pipeline, files[1] if pairs else ())
    ours, theirs = (batches(kind, dataset) for kind in (headrace.DataLoader, data.DataLoader))
    assert same(ours, theirs)


def named(**ranges: tuple[float, float]) -> dict[str, Any]:
    """Arguments of `ColorJitter`."""
    return {f"{name}_range" if IS_X else name: each for name, each in ranges.items()}


# By name: arguments. Each stays late, whatever it draws.
LATE: dict[str, tuple[dict[str, Any], ...]] = {
    "RandomResizedCrop": ({"size": (50, 40)},),
    "Resize": ({"height": 33, "width": 90}, {"height": 33, "width": 30, "interpolation": 3}),
    **dict.fromkeys(("SmallestMaxSize", "LongestMaxSize"), ({"max_size": 61},)),
    "PadIfNeeded": tuple({"min_height": 150, "min_width": 170, "border_mode": mode} for mode in range(3)),
    **dict.fromkeys(("RandomCrop", "CenterCrop"), ({"height": 30, "width": 41},)),
    **dict.fromkeys(("HorizontalFlip", "VerticalFlip", "D4", "RandomRotate90", "Transpose"), ({},)),
    "Rotate": ({}, {"border_mode": 4}, {"interpolation": 0, "fill": (9, 8, 7)}),
    "SafeRotate": ({},),
    "Affine": ({"scale": (0.8, 1.2), "rotate": (-20, 20), "shear": (-5, 5)},),
    "Perspective": ({}, {"border_mode": 4, "keep_size": False}),
    **dict.fromkeys(("RandomBrightnessContrast", "HueSaturationValue", "RandomGamma", "ToGray"), ({},)),
    **dict.fromkeys(("InvertImg", "Solarize", "Posterize", "RGBShift", "Normalize"), ({},)),
    "ColorJitter": (
        {},
        named(contrast=(0.2, 3), saturation=(0.2, 3), hue=(-0.5, 0.5)),
        named(saturation=(0, 0)),
        named(brightness=(1, 1), hue=(0, 0)),
    ),
    "GaussianBlur": ({}, {"blur_range": (3, 7)} if IS_X else {"blur_limit": (3, 7), "sigma_limit": (0.3, 5)}),
    "CoarseDropout": ({}, {"num_holes_range": (20, 30), "fill": (1, 2, 3)}),
}


@pytest.fixture
def recording() -> Iterator[None]:
    opencv.start()
    importlib.import_module("headrace.deferred.albumentations").start()
    yield
    opencv.stop()


@pytest.mark.parametrize("name", LATE)
@pytest.mark.usefixtures("recording")
def test_each_transform_is_recorded_and_gives_its_own_pixels(name: str) -> None:
    needs_native("PNG")
    file = np.frombuffer(jpeg(np.random.default_rng(0), "4:2:0", 120, 100), np.uint8)
    always = {} if name in ("PadIfNeeded", "Normalize") else {"p": 1.0}
    for arguments, seed in itertools.product(LATE[name], range(4)):
        transform = getattr(albumentations, name)(**arguments, **always)
        pipeline = albumentations.Compose([transform, albumentations.ToTensorV2()], seed=seed)
        late, other = (cv2.cvtColor(cv2.imdecode(file, 1), cv2.COLOR_BGR2RGB) for _ in range(2))
        ours = pipeline(image=late)["image"]
        assert memory.state(ours.data_ptr()) == memory.UNTOUCHED
        pipeline.set_random_seed(seed)
        assert same(ours, pipeline(image=other.copy())["image"])


@pytest.mark.usefixtures("recording")
def test_gray_images_and_masks_are_recorded() -> None:
    needs_native("PNG")
    file = np.frombuffer(jpeg(np.random.default_rng(0), "4:2:0", 120, 100), np.uint8)
    names = (
        "RandomResizedCrop",
        "HorizontalFlip",
        "Rotate",
        "Transpose",
        "RandomBrightnessContrast",
        "CoarseDropout",
    )
    steps = [getattr(albumentations, name)(**LATE[name][0], p=0.8) for name in names]
    end = [albumentations.Normalize(mean=(0.5,), std=(0.2,)), albumentations.ToTensorV2()]
    pipeline = albumentations.Compose([*steps, *end])
    for seed in range(8):
        late, other = (cv2.imdecode(file, cv2.IMREAD_GRAYSCALE) for _ in range(2))
        mask = cv2.imdecode(file, cv2.IMREAD_GRAYSCALE)
        pipeline.set_random_seed(seed)
        ours = pipeline(image=late, mask=mask)
        assert all(memory.state(ours[name].data_ptr()) == memory.UNTOUCHED for name in ("image", "mask"))
        pipeline.set_random_seed(seed)
        assert same(ours, pipeline(image=other.copy(), mask=other.copy()))


@pytest.mark.usefixtures("recording")
def test_functions_that_change_their_image_still_do() -> None:
    albucore = importlib.import_module("albucore")
    table = np.arange(255, -1, -1, dtype=np.uint8)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    for inplace in (True, False):
        late = cv2.imdecode(cv2.imencode(".png", pixels)[1], cv2.IMREAD_COLOR)
        result = albucore.sz_lut(late, table, inplace)
        assert np.array_equal(result, 255 - pixels)
        assert np.array_equal(late, 255 - pixels if inplace else pixels)


@pytest.mark.skipif(IS_X, reason="those of AlbumentationsX are copies")
@pytest.mark.usefixtures("recording")
def test_quarter_turns_are_views() -> None:
    functional = importlib.import_module("albumentations.augmentations.geometric.functional")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    for turn in (functional.transpose, lambda image: functional.rot90(image, 1)):
        late = cv2.imdecode(cv2.imencode(".png", pixels)[1], cv2.IMREAD_COLOR)
        assert np.shares_memory(turn(late), late)


@pytest.mark.usefixtures("recording")
def test_what_is_recorded_follows_the_order_of_an_arrays_channels() -> None:
    functional = importlib.import_module("albumentations.augmentations.pixel.functional")
    dropout = importlib.import_module("albumentations.augmentations.dropout.functional")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    holes = np.array([[3, 4, 9, 20], [0, 0, 0, 0], [29, 1, 30, 2]])
    factors, flat = (0.0, 0.3, 1.0, 1.7), pixels[..., 0]
    if IS_X:
        flat = flat[..., None]  # which it wants
        jitter = functional.apply_brightness_contrast_torchvision
        contrasts: list[Any] = [
            (jitter, *each) for each in itertools.product(factors, factors, (False, True))
        ]
    else:
        contrasts = [(functional.adjust_contrast_torchvision, factor) for factor in factors]
    calls: list[Any] = [
        *contrasts,
        *((functional.adjust_saturation_torchvision, factor) for factor in factors),
        *((functional.adjust_hue_torchvision, factor) for factor in (-0.2, 0, 0.3)),
        *((dropout.cutout, holes, fill, None) for fill in (7, (1, 2, 3), [9, 8, 7])),
        (dropout.cutout, np.array([[-5, 4, 9, 20]]), 7, None),
    ]
    for function, *arguments in calls:
        late = cv2.imdecode(cv2.imencode(".png", pixels)[1], cv2.IMREAD_COLOR)
        gray = cv2.imdecode(cv2.imencode(".png", flat)[1], cv2.IMREAD_GRAYSCALE).reshape(flat.shape)
        assert np.array_equal(function(late, *arguments), function.__wrapped__(pixels.copy(), *arguments))
        if arguments[1:2] not in ([(1, 2, 3)], [[9, 8, 7]]):
            plain = function.__wrapped__(flat.copy(), *arguments)
            assert np.array_equal(function(gray, *arguments), plain)


def test_functions_that_the_program_replaced_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    functional = importlib.import_module("albumentations.augmentations.pixel.functional")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    original, shift = cv2.cvtColor, functional.shift_hsv

    def mine(image: Any) -> Any:
        return image // 2

    def converted(image: Any, code: int) -> Any:
        return 255 - original(image, code)

    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

    monkeypatch.setattr(functional, "invert", mine)
    monkeypatch.setattr(functional, "posterize", Unhashable())
    monkeypatch.delitem(sys.modules, "headrace.deferred.albumentations", raising=False)
    monkeypatch.setattr(cv2, "cvtColor", converted)
    monkeypatch.setattr(opencv, "_verdicts", {})
    expected = shift(pixels, 10, 20, 30)
    opencv.start()
    importlib.import_module("headrace.deferred.albumentations").start()
    try:
        assert functional.invert is mine
        late = cv2.imdecode(cv2.imencode(".png", pixels)[1], cv2.IMREAD_COLOR)
        assert np.array_equal(functional.shift_hsv(late, 10, 20, 30), expected)
    finally:
        opencv.stop()


def test_explain_says_what_runs_natively(files: Any) -> None:
    needs_native("PNG")
    from support.opencv_datasets import Augmented

    loader = headrace.DataLoader(Augmented(files[0], "crop"), batch_size=4, num_workers=2)
    list(loader)
    text = str(loader.explain())
    assert "native code decodes and transforms them, and writes the tensors" in text
    assert "gives other values" not in text


def test_arrays_may_be_changed_kept_and_written(files: Any, tmp_path: Path) -> None:
    from support.opencv_datasets import Careless

    dataset = Careless(files[0], tmp_path)
    ours, theirs = (batches(kind, dataset) for kind in (headrace.DataLoader, data.DataLoader))
    assert same(ours, theirs)


def test_workers_know_what_earlier_ones_compared(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_native("PNG")
    from support.opencv_datasets import Augmented

    monkeypatch.setattr(opencv, "_verdicts", {})
    loader = headrace.DataLoader(Augmented(files[0], "crop"), batch_size=4, num_workers=2)
    list(loader)
    monkeypatch.setattr(opencv, "_fits", lambda name: False)  # which workers that compare again would get
    list(loader)
    assert "gives other values" not in loader.explain()


def test_versions_with_other_modules_run_as_written(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from support.opencv_datasets import Augmented

    monkeypatch.delitem(sys.modules, "headrace.deferred.albumentations", raising=False)
    monkeypatch.setitem(sys.modules, "albumentations.augmentations.pixel", None)  # 1.4 has none
    dataset = Augmented(files[0], "crop")
    ours, theirs = (batches(kind, dataset) for kind in (headrace.DataLoader, data.DataLoader))
    assert same(ours, theirs)
