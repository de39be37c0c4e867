"""Batches of images of several sizes, which collate functions pad in many ways, and may then change."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import pad as pad_by_torch
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F  # noqa: N812

import headrace
from headrace._native import deferred
from support.equal import same
from support.jpegs import image_folder, jpeg

Images = list[torch.Tensor]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SAMPLES = 6


def largest(images: Images) -> tuple[int, int]:
    heights, widths = zip(*(image.shape[1:] for image in images), strict=True)
    return max(heights), max(widths)


def copied(images: Images) -> torch.Tensor:
    batch = torch.zeros(len(images), 3, *largest(images))
    for i, image in enumerate(images):
        batch[i, :, : image.shape[1], : image.shape[2]].copy_(image)
    return batch


def nested(images: Images) -> torch.Tensor:
    """As DETR's own code does."""
    batch = torch.zeros([len(images), 3, *largest(images)], dtype=images[0].dtype, device=images[0].device)
    for image, padded in zip(images, batch, strict=True):
        padded[: image.shape[0], : image.shape[1], : image.shape[2]].copy_(image)
    return batch


def assigned(images: Images) -> torch.Tensor:
    batch = images[0].new_zeros(len(images), 3, *largest(images))
    for i, image in enumerate(images):
        batch[i, :, : image.shape[1], : image.shape[2]] = image
    return batch


def padded_each(images: Images) -> torch.Tensor:
    height, width = largest(images)
    return torch.stack([F.pad(x, [0, 0, width - x.shape[2], height - x.shape[1]]) for x in images])


def padded_by_torch(images: Images) -> torch.Tensor:
    height, width = largest(images)
    return torch.stack([pad_by_torch(x, (0, width - x.shape[2], 0, height - x.shape[1])) for x in images])


def on_all_sides(images: Images) -> torch.Tensor:
    height, width = largest(images)
    return torch.stack([F.pad(x, [1, 2, width - x.shape[2], height - x.shape[1]], fill=0.5) for x in images])


def some_of_them(images: Images) -> torch.Tensor:
    batch = torch.zeros(len(images), 3, *largest(images))
    batch[1, :, : images[1].shape[1], : images[1].shape[2]] = images[1]
    return batch


def into_the_middle(images: Images) -> torch.Tensor:
    height, width = largest(images)
    batch = torch.zeros(len(images), 3, height + 4, width + 6)
    for i, image in enumerate(images):
        batch[i, :, 4 : 4 + image.shape[1], 6 : 6 + image.shape[2]].copy_(image)
    return batch


def one_over_another(images: Images) -> torch.Tensor:
    batch = torch.zeros(len(images), 3, *largest(images))
    for image in images:
        batch[0, :, : image.shape[1], : image.shape[2]] = image
    for image in images:
        batch[0, :, 1 : 1 + image.shape[1], : image.shape[2]] = image[:, : batch.shape[2] - 1]
    return batch


def changed_afterwards(images: Images) -> torch.Tensor:
    batch = copied(images)
    for image in images:
        image.zero_()
    batch[2] += 1
    return batch


def changed_between(images: Images) -> tuple[torch.Tensor, ...]:
    batch = torch.zeros(len(images), 3, *largest(images))
    batch[0, 1, 2, 3] = 7.0
    for i, image in enumerate(images):
        part = batch[i, :, : image.shape[1], : image.shape[2]].copy_(image)
        part[:, 0] = i
    return batch, batch[1:, :2, 3:], batch.sum(dim=(2, 3))


def changed_stacks(images: Images) -> Any:
    """Neither a stack nor what it was made of changes with the other, nor do two stacks."""
    alone, again = ([torch.stack([image]) for image in images] for _ in range(2))
    together = torch.stack([stack[0] for stack in again if stack.shape == again[0].shape])
    images[0].zero_()
    alone[0].add_(1)
    again[0].mul_(2)
    together[0, 0] = 3
    return images, alone, again, together


def changes_counted(images: Images) -> Any:
    batch = torch.zeros(len(images), 3, *largest(images))
    view = batch[0]
    for i, image in enumerate(images):
        batch[i, :, : image.shape[1], : image.shape[2]] = image
    return batch._version, view._version


def with_gradients(images: Images) -> Any:
    batch = torch.zeros(len(images), 3, *largest(images))
    image = images[0].float().requires_grad_()
    batch[0, :, : image.shape[1], : image.shape[2]] = image
    made = batch, torch.stack([image]), image / 2, image.to(torch.float64)
    return [each.requires_grad for each in made], [each.detach() for each in made]


def in_inference_mode(images: Images) -> Any:
    with torch.inference_mode():
        batch = torch.zeros(len(images), 3, *largest(images))
        ordinary = torch.zeros(2, 2)
    for image in images[1:]:
        try:
            batch[1, :, : image.shape[1], : image.shape[2]] = image
        except RuntimeError as error:
            return str(error), batch.clone()
    return batch.is_inference(), ordinary.is_inference(), batch.clone()


def two_channels(images: Images) -> torch.Tensor:
    batch = torch.zeros(len(images), 3, *largest(images))
    for i, image in enumerate(images):
        batch[i, :2, : image.shape[1], : image.shape[2]] = image[:2]
    return batch


