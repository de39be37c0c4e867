"""Batches of data sets in memory equal what torchvision makes of the data set's own images, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset
from torchvision import transforms as v1
from torchvision.datasets import CIFAR10
from torchvision.transforms import InterpolationMode, v2

import headrace
import headrace.testing
from headrace.plan.pointwise import run_suffix
from headrace.transforms.op import replay
from support.array_datasets import make_set

MEAN, STD = (0.49, 0.48, 0.44), (0.24, 0.25, 0.26)
FLOAT = [v1.ToTensor(), v1.Normalize(MEAN, STD)]


def cifar(data: Any, transform: Any = None) -> Any:
    """A CIFAR10 of these images, none of them read from files."""
    dataset = CIFAR10.__new__(CIFAR10)
    dataset.data, dataset.targets = data, [int(i) * 7 % 10 for i in range(len(data))]
    dataset.transform, dataset.target_transform = transform, None
    return dataset


def pixels(*shape: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, dtype=np.uint8)


def assert_equals_torchvision(
    dataset: Any, steps: Sequence[Any], finish: Sequence[Any], epochs: int = 2, **settings: Any
) -> None:
    inner = dataset
    while isinstance(inner, Subset):
        inner = inner.dataset
    inner.transform = v1.Compose([*steps, *finish])
    loader = headrace.DataLoader(dataset, batch_size=5, num_workers=2, seed=3, **settings)
    plan = loader.plan().native
    assert plan is not None, loader.explain()
    inner.transform = None
    originals = [dataset[i] for i in range(len(dataset))]
    inner.transform = v1.Compose([*steps, *finish])
    for epoch in range(epochs):
        index = 0
        for images, labels in loader:
            for image, label in zip(images, labels, strict=True):
                draws = [draw for _, draw in headrace.testing.draws(loader, index, epoch)]
                expected = run_suffix(replay(originals[index][0], plan.ops, draws), finish)
                if loader.dtype is not None:
                    expected = expected.to(loader.dtype)
                assert image.dtype == expected.dtype
                assert torch.equal(image, expected), f"sample {index} of epoch {epoch} differs"
                assert torch.equal(headrace.testing.replay(loader, index, epoch), expected)
                assert label.item() == originals[index][1]
                index += 1
        assert index == len(dataset)


@pytest.mark.parametrize("name", ["CIFAR10", "CIFAR100", "SVHN", "STL10"])
def test_crop_and_flip_of_every_data_set(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_set(name, tmp_path, None, monkeypatch)
    size = 96 if name == "STL10" else 32
    steps = [v1.RandomCrop(size, padding=4), v1.RandomHorizontalFlip()]
    assert_equals_torchvision(dataset, steps, FLOAT)
    assert_equals_torchvision(Subset(Subset(dataset, range(1, 20)), [5, 0, 5, -2]), steps, FLOAT)
    assert_equals_torchvision(dataset, [v2.RandomCrop(size, padding=2)], [v2.PILToTensor()])


STEPS: dict[str, list[Any]] = {
    "uneven padding": [v1.RandomCrop((30, 35), padding=(1, 5, 3, 0)), v1.RandomVerticalFlip()],
    "fill": [v1.RandomCrop(32, padding=4, fill=(1, 128, 255)), v1.RandomHorizontalFlip()],
    "reflect": [v1.RandomCrop(32, padding=4, padding_mode="reflect"), v1.RandomHorizontalFlip()],
    "edge": [v1.RandomCrop(32, padding=3, padding_mode="edge")],
    "symmetric": [v1.RandomHorizontalFlip(), v1.RandomCrop(32, padding=9, padding_mode="symmetric")],
    "pad if needed": [v1.RandomCrop(41, pad_if_needed=True)],
    "resize": [v1.RandomResizedCrop(48, scale=(0.2, 1.0)), v1.RandomHorizontalFlip()],
    "bicubic": [v1.Resize((64, 40), InterpolationMode.BICUBIC)],
    "colour": [v1.RandomCrop(32, padding=4), v1.ColorJitter(0.4, 0.4, 0.4, 0.1)],
    "rotation": [v1.RandomRotation(15), v1.RandomCrop(32, padding=4)],
    "flip alone": [v1.RandomHorizontalFlip()],
    "nothing drawn": [v1.CenterCrop(20)],
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_arrays_through_any_steps_equal_torchvision(steps: list[Any]) -> None:
    assert_equals_torchvision(cifar(pixels(13, 32, 32, 3)), steps, FLOAT)


LAYOUTS: dict[str, Any] = {
    "channels first": lambda: pixels(9, 3, 17, 21).transpose(0, 2, 3, 1),
    "columns before rows": lambda: pixels(9, 21, 17, 3).transpose(0, 2, 1, 3),
    "images last": lambda: pixels(17, 21, 3, 9).transpose(3, 0, 1, 2),
    "every second": lambda: pixels(18, 34, 42, 3)[::2, ::2, ::2],
    "backwards": lambda: pixels(9, 17, 21, 3)[::-1, ::-1, ::-1, ::-1],
    "one row for all": lambda: np.broadcast_to(pixels(9, 1, 21, 3), (9, 17, 21, 3)),
    "one pixel": lambda: pixels(9, 1, 1, 3),
    "one column": lambda: pixels(9, 17, 1, 3),
}


@pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS)
def test_arrays_of_any_strides(make: Any) -> None:
    data = make()
    data.flags.writeable = False
    steps = [v1.RandomCrop(data.shape[1:3], padding=1), v1.RandomHorizontalFlip()]
    assert_equals_torchvision(cifar(data), steps, FLOAT)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
def test_dtypes_and_layouts(dtype: torch.dtype | None, memory_format: torch.memory_format) -> None:
    dataset = cifar(pixels(11, 32, 32, 3))
    settings = {"dtype": dtype, "memory_format": memory_format}
    assert_equals_torchvision(dataset, [v1.RandomCrop(32, padding=4)], FLOAT, **settings)  # type: ignore[arg-type]
    images, _ = next(iter(headrace.DataLoader(dataset, 4, memory_format=memory_format)))
    assert images.is_contiguous(memory_format=memory_format)


def test_uint8_on_its_way_to_a_batch_transform() -> None:
    dataset = cifar(pixels(11, 32, 32, 3))
    assert_equals_torchvision(dataset, [v1.RandomCrop(32, padding=4)], [v1.PILToTensor()])
    assert_equals_torchvision(dataset, [v2.RandomCrop(32, padding=4)], [v2.ToImage()])


def test_nothing_outside_of_the_array_is_read(tmp_path: Path) -> None:
    """The array ends where its file does: a page further is a bus error."""
    pages = np.memmap(tmp_path / "pixels", np.uint8, "w+", shape=(4, 32, 32, 4))
    pages[:] = pixels(4, 32, 32, 4)
    for data in (pages[..., 1:], pages.reshape(-1)[4096:].reshape(4, 32, 32, 3)):
        steps = [v1.RandomCrop(32, padding=4)]
        assert_equals_torchvision(cifar(np.asarray(data)), steps, FLOAT)
