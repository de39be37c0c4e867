"""Hugging Face image processors: native batches have the bits of the processor itself."""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import datasets
from torchvision import transforms as v1

import headrace
import headrace.testing
from support.extras import integration
from support.jpegs import cmyk, image_folder, jpeg

pytest.importorskip(
    "transformers.image_processing_backends",
    reason="transformers isn't installed (pip install 'headrace[integrations]')",
    exc_type=ImportError,
)
import transformers
from transformers.image_processing_utils import BaseImageProcessor

SMALL = {"height": 48, "width": 40}
PROCESSORS: dict[str, Callable[[], Any]] = {
    "ViT": transformers.ViTImageProcessor,
    "ViT of another size": lambda: transformers.ViTImageProcessor(size=SMALL, resample=3),
    "ViT, rescaled only": lambda: transformers.ViTImageProcessor(size=SMALL, do_normalize=False),
    "ViT, normalized only": lambda: transformers.ViTImageProcessor(size=SMALL, do_rescale=False),
    "ViT, levels": lambda: transformers.ViTImageProcessor(size=SMALL, do_rescale=False, do_normalize=False),
    "ViT, statistics": lambda: transformers.ViTImageProcessor(
        size=SMALL, image_mean=[0.1, 0.2, 0.3], image_std=[0.3, 0.2, 0.1], rescale_factor=1 / 127.5
    ),
    "DeiT": transformers.DeiTImageProcessor,
    "DeiT, crop larger than the image": lambda: transformers.DeiTImageProcessor(
        size=SMALL, crop_size={"height": 47, "width": 67}
    ),
    "ConvNeXT, crop_pct": lambda: transformers.ConvNextImageProcessor(
        size={"shortest_edge": 65}, crop_pct=0.875
    ),
    "ConvNeXT, warped": transformers.ConvNextImageProcessor,
    "CLIP": transformers.CLIPImageProcessor,
    "CLIP, only cropped": lambda: transformers.CLIPImageProcessor(do_resize=False, crop_size=SMALL),
    "SigLIP": lambda: transformers.SiglipImageProcessor(size=SMALL),
    "DINOv2": transformers.BitImageProcessor,
    "BEiT": lambda: transformers.BeitImageProcessor(size=SMALL),
    "BEiT, cropped": lambda: transformers.BeitImageProcessor(
        size={"height": 51, "width": 52}, crop_size={"height": 40, "width": 39}, do_center_crop=True
    ),
    "nearest, as torch has it": lambda: transformers.ViTImageProcessor(
        size=SMALL, resample=v1.InterpolationMode.NEAREST
    ),
}


def pixel_values(image: Any, processor: Any) -> Any:
    return processor(image, return_tensors="pt")["pixel_values"][0]


