"""The rows of `pipeline_rows.py` whose samples or batches hold more than one image of one size: boxes, masks,
processors in collate functions, and buckets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import headrace
import headrace.order
from list_dataset import END, END_V2, ListDataset, Make, listed


class ImageList(ListDataset):
    """Images as Pillow opens them, for a collate function that calls a processor."""

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return Image.open(path).convert("RGB"), label


@functools.lru_cache(maxsize=1)
def vit() -> Any:
    from transformers import ViTImageProcessor

    return ViTImageProcessor()


@functools.lru_cache(maxsize=1)
def qwen() -> Any:
    from transformers import Qwen2VLImageProcessor

    return Qwen2VLImageProcessor(min_pixels=224 * 224, max_pixels=448 * 448)


def collated_by(processor: Callable[[], Any]) -> dict[str, Any]:
    """The arguments of a row whose collate function calls a processor, as fine-tuning scripts do."""

    def make(folder: Path) -> Any:
        processor()  # now, so that worker processes have it
        return ImageList(folder, None)

    def collate(batch: Any) -> Any:
        images, labels = zip(*batch, strict=True)
        return {**processor()(images=list(images), return_tensors="pt"), "labels": torch.tensor(labels)}

    return {"make": make, "collate": collate, "needs": "transformers"}


class JointDataset(ListDataset):
    """Images with boxes and labels, or with a mask, changed together by torchvision's v2."""

    def __init__(self, folder: Path, transform: Any, masks: Path | None = None) -> None:
        super().__init__(folder, transform)
        self.masks = masks

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        image = Image.open(path).convert("RGB")
        if self.masks is not None:
            mask = Image.open(self.masks / Path(path).parent.name / f"{Path(path).stem}.png")
            return self.transform(image, tv_tensors.Mask(mask))
        width, height = image.size
        corners = torch.tensor([[0.1, 0.2, 0.6, 0.7], [0.3, 0.1, 0.9, 0.5], [0.4, 0.4, 0.8, 0.9]])
        boxes = corners * torch.tensor([width, height, width, height])
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),
            "labels": torch.tensor([label, 1, 2]),
        }
        return self.transform(image, target)


def detection(*transforms: Any) -> Make:
    sanitize = (v2.SanitizeBoundingBoxes(), v2.ToPureTensor())
    return lambda folder: JointDataset(folder, v2.Compose([*transforms, *END_V2, *sanitize]))


def _masks(folder: Path) -> Path:
    """Masks of 21 classes, in PNGs with a palette."""
    root = folder.parent / f"{folder.name}-masks"
    for path, _ in listed(folder):
        target = root / Path(path).parent.name / f"{Path(path).stem}.png"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            whole = target.with_suffix(".partial")
            mask = Image.open(path).convert("L").point(lambda level: level * 21 // 256)
            mask.putpalette(bytes(3 * 21))
            mask.save(whole, "PNG")
            whole.rename(target)
    return root


def segmentation(folder: Path) -> Any:
    kinds = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    size, fill = (480, 480), {tv_tensors.Mask: 255, "others": 0}
    steps = [
        v2.RandomResize(260, 1040),
        v2.RandomHorizontalFlip(),
        v2.RandomCrop(size, pad_if_needed=True, fill=fill),
    ]
    end = [v2.ToImage(), v2.ToDtype(kinds, scale=True), END_V2[-1]]
    return JointDataset(folder, v2.Compose([*steps, *end]), _masks(folder))


def in_lists(batch: Any) -> Any:
    return tuple(map(list, zip(*batch, strict=True)))


def padded(batch: Any) -> Any:
    """Images in the corners of one tensor, as DETR's scripts collate them."""
    images = [image for image, _ in batch]
    height, width = (max(edges) for edges in zip(*(image.shape[1:] for image in images), strict=True))
    tensor = torch.zeros(len(images), 3, height, width)
    for i, image in enumerate(images):
        tensor[i, :, : image.shape[1], : image.shape[2]].copy_(image)
    return tensor, [target for _, target in batch]


class Bucketed(ListDataset):
    """Images resized and cropped to the size of their bucket, near 512 × 512."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, v1.Compose(list(END)))
        sizes = headrace.image_sizes([path for path, _ in self.samples])
        self.buckets = [(448, 576) if width > height else (576, 448) for width, height in sizes]

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        size = list(self.buckets[index])
        image = v1.functional.resize(Image.open(path).convert("RGB"), max(size))
        return self.transform(v1.functional.center_crop(image, size)), label


def bucket_batches(dataset: Bucketed) -> Any:
    return headrace.order.BucketSampler(dataset.buckets, 16)