def in_doubles(images: Images) -> torch.Tensor:
    batch = torch.zeros(len(images), 3, *largest(images), dtype=torch.float64)
    for i, image in enumerate(images):
        batch[i, :, : image.shape[1], : image.shape[2]].copy_(image)
    return batch


def computed_of(images: Images) -> Any:
    """A padded image is one, but its zeros aren't pixels."""
    padded = F.pad(images[0], [0, 0, 5, 3])
    return F.normalize(padded, MEAN, STD), F.horizontal_flip(padded), padded.numpy().max().item()


def traced(images: Images) -> Any:
    """What a trace holds as a constant would keep the changes of every call."""

    def add(image: torch.Tensor) -> torch.Tensor:
        batch = torch.zeros(len(images), 3, 150, 150)
        batch[0, :, : image.shape[1], : image.shape[2]] += image
        return batch + image.new_zeros(len(images), 3, 150, 150).add_(1)

    calls = torch.jit.trace(add, (images[0],), check_trace=False)
    return calls(images[0]).clone(), calls(images[0]).clone()


def with_a_shape_that_changes(images: Images) -> torch.Tensor:
    shape = [len(images), 3, *largest(images)]
    batch = torch.zeros(shape)
    shape[2:] = [2000, 2000]
    for i, image in enumerate(images):
        batch[i, :, : image.shape[1], : image.shape[2]] = image
    return batch


def beyond_its_rows(images: Images) -> torch.Tensor:
    _, height, width = images[0].shape
    batch = torch.zeros(len(images), 3, height - 5, width)
    batch.as_strided((3, height, width), ((height - 5) * width, width, 1)).copy_(images[0])
    return batch


def of_batched_tensors(images: Images) -> torch.Tensor:
    def add(row: torch.Tensor) -> torch.Tensor:
        batch = row.new_zeros(len(images), 3, 90, 100)
        batch[0, 0] += row
        return batch

    return torch.func.vmap(add)(torch.arange(300.0).view(3, 100))


def of_their_own_type(images: Images) -> str:
    with tv_tensors.set_return_type("TVTensor"):
        return type(tv_tensors.Image(images[0]).new_zeros(len(images), 3, *largest(images))).__name__


def compiled(images: Images) -> Any:
    def padded(image: torch.Tensor) -> torch.Tensor:
        batch = torch.zeros(len(images), 3, 150, 150)
        batch[0, :, : image.shape[1], : image.shape[2]] = image
        return torch.cat([batch, torch.stack([image.new_zeros(3, 150, 150)])])

    return torch.compile(padded, backend="eager", fullgraph=True, dynamic=True)(images[0].float())


def functions_again(images: Images) -> Any:
    function: Any = pickle.loads(pickle.dumps(torch.zeros))
    return function(len(images))


WAYS: tuple[Callable[[Images], Any], ...] = (
    *(copied, nested, assigned, padded_each, padded_by_torch, on_all_sides, some_of_them, into_the_middle),
    *(one_over_another, changed_afterwards, changed_between, two_channels, in_doubles, computed_of),
    *(traced, with_a_shape_that_changes, beyond_its_rows, of_batched_tensors, of_their_own_type),
    *(compiled, functions_again, changed_stacks, changes_counted, in_inference_mode, with_gradients),
)


class Sizes(Dataset[Any]):
    """An image of a size of its own, made once for each of `WAYS`."""

    def __init__(self, folder: Path, end: Any) -> None:
        self.paths, self.end = sorted(folder.rglob("*.jpg"))[:SAMPLES], end

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        transform = v1.Compose([v1.Resize((90 + 7 * index, 120 - 5 * index)), *self.end])
        return [transform(image) for _ in WAYS]


def in_all_ways(samples: Any) -> Any:
    return [way(list(images)) for way, images in zip(WAYS, zip(*samples, strict=True), strict=True)]


@pytest.mark.filterwarnings("ignore:.torch.jit.* is deprecated")
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
@pytest.mark.parametrize(
    "end",
    [(v1.ToTensor(), v1.Normalize(MEAN, STD)), (v1.ToTensor(), v1.ConvertImageDtype(torch.float16))],
    ids=["float32", "float16"],
)
def test_padded_batches_are_those_of_torchs_loader(end: Any, tmp_path: Path) -> None:
    dataset = Sizes(image_folder(tmp_path, SAMPLES), end)
    ours = list(headrace.DataLoader(dataset, 3, num_workers=1, collate_fn=in_all_ways))
    theirs = list(torch.utils.data.DataLoader(dataset, 3, collate_fn=in_all_ways))
    assert len(ours) == len(theirs)
    for batch, expected in zip(ours, theirs, strict=True):
        for way, our, their in zip(WAYS, batch, expected, strict=True):
            assert same(our, their), way.__name__


@pytest.mark.parametrize("way", [copied, nested, assigned, padded_each])
def test_native_code_pads(way: Callable[[Images], Any], tmp_path: Path) -> None:
    for number in range(SAMPLES):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(np.random.default_rng(number), "4:2:0", 90, 70))
    dataset = Sizes(tmp_path, (v1.ToTensor(), v1.Normalize(MEAN, STD)))

    def collate(samples: Any) -> int:
        batch = way([images[0] for images in samples])
        return deferred.state(batch.data_ptr())

    loader = headrace.DataLoader(dataset, 3, num_workers=1, collate_fn=collate)
    assert list(loader) == [deferred.UNTOUCHED] * 2
