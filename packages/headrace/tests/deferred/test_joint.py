"""Images with boxes or masks: presets of torchvision's references for detection and segmentation."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, default_collate
from torchvision import datasets, tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F  # noqa: N812  (torchvision's own name for it)

import headrace
from headrace._native import deferred
from support.deferred_images import needs_native
from support.equal import same
from support.jpegs import jpeg
from support.pngs import GRAY, PALETTE, png

SAMPLES = 10
TO_FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
NORMALIZE = v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
FLIP = v2.RandomHorizontalFlip(0.5)
END = [*TO_FLOAT, v2.ConvertBoundingBoxFormat("XYXY"), v2.SanitizeBoundingBoxes(), v2.ToPureTensor()]

DETECTION: dict[str, list[Any]] = {
    "hflip": [FLIP, *END],
    "hflip on tensors": [v2.PILToTensor(), FLIP, *END],
    "lsj": [v2.ScaleJitter((96, 96)), v2.RandomCrop((80, 80), pad_if_needed=True), FLIP, *END],
    "multiscale": [v2.RandomShortestSize([40, 48, 56], max_size=90), FLIP, *END],
    "ssd": [
        v2.RandomPhotometricDistort(),
        v2.RandomZoomOut(fill={tv_tensors.Image: (123, 117, 104), Image.Image: (123, 117, 104), "others": 0}),
        v2.RandomIoUCrop(),
        FLIP,
        *END,
    ],
    "ssdlite": [v2.RandomIoUCrop(), FLIP, *END],
    "ssdlite on tensors": [v2.ToImage(), v2.RandomIoUCrop(), FLIP, *END],
    "resized": [v2.Resize((48, 56)), FLIP, *TO_FLOAT, NORMALIZE, v2.SanitizeBoundingBoxes()],
}
SEGMENTATION: dict[str, list[Any]] = {
    name: [
        *first,
        v2.RandomResize(30, 70),
        FLIP,
        v2.RandomCrop((32, 36), pad_if_needed=True, fill={tv_tensors.Mask: 255, "others": 0}),
        v2.ToImage(),
        v2.ToDtype(
            {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True
        ),
        NORMALIZE,
    ]
    for name, first in (("images", []), ("tensors", [v2.PILToTensor()]))
}


class Joint(Dataset[Any]):
    """Photographs, each with boxes, labels and masks."""

    def __init__(self, root: Path, transform: Callable[..., Any], form: str) -> None:
        self.root, self.transform, self.form = root, transform, form

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.root / f"{index}.jpg").convert("RGB")
        size = (image.height, image.width)
        mask = tv_tensors.Mask(Image.open(self.root / f"{index}.png"))
        rng = np.random.default_rng(index)
        corners = torch.from_numpy(rng.integers(1, 40, (3, 4))).float()
        boxes = torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:] + 5], 1)
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=size),
            "labels": torch.arange(3),
            "masks": tv_tensors.Mask(torch.from_numpy(rng.integers(0, 2, (3, *size), dtype=np.uint8))),
        }
        if self.form == "dict":
            return self.transform({"image": image, **target})
        if self.form == "mask":
            return self.transform(image, mask)
        return self.transform(image, target)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("joint"), np.random.default_rng(1)
    for number in range(SAMPLES):
        width, height = 60 + 5 * number, 90 - 4 * number
        (folder / f"{number}.jpg").write_bytes(
            jpeg(rng, ("4:2:0", "4:4:4", "gray")[number % 3], width, height)
        )
        kind = (8, PALETTE) if number % 2 else (8, GRAY)
        (folder / f"{number}.png").write_bytes(png(rng, width, height, *kind))
    return folder


def in_lists(samples: list[Any]) -> Any:
    """Samples of several sizes, as detection scripts collate them."""
    if isinstance(samples[0], dict):
        return samples
    return tuple(map(list, zip(*samples, strict=True)))


def padded(samples: list[Any]) -> Any:
    """Images in one tensor, in whose corner each of them is, as DETR's scripts collate them."""
    images = [image for image, _ in samples]
    height, width = (max(edges) for edges in zip(*(image.shape[1:] for image in images), strict=True))
    batch = torch.zeros(len(images), 3, height, width)
    for i, image in enumerate(images):
        batch[i, :, : image.shape[1], : image.shape[2]].copy_(image)
    return batch, [target for _, target in samples]


def nested(samples: list[Any]) -> Any:
    return torch.nested.nested_tensor([image for image, _ in samples]).to_padded_tensor(0.0)


def assert_batches_equal(dataset: Any, collate: Any) -> None:
    torch.manual_seed(3)
    expected = list(TorchDataLoader(dataset, 4, num_workers=1, collate_fn=collate))
    torch.manual_seed(3)
    assert same(list(headrace.DataLoader(dataset, 4, num_workers=1, collate_fn=collate)), expected)


@pytest.mark.parametrize(("preset", "form"), [("ssd", "dict"), *((preset, "pair") for preset in DETECTION)])
def test_presets_for_detection_give_the_images_and_targets_of_torchs_loader(
    preset: str, form: str, root: Path
) -> None:
    assert_batches_equal(Joint(root, v2.Compose(DETECTION[preset]), form), in_lists)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("collate", [padded, nested])
def test_images_of_several_sizes_are_padded_as_by_torchs_loader(collate: Any, root: Path) -> None:
    assert_batches_equal(Joint(root, v2.Compose(DETECTION["multiscale"]), "pair"), collate)


@pytest.mark.parametrize("preset", SEGMENTATION)
@pytest.mark.parametrize("collate", [None, in_lists])
def test_presets_for_segmentation_give_the_batches_of_torchs_loader(
    preset: str, collate: Any, root: Path
) -> None:
    assert_batches_equal(Joint(root, v2.Compose(SEGMENTATION[preset]), "mask"), collate)