class Processing:
    """A class around a processor."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, image: Image.Image) -> torch.Tensor:
        inputs = self.processor(images=image.convert("RGB"), return_tensors="pt")
        return inputs.pixel_values.squeeze(0)

    def method(self, image: Image.Image) -> torch.Tensor:
        image = image.convert("RGB")
        values: torch.Tensor = self.processor(image, return_tensors="pt")["pixel_values"].squeeze()
        return values


def closure(processor: Any) -> Callable[[Any], Any]:
    return lambda im: processor(im.convert("RGB"), return_tensors="pt").pixel_values[0]


VIT = transformers.ViTImageProcessor(size=SMALL)
FORMS: dict[str, Any] = {
    "a lambda of a global": lambda im: VIT(im, return_tensors="pt")["pixel_values"][0],
    "a closure": closure(VIT),
    "a default": lambda im, processor=VIT: processor(images=im, return_tensors="pt")["pixel_values"][0],
    "partial with a keyword": functools.partial(pixel_values, processor=VIT),
    "partial of the first": functools.partial(lambda p, im: p(im, return_tensors="pt").pixel_values[0], VIT),
    "an object": Processing(VIT),
    "a method": Processing(VIT).method,
    "Lambda": v1.Lambda(lambda im: VIT(im, return_tensors="pt")["pixel_values"][0]),
    "in a Compose": v1.Compose([v1.Resize((60, 70)), closure(VIT)]),
}


def pixel_values_of(owner: Any, image: Any) -> Any:
    return owner.processor(image, return_tensors="pt")["pixel_values"][0]


FORMS["an object of an object"] = functools.partial(pixel_values_of, Processing(VIT))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of all kinds and odd sizes, CMYK, gray, and PNGs with alpha and a palette."""
    folder = image_folder(tmp_path_factory.mktemp("images"), 8)
    rng = np.random.default_rng(5)
    extra = folder / "class0"
    for number, size in enumerate([(33, 200), (171, 34), (64, 64), (1, 3), (40, 48)]):
        (extra / f"odd{number}.jpg").write_bytes(jpeg(rng, "4:4:4", *size))
    (extra / "cmyk.jpg").write_bytes(cmyk(rng, 77, 54))
    (extra / "gray.jpg").write_bytes(jpeg(rng, "gray", 58, 91))
    rgba = Image.fromarray(rng.integers(0, 256, (45, 71, 4), dtype=np.uint8))
    rgba.save(extra / "alpha.png")
    rgba.convert("RGB").quantize(64).save(extra / "palette.png")
    return folder


def batches(loader: Any) -> list[torch.Tensor]:
    return [images for images, _ in loader]


