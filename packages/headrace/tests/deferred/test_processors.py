"""Hugging Face processors in datasets and collate functions give the values, sizes and masks they give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import datasets

import headrace
from headrace._native import deferred
from support.equal import same
from support.jpegs import cmyk, image_folder, jpeg

pytest.importorskip(
    "transformers.image_processing_backends",
    reason="transformers isn't installed (pip install 'headrace[integrations]')",
    exc_type=ImportError,
)
import transformers

SMALL = {"height": 48, "width": 40}
# Those that make results of one size.
PROCESSORS: dict[str, Callable[[], Any]] = {
    "ViT": lambda: transformers.ViTImageProcessor(size=SMALL),
    "ViT, bicubic": lambda: transformers.ViTImageProcessor(size=SMALL, resample=3),
    "ViT, rescaled only": lambda: transformers.ViTImageProcessor(size=SMALL, do_normalize=False),
    "ViT, normalized only": lambda: transformers.ViTImageProcessor(size=SMALL, do_rescale=False),
    "ViT, levels": lambda: transformers.ViTImageProcessor(size=SMALL, do_rescale=False, do_normalize=False),
    "ViT, padded": lambda: transformers.ViTImageProcessor(
        size=SMALL, do_pad=True, pad_size={"height": 60, "width": 70}
    ),
    "ViT, other statistics": lambda: transformers.ViTImageProcessor(
        size=SMALL, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.7], rescale_factor=1 / 127
    ),
    "ViT with Pillow": lambda: transformers.ViTImageProcessorPil(size=SMALL),
    "CLIP with Pillow": transformers.CLIPImageProcessorPil,
    "SigLIP with Pillow": lambda: transformers.SiglipImageProcessorPil(size=SMALL),
    "DeiT, a crop larger than the image": lambda: transformers.DeiTImageProcessor(
        size=SMALL, crop_size={"height": 47, "width": 67}
    ),
    "CLIP": transformers.CLIPImageProcessor,
    "ConvNeXT": lambda: transformers.ConvNextImageProcessor(size={"shortest_edge": 65}, crop_pct=0.875),
    "SigLIP": lambda: transformers.SiglipImageProcessor(size=SMALL),
    "SigLIP 2": lambda: transformers.Siglip2ImageProcessor(max_num_patches=64),
    "DINOv2": transformers.BitImageProcessor,
    "BEiT": lambda: transformers.BeitImageProcessor(size=SMALL),
    "RT-DETR": lambda: transformers.RTDetrImageProcessor(size={"height": 96, "width": 96}),
    "EfficientNet": lambda: transformers.EfficientNetImageProcessor(size=SMALL),
}
# Those whose results have the sizes of their images.
RAGGED: dict[str, Callable[[], Any]] = {
    "DETR": lambda: transformers.DetrImageProcessor(size={"shortest_edge": 50, "longest_edge": 90}),
    "Qwen2-VL": lambda: transformers.Qwen2VLImageProcessor(min_pixels=56 * 56, max_pixels=112 * 112),
    "Qwen2-VL, one frame": lambda: transformers.Qwen2VLImageProcessor(
        size={"shortest_edge": 56 * 56, "longest_edge": 84 * 112}, temporal_patch_size=1
    ),
    "Qwen 3": lambda: transformers.Qwen2VLImageProcessor(
        patch_size=16, min_pixels=64 * 64, max_pixels=128 * 128, image_mean=[0.5] * 3, image_std=[0.5] * 3
    ),
    "Qwen2-VL, unmerged": lambda: transformers.Qwen2VLImageProcessor(
        merge_size=1, min_pixels=56 * 56, max_pixels=112 * 112, do_normalize=False
    ),
    "Qwen2-VL with Pillow": lambda: transformers.Qwen2VLImageProcessorPil(
        min_pixels=56 * 56, max_pixels=112 * 112
    ),
    "DETR, padded to a size": lambda: transformers.DetrImageProcessor(
        size={"shortest_edge": 50, "longest_edge": 90}, pad_size={"height": 101, "width": 96}
    ),
    "DETR, levels": lambda: transformers.DetrImageProcessor(
        size={"shortest_edge": 50, "longest_edge": 90}, do_rescale=False, do_normalize=False
    ),
    "DETR with Pillow": lambda: transformers.DetrImageProcessorPil(
        size={"shortest_edge": 50, "longest_edge": 90}
    ),
    **PROCESSORS,
}
# Of one call, in place of the processor's own.
ARGUMENTS: list[dict[str, Any]] = [
    {"image_mean": [0.3, 0.2, 0.1], "do_resize": True},
    {"do_rescale": False},
    {"do_normalize": False, "rescale_factor": 0.5},
    {"size": {"height": 33, "width": 70}, "resample": 0},
    {"disable_grouping": False},
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """JPEGs of all kinds and of odd sizes, and PNGs with transparency."""
    folder = image_folder(tmp_path_factory.mktemp("images"), 6)
    rng = np.random.default_rng(5)
    extra = folder / "class0"
    for number, size in enumerate([(60, 200), (171, 64), (64, 64), (40, 48)]):
        (extra / f"odd{number}.jpg").write_bytes(jpeg(rng, "4:4:4", *size))
    (extra / "cmyk.jpg").write_bytes(cmyk(rng, 77, 54))
    (extra / "gray.jpg").write_bytes(jpeg(rng, "gray", 58, 91))
    rgba = Image.fromarray(rng.integers(0, 256, (45, 71, 4), dtype=np.uint8))
    rgba.save(extra / "alpha.png")
    rgb = Image.fromarray(rng.integers(0, 3, (50, 61, 3), dtype=np.uint8) * 100)
    rgb.save(extra / "transparent.png", transparency=(0, 100, 200))
    return sorted(path for path in folder.rglob("*") if path.is_file())


class Images(Dataset[Any]):
    """Images of files, as they are or as a function makes them."""

    def __init__(self, files: list[Path], process: Callable[[Any], Any] | None, *, convert: bool) -> None:
        self.files, self.process, self.convert = files, process, convert

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        image: Any = Image.open(self.files[index])
        if self.convert:
            image = image.convert("RGB")
        return image if self.process is None else self.process(image)


class Processing:
    """Calls a processor with one image, or with those of a batch."""

    def __init__(self, processor: Any) -> None:
        self.processor = processor

    def __call__(self, images: Any) -> dict[str, Any]:
        result = self.processor(images=images, return_tensors="pt")
        return {key: value[0] if len(value) == 1 else value for key, value in result.items()}


class InBatches(Processing):
    """A collate function as fine-tuning scripts have it."""

    def __call__(self, images: Any) -> dict[str, Any]:
        return dict(self.processor(images=list(images), return_tensors="pt"))


def assert_equal(dataset: Any, **arguments: Any) -> None:
    ours = list(headrace.DataLoader(dataset, num_workers=1, **arguments))
    assert same(ours, list(torch.utils.data.DataLoader(dataset, **arguments)))


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_dataset_that_calls_a_processor_gets_its_values(name: str, files: list[Path]) -> None:
    assert_equal(Images(files, Processing(PROCESSORS[name]()), convert=True), batch_size=5)


@pytest.mark.parametrize("name", RAGGED)
def test_a_collate_function_that_calls_a_processor_gets_its_values(name: str, files: list[Path]) -> None:
    collate = InBatches(RAGGED[name]())
    assert_equal(Images(files, None, convert=True), batch_size=3, collate_fn=collate)


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_arguments_of_a_call_count(arguments: dict[str, Any], files: list[Path]) -> None:
    processor: Any = transformers.ViTImageProcessor(size=SMALL)

    def collate(images: Any) -> dict[str, Any]:
        usual = processor(images=list(images), return_tensors="pt")
        given = processor(images=list(images), return_tensors="pt", **arguments)
        return {"usual": usual["pixel_values"], "given": given["pixel_values"].double()}

    assert_equal(Images(files, None, convert=True), batch_size=3, collate_fn=collate)


class OtherPatches(transformers.Qwen2VLImageProcessor):
    """Cuts images in an order of its own."""

    def patchify(self, images: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        patches, rows, columns = super().patchify(images.flip(-1), *args, **kwargs)
        return patches.flip(1), rows, columns


def test_patches_of_ones_own(files: list[Path]) -> None:
    collate = InBatches(OtherPatches(min_pixels=56 * 56, max_pixels=112 * 112))
    assert_equal(Images(files, None, convert=True), batch_size=3, collate_fn=collate)


def mode_of(path: Path) -> str:
    with Image.open(path) as image:
        return image.mode


@pytest.mark.parametrize("do_convert_rgb", [False, True])
def test_gray_and_transparent_images_are_what_the_processor_makes_of_them(
    do_convert_rgb: bool, files: list[Path]
) -> None:
    process = Processing(transformers.CLIPImageProcessor(do_convert_rgb=do_convert_rgb))
    kept = [path for path in files if do_convert_rgb or mode_of(path) == "RGB"]
    assert_equal(Images(kept, process, convert=False), batch_size=1)


@pytest.mark.parametrize("name", ["CLIP", "ConvNeXT"])
def test_a_folder_with_a_processor_as_its_transform_gets_its_values(name: str, files: list[Path]) -> None:
    process = Processing(PROCESSORS[name]())
    folder = datasets.ImageFolder(str(files[0].parent.parent), lambda image: process(image)["pixel_values"])
    loader = headrace.DataLoader(folder, 5, num_workers=1)
    for (ours, _), (theirs, _) in zip(loader, torch.utils.data.DataLoader(folder, 5), strict=True):
        assert torch.equal(ours, theirs)


class Brighter(transformers.ViTImageProcessor):
    """Has methods of its own."""

    def rescale_and_normalize(self, images: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().rescale_and_normalize(images, *args, **kwargs) + 1

    def resize(self, image: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return 255 - super().resize(image, *args, **kwargs)


def replaced() -> Any:
    processor: Any = transformers.ViTImageProcessor(size=SMALL)
    resize = processor.resize
    processor.resize = lambda image, **kwargs: resize(image.flip(1), **kwargs)
    return processor


def normalizing_otherwise() -> Any:
    processor: Any = transformers.ViTImageProcessor(size=SMALL)
    normalize = processor.normalize
    processor.normalize = lambda *args, **kwargs: normalize(*args, **kwargs).neg_()
    return processor


@pytest.mark.parametrize("make", [lambda: Brighter(size=SMALL), replaced, normalizing_otherwise])
def test_methods_of_ones_own_are_called(make: Callable[[], Any], files: list[Path]) -> None:
    assert_equal(Images(files, Processing(make()), convert=True), batch_size=5)


def test_changed_settings_take_effect_in_the_next_epoch(files: list[Path]) -> None:
    process = Processing(transformers.ViTImageProcessor(size=SMALL))
    dataset = Images(files, process, convert=True)
    loader = headrace.DataLoader(dataset, 5, num_workers=1)
    before = list(loader)
    process.processor.image_mean = (0.1, 0.2, 0.3)
    for ours, theirs in zip(loader, torch.utils.data.DataLoader(dataset, 5), strict=True):
        assert torch.equal(ours["pixel_values"], theirs["pixel_values"])
    assert not torch.equal(before[0]["pixel_values"], ours["pixel_values"][:1])


@pytest.mark.parametrize("name", ["ViT", "CLIP", "SigLIP"])
def test_native_code_makes_the_values(name: str, files: list[Path]) -> None:
    process = Processing(PROCESSORS[name]())
    jpegs = [path for path in files if path.suffix == ".jpg" and mode_of(path) == "RGB"][:5]
    each = headrace.DataLoader(Images(jpegs, process, convert=True), 5, num_workers=1)
    together = headrace.DataLoader(
        Images(jpegs, None, convert=True), 5, num_workers=1, collate_fn=InBatches(process.processor)
    )
    for loader in (each, together):
        list(loader)
        text = " ".join(loader.explain().split())
        assert "writes the tensors (5 images, 5 tensors" in text, text


@pytest.mark.parametrize("name", ["Qwen2-VL", "Qwen 3", "DETR"])
def test_native_code_makes_patches_and_padded_images(name: str, files: list[Path]) -> None:
    if name == "DETR" and tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 24):
        pytest.skip("DETR of older ones, such as 5.17, runs as written")
    collate = InBatches(RAGGED[name]())
    jpegs = [path for path in files if path.suffix == ".jpg" and mode_of(path) == "RGB"][:5]

    def state(images: Any) -> int:
        batch = collate(images)
        return deferred.state(batch["pixel_values"].data_ptr())

    loader = headrace.DataLoader(Images(jpegs, None, convert=True), 5, num_workers=1, collate_fn=state)
    assert list(loader) == [deferred.UNTOUCHED]