def test_native_code_makes_images_and_masks(root: Path) -> None:
    needs_native("PNG")

    def states(samples: Any) -> list[int]:
        batch = default_collate(samples)
        return [deferred.state(tensor.data_ptr()) for tensor in batch]

    dataset = Joint(root, v2.Compose(SEGMENTATION["images"]), "mask")
    loader = headrace.DataLoader(dataset, 5, num_workers=1, collate_fn=states)
    assert list(loader) == [[deferred.UNTOUCHED] * 2] * 2


def scaled(image: Any, target: Any) -> Any:
    """A conversion of one's own, as the RT-DETR family has it."""
    return F.pil_to_tensor(image).float() / 255, target


def test_conversions_outside_of_a_compose_give_torchs_values(root: Path) -> None:
    joint = v2.Compose([v2.Resize((40, 48), interpolation=InterpolationMode.BICUBIC), FLIP])
    dataset = Joint(root, lambda image, target: scaled(*joint(image, target)), "pair")
    assert_batches_equal(dataset, in_lists)


@pytest.fixture(scope="module")
def voc(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The images and masks in the folders of Pascal VOC, with boxes."""
    folder = tmp_path_factory.mktemp("voc")
    base = folder / "VOCdevkit" / "VOC2012"
    for part in (
        "JPEGImages",
        "SegmentationClass",
        "Annotations",
        "ImageSets/Main",
        "ImageSets/Segmentation",
    ):
        (base / part).mkdir(parents=True)
    names = [f"2012_{number:06}" for number in range(SAMPLES)]
    for number, name in enumerate(names):
        (base / "JPEGImages" / f"{name}.jpg").write_bytes((root / f"{number}.jpg").read_bytes())
        (base / "SegmentationClass" / f"{name}.png").write_bytes((root / f"{number}.png").read_bytes())
        objects = "".join(
            f"<object><name>{kind}</name><bndbox><xmin>{left}</xmin><ymin>{left}</ymin>"
            f"<xmax>{left + 20 + number}</xmax><ymax>{left + 30}</ymax></bndbox></object>"
            for kind, left in (("dog", 2), ("person", 9))
        )
        size = f"<size><width>{60 + 5 * number}</width><height>{90 - 4 * number}</height></size>"
        (base / "Annotations" / f"{name}.xml").write_text(f"<annotation>{size}{objects}</annotation>")
    for part in ("Main", "Segmentation"):
        (base / "ImageSets" / part / "train.txt").write_text("\n".join(names))
    return folder


@pytest.mark.parametrize("preset", ["ssd", "multiscale"])
def test_torchvisions_dataset_of_voc_with_boxes(preset: str, voc: Path) -> None:
    dataset = datasets.VOCDetection(voc, transforms=v2.Compose(DETECTION[preset]))
    wrapped = datasets.wrap_dataset_for_transforms_v2(dataset, target_keys=("boxes", "labels"))
    assert_batches_equal(wrapped, in_lists)


def test_torchvisions_dataset_of_voc_with_masks(voc: Path) -> None:
    dataset = datasets.VOCSegmentation(voc, transforms=v2.Compose(SEGMENTATION["images"]))
    assert_batches_equal(datasets.wrap_dataset_for_transforms_v2(dataset), None)


class Coco(Dataset[Any]):
    """Images with the boxes and polygons of a JSON file, as DETR's scripts read them."""

    def __init__(self, root: Path, file: Path, transform: Callable[..., Any]) -> None:
        content = json.loads(file.read_text())
        self.root, self.transform, self.images = root, transform, content["images"]
        self.annotations: dict[int, list[Any]] = defaultdict(list)
        for each in content["annotations"]:
            self.annotations[each["image_id"]].append(each)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        facts = self.images[index]
        image = Image.open(self.root / facts["file_name"]).convert("RGB")
        found = self.annotations[facts["id"]]
        masks = [Image.new("L", image.size) for _ in found]
        for mask, each in zip(masks, found, strict=True):
            ImageDraw.Draw(mask).polygon(each["segmentation"][0], fill=1)
        size = (facts["height"], facts["width"])
        target = {
            "image_id": facts["id"],
            "boxes": tv_tensors.BoundingBoxes([e["bbox"] for e in found], format="XYWH", canvas_size=size),
            "masks": tv_tensors.Mask(np.stack([np.asarray(mask) for mask in masks])),
            "labels": torch.tensor([each["category_id"] for each in found]),
        }
        return self.transform(image, target)


def test_a_coco_file_with_polygons(root: Path, tmp_path: Path) -> None:
    images, annotations = [], []
    for number in range(SAMPLES):
        facts = {"id": 40 + number, "width": 60 + 5 * number, "height": 90 - 4 * number}
        images.append({**facts, "file_name": f"{number}.jpg"})
        for kind in (1, 2):
            left, top, right, bottom = 3 * kind, 2 * kind, 40 + number, 30 + 2 * kind
            annotation: dict[str, Any] = {"image_id": facts["id"], "category_id": kind}
            annotation["bbox"] = [left, top, right - left, bottom - top]
            annotation["segmentation"] = [[left, top, right, top, right, bottom, left, bottom]]
            annotations.append(annotation)
    file = tmp_path / "instances.json"
    file.write_text(json.dumps({"images": images, "annotations": annotations}))
    for preset in ("lsj", "multiscale"):
        transform = v2.Compose([*DETECTION[preset][:-1], NORMALIZE, v2.ToPureTensor()])
        collate = padded if preset == "multiscale" else in_lists
        assert_batches_equal(Coco(root, file, transform), collate)