def assert_native_and_equal(root: Path, transform: Any) -> None:
    dataset = datasets.ImageFolder(str(root), transform)
    loader = headrace.DataLoader(dataset, 5, num_workers=2)
    assert "python" not in loader.explain(), loader.explain()
    expected = batches(torch.utils.data.DataLoader(dataset, 5))
    found = batches(loader)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def assert_python_and_equal(root: Path, transform: Any, reason: str) -> None:
    dataset = datasets.ImageFolder(str(root), transform)
    loader = headrace.DataLoader(dataset, 5, num_workers=2)
    assert reason in " ".join(loader.plan().reasons), loader.explain()
    for ours, theirs in zip(batches(loader), batches(torch.utils.data.DataLoader(dataset, 5)), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processors_values_are_made_natively(name: str, root: Path) -> None:
    assert_native_and_equal(root, closure(PROCESSORS[name]()))


@pytest.mark.parametrize("name", FORMS)
def test_calls_of_a_processor_are_recognized_in_the_usual_forms(name: str, root: Path) -> None:
    assert_native_and_equal(root, FORMS[name])


def test_every_margin_of_a_center_crop_is_that_of_the_processor(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    (tmp_path / "a").mkdir()
    for number in range(8):
        image = Image.fromarray(rng.integers(0, 256, (40 + number, 40 + 3 * number, 3), dtype=np.uint8))
        image.save(tmp_path / "a" / f"{number}.png")
    crop = {"height": 40, "width": 40}
    processor = transformers.DeiTImageProcessor(do_resize=False, crop_size=crop)
    assert_native_and_equal(tmp_path, closure(processor))


ENLARGED = v1.Resize((60, 70), interpolation=v1.InterpolationMode.NEAREST)  # of the same colors


@pytest.mark.parametrize("do_convert_rgb", [False, True])
@pytest.mark.parametrize("before", [[], [v1.RandomHorizontalFlip(1.0)], [ENLARGED]], ids=str)
def test_transparent_colors_are_white_where_the_processor_converts(
    do_convert_rgb: bool, before: list[Any], tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    (tmp_path / "a").mkdir()
    levels = rng.integers(0, 3, (50, 61, 3), dtype=np.uint8) * 100
    image = Image.fromarray(levels)
    image.save(tmp_path / "a" / "rgb.png", transparency=tuple(levels[0, 0].tolist()))
    image.convert("L").save(
        tmp_path / "a" / "gray.png", transparency=int(np.asarray(image.convert("L"))[0, 0])
    )
    image.quantize(20).save(tmp_path / "a" / "palette.png", transparency=3)
    image.save(tmp_path / "a" / "opaque.png")
    image.quantize(20).save(tmp_path / "a" / "image.gif", transparency=3)
    (tmp_path / "a" / "image.jpg").write_bytes(jpeg(rng, "4:2:0", 70, 50))
    processor = transformers.CLIPImageProcessor(do_convert_rgb=do_convert_rgb)
    plain = transformers.CLIPImageProcessor(do_convert_rgb=not do_convert_rgb)
    transform = v1.Compose([*before, closure(processor)])
    extensions = (".png", ".gif", ".jpg")
    dataset = datasets.DatasetFolder(str(tmp_path), datasets.folder.pil_loader, extensions, transform)
    loader = headrace.DataLoader(dataset, 6, num_workers=2)
    assert "python" not in loader.explain(), loader.explain()
    ((ours, _),) = loader
    expected = torch.stack([image for image, _ in dataset])
    assert torch.equal(ours, expected)
    for index in range(6):
        assert torch.equal(headrace.testing.replay(loader, index), expected[index])
    dataset.transform = v1.Compose([*before, closure(plain)])
    assert not torch.equal(torch.stack([image for image, _ in dataset]), expected)


class Larger(transformers.ViTImageProcessor):
    """Has other defaults only."""

    size: ClassVar[dict[str, int]] = {"height": 60, "width": 60}


class Brighter(transformers.ViTImageProcessor):
    """Has a method of its own."""

    def rescale_and_normalize(self, images: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().rescale_and_normalize(images, *args, **kwargs) + 1


class Half(transformers.ConvNextImageProcessor):
    """Has other defaults, and a method that nothing of the processor's calls."""

    size: ClassVar[dict[str, int]] = {"shortest_edge": 56}
    crop_pct = 0.5

    def describe(self) -> str:
        return "half"


class Growing(transformers.ViTImageProcessor):
    """Has a setting that changes by itself."""

    @property
    def rescale_factor(self) -> float:
        return random.random()

    @rescale_factor.setter
    def rescale_factor(self, value: float) -> None:
        pass


class Beforehand(BaseImageProcessor):
    """Stands between a processor and the base class of all of them."""

    def preprocess(self, images: Any, *args: Any, **kwargs: Any) -> Any:
        return super().preprocess(images.rotate(180), *args, **kwargs)


class Turned(transformers.ViTImageProcessor, Beforehand):
    """Turns images by inheritance alone."""


@pytest.mark.parametrize("kind", [Larger, Half])
def test_a_subclass_with_other_defaults_is_native(kind: Any, root: Path) -> None:
    assert_native_and_equal(root, closure(kind()))


def test_a_property_as_a_setting_runs_as_python(root: Path) -> None:
    loader = headrace.DataLoader(datasets.ImageFolder(str(root), closure(Growing())), 5, num_workers=2)
    assert "Growing has its own rescale_factor" in " ".join(loader.plan().reasons)


def replaced() -> Any:
    processor = transformers.ViTImageProcessor(size=SMALL)
    resize = processor.resize
    processor.resize = lambda image, **kwargs: 255 - resize(image, **kwargs)
    return processor


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a method of its own": (Brighter, "has its own rescale_and_normalize"),
    "a method of another base": (Turned, "has its own preprocess"),
    "a replaced method": (replaced, "resize of the processor was replaced"),
    "padding": (
        lambda: transformers.ViTImageProcessor(size=SMALL, do_pad=True, pad_size={"height": 60, "width": 60}),
        "do_pad=True has no native form",
    ),
    "nearest of Pillow's": (
        lambda: transformers.ViTImageProcessor(size=SMALL, resample=0),
        "interpolation 'nearest-exact' has no native form",
    ),
    "a limit to the longer edge": (
        lambda: transformers.DeiTImageProcessor(
            size={"shortest_edge": 40, "longest_edge": 60}, crop_size={"height": 30, "width": 30}
        ),
        "only height and width, or shortest_edge, run natively",
    ),
    "Pillow's backend": (lambda: transformers.ViTImageProcessorPil(size=SMALL), "no native implementation"),
    "labels": (
        lambda: transformers.BeitImageProcessor(size=SMALL, do_reduce_labels=True),
        "do_reduce_labels=True has no native form",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_unusual_runs_as_python_with_a_reason(name: str, root: Path) -> None:
    make, reason = REFUSED[name]
    processor = make()

    def transform(image: Any) -> Any:
        return torch.as_tensor(processor(image, return_tensors="pt")["pixel_values"][0])

    def plain(image: Any) -> Any:
        return processor(image, return_tensors="pt")["pixel_values"][0]

    assert_python_and_equal(root, plain, reason)
    assert_python_and_equal(root, transform, "no native implementation")


OTHERS: dict[str, Any] = {
    "an argument": lambda im: VIT(im, return_tensors="pt", do_normalize=False)["pixel_values"][0],
    "arithmetic": lambda im: VIT(im, return_tensors="pt")["pixel_values"][0] * 2,
    "another conversion": lambda im: VIT(im.convert("L").convert("RGB"), return_tensors="pt").pixel_values[0],
    "a rotation": lambda im: VIT(im.rotate(90), return_tensors="pt")["pixel_values"][0],
    "the last": lambda im: VIT(im, return_tensors="pt")["pixel_values"][-1],
    "two images": lambda im: VIT([im, im], return_tensors="pt")["pixel_values"][0],
}


@pytest.mark.parametrize("name", OTHERS)
def test_functions_that_do_anything_else_run_as_python(name: str, root: Path) -> None:
    assert_python_and_equal(root, OTHERS[name], "no native implementation")


def test_a_processor_after_a_step_that_may_give_anything_runs_as_python(root: Path) -> None:
    half = v1.Lambda(lambda image: image.reduce(2) if min(image.size) > 1 else image)
    assert_python_and_equal(root, v1.Compose([half, closure(VIT)]), "comes after a step that may not give")


HELD: dict[str, Callable[[Any], Any]] = {
    "closure": closure,
    "partial": lambda processor: functools.partial(pixel_values, processor=processor),
    "attribute": Processing,
    "default": lambda given: lambda im, p=given: p(im, return_tensors="pt").pixel_values[0],
}


@pytest.mark.parametrize("held", HELD)
def test_changed_settings_take_effect_in_the_next_epoch(held: str, root: Path) -> None:
    processor = transformers.ViTImageProcessor(size=SMALL)
    dataset = datasets.ImageFolder(str(root), HELD[held](processor))
    loader = headrace.DataLoader(dataset, 5, num_workers=2)
    before = batches(loader)
    processor.image_mean = (0.1, 0.2, 0.3)
    after = batches(loader)
    for ours, theirs in zip(after, batches(torch.utils.data.DataLoader(dataset, 5)), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(before[0], after[0])


def squeezed(image: Any, processor: Any) -> Any:
    return processor(image, return_tensors="pt")["pixel_values"].squeeze()


def test_each_form_of_a_call_is_compared_for_itself(root: Path) -> None:
    flat = transformers.ViTImageProcessor(size={"height": 1, "width": 40})
    assert_native_and_equal(root, functools.partial(pixel_values, processor=flat))
    assert_python_and_equal(root, functools.partial(squeezed, processor=flat), "gives other values")
    assert_native_and_equal(root, functools.partial(pixel_values, processor=flat))


def gray(path: str) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("L")


GRAY: dict[str, Callable[[], Any]] = {
    "converted": lambda: transformers.CLIPImageProcessor(),
    "one mean": lambda: transformers.ViTImageProcessor(size=SMALL, image_mean=[0.5], image_std=[0.25]),
    "rescaled only": lambda: transformers.ViTImageProcessor(size=SMALL, do_normalize=False),
    "cropped": lambda: transformers.DeiTImageProcessor(do_resize=False, do_normalize=False, crop_size=SMALL),
}


@pytest.mark.parametrize("name", GRAY)
def test_gray_images_are_what_the_processor_makes_of_them(name: str, root: Path) -> None:
    processor = GRAY[name]()
    transform = functools.partial(pixel_values, processor=processor)
    dataset = datasets.ImageFolder(str(root), transform, loader=gray)
    found = batches(headrace.DataLoader(dataset, 5, num_workers=2))
    for ours, theirs in zip(found, batches(torch.utils.data.DataLoader(dataset, 5)), strict=True):
        assert torch.equal(ours, theirs)


def brightest(values: torch.Tensor) -> torch.Tensor:
    return values.flatten(1).max(1).values


def test_steps_behind_a_processor_get_its_values(root: Path, tmp_path: Path) -> None:
    root = shutil.copytree(root, tmp_path / "images")
    rng = np.random.default_rng(3)
    levels = rng.integers(0, 3, (50, 61, 3), dtype=np.uint8) * 100
    image = Image.fromarray(levels)
    image.save(root / "class0" / "white.png", transparency=tuple(levels[0, 0].tolist()))
    transform = v1.Compose([closure(transformers.CLIPImageProcessor()), brightest])
    dataset = datasets.ImageFolder(str(root), transform)
    found = batches(headrace.DataLoader(dataset, 5, num_workers=2))
    for ours, theirs in zip(found, batches(torch.utils.data.DataLoader(dataset, 5)), strict=True):
        assert torch.equal(ours, theirs)


class Own(Dataset[Any]):
    """Calls a processor in `__getitem__`."""

    def __init__(self, root: Path, processor: Any) -> None:
        self.paths = [path for path, _ in datasets.ImageFolder(str(root)).samples]
        self.processor = processor

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as image:
            inputs = self.processor(image.convert("RGB"), return_tensors="pt")
        return inputs["pixel_values"][0], index


@pytest.mark.parametrize("name", ["ViT", "CLIP", "ConvNeXT, crop_pct"])
def test_a_dataset_that_calls_a_processor_gets_its_values(name: str, root: Path) -> None:
    dataset = Own(root, PROCESSORS[name]())
    loader = headrace.DataLoader(dataset, 5, num_workers=2)
    for ours, theirs in zip(batches(loader), batches(torch.utils.data.DataLoader(dataset, 5)), strict=True):
        assert torch.equal(ours, theirs)


def test_with_transform_of_a_hugging_face_dataset_gets_a_processors_values(root: Path) -> None:
    hf = integration("datasets")
    processor = transformers.CLIPImageProcessor()
    paths = [path for path, _ in datasets.ImageFolder(str(root)).samples]

    def prepare(rows: dict[str, Any]) -> dict[str, Any]:
        images = [image.convert("RGB") for image in rows["image"]]
        return {"pixel_values": processor(images, return_tensors="pt")["pixel_values"]}

    features = hf.Features({"image": hf.Image()})
    dataset = hf.Dataset.from_dict({"image": paths}, features=features).with_transform(prepare)
    found = list(headrace.DataLoader(dataset, 5, num_workers=2))
    expected = list(torch.utils.data.DataLoader(dataset, 5))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours["pixel_values"], theirs["pixel_values"])


def test_replay_gives_what_the_processor_gives(root: Path) -> None:
    dataset = datasets.ImageFolder(str(root), closure(PROCESSORS["CLIP"]()))
    loader = headrace.DataLoader(dataset, 5, num_workers=2, seed=1)
    for index in range(len(dataset)):
        assert torch.equal(headrace.testing.replay(loader, index, 0), dataset[index][0])
