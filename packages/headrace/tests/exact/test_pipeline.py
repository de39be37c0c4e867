"""Batches equal what torchvision makes on PIL images with the same random parameters, value for value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import InterpolationMode, v2

import headrace
import headrace.testing
from headrace._native import ffi
from support.jpegs import image_folder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGES = 36

# torchvision has the one that is left out for tensors only.
PIL_FILTERS = [mode for mode in InterpolationMode if mode.name != "NEAREST_EXACT"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"), IMAGES)


def assert_equals_torchvision(folder: Path, transform: Any, epochs: int = 1, **settings: Any) -> None:
    """With each of this machine's instruction sets."""
    dataset = ImageFolder(str(folder), transform)
    loader = headrace.DataLoader(dataset, batch_size=16, num_workers=2, seed=11, **settings)
    assert loader.plan().native is not None, loader.explain()
    expected = [
        [headrace.testing.replay(loader, index, epoch) for index in range(len(dataset))]
        for epoch in range(epochs)
    ]
    try:
        for simd in ffi.simd_names():
            ffi.simd_force(simd)
            loader = headrace.DataLoader(dataset, batch_size=16, num_workers=2, seed=11, **settings)
            for epoch, samples in enumerate(expected):
                batches = list(loader)
                images = [image for batch, _ in batches for image in batch]
                for index, (image, sample) in enumerate(zip(images, samples, strict=True)):
                    assert image.dtype == sample.dtype
                    assert torch.equal(image, sample), f"sample {index} of epoch {epoch} differs by {simd}"
                assert [label for _, labels in batches for label in labels.tolist()] == dataset.targets
    finally:
        ffi.simd_force(None)


FINISHES: dict[str, list[Any]] = {
    "float32": [v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "uint8": [v1.PILToTensor()],
    "float16": [v1.PILToTensor(), v1.ConvertImageDtype(torch.float16)],
    "bfloat16": [v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True)],
    "v2 float32": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)],
}


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize(
    "memory_format", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"]
)
def test_training_recipe(folder: Path, finish: str, memory_format: torch.memory_format) -> None:
    steps = [v1.RandomResizedCrop(56), v1.RandomHorizontalFlip(), *FINISHES[finish]]
    assert_equals_torchvision(folder, v1.Compose(steps), epochs=2, memory_format=memory_format)


@pytest.mark.parametrize("filter_", PIL_FILTERS, ids=lambda mode: mode.value)
def test_every_filter(folder: Path, filter_: InterpolationMode) -> None:
    steps = [v1.RandomResizedCrop((40, 64), interpolation=filter_), v1.PILToTensor()]
    assert_equals_torchvision(folder, v1.Compose(steps), epochs=2)


GEOMETRY: dict[str, Callable[[], list[Any]]] = {
    "validation": lambda: [v1.Resize(64), v1.CenterCrop(56)],
    "a window of an enlarged picture": lambda: [v1.Resize((200, 190)), v1.CenterCrop((31, 57))],
    "the shorter edge, limited": lambda: [v1.Resize(60, max_size=61), v1.CenterCrop(60)],
    "center crop that pads": lambda: [v1.CenterCrop(100)],
    "crop without resize": lambda: [v1.RandomCrop(40, pad_if_needed=True)],
    "padding, constant": lambda: [
        v1.RandomCrop(70, padding=(9, 3, 20, 40), pad_if_needed=True, fill=(1, 2, 3))
    ],
    "padding, edge": lambda: [v1.Resize((32, 32)), v1.RandomCrop(32, padding=4, padding_mode="edge")],
    "padding, reflect": lambda: [v1.Resize((32, 32)), v1.RandomCrop(32, padding=8, padding_mode="reflect")],
    "padding, symmetric": lambda: [
        v1.Resize((20, 32)),
        v1.RandomCrop(32, padding=28, padding_mode="symmetric"),
    ],
    "flips before the resize": lambda: [
        v1.RandomHorizontalFlip(),
        v1.RandomVerticalFlip(),
        v1.Resize((37, 41)),
    ],
    "flips after it": lambda: [v1.Resize((37, 41)), v1.RandomVerticalFlip(0.7), v1.RandomHorizontalFlip(0.3)],
    "flips around a padded crop": lambda: [
        v1.Resize((30, 30)),
        v1.RandomHorizontalFlip(),
        v1.RandomCrop(30, padding=6, fill=77),
        v1.RandomVerticalFlip(),
        v1.CenterCrop(25),
    ],
    "crop, then resize": lambda: [v1.CenterCrop(40), v1.RandomHorizontalFlip(), v1.Resize((56, 24))],
    "v2": lambda: [
        v2.RandomResizedCrop(48, scale=(0.01, 0.2)),
        v2.RandomHorizontalFlip(),
        v2.RandomVerticalFlip(),
    ],
    "extreme ratios": lambda: [v1.RandomResizedCrop(48, scale=(0.9, 1.0), ratio=(8.0, 12.0))],
}


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry(folder: Path, name: str) -> None:
    assert_equals_torchvision(folder, v1.Compose([*GEOMETRY[name](), v1.ToTensor()]), epochs=2)


def test_a_cast_that_the_user_asks_for(folder: Path) -> None:
    steps = [v1.RandomResizedCrop(32), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    dataset = ImageFolder(str(folder), v1.Compose(steps))
    as_is = headrace.DataLoader(dataset, batch_size=IMAGES, num_workers=1, seed=1)
    cast = headrace.DataLoader(dataset, batch_size=IMAGES, num_workers=1, seed=1, dtype=torch.bfloat16)
    assert torch.equal(next(iter(as_is))[0].to(torch.bfloat16), next(iter(cast))[0])


def test_strides_are_those_of_the_memory_format(folder: Path) -> None:
    dataset = ImageFolder(str(folder), v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor()]))
    contiguous = next(iter(headrace.DataLoader(dataset, batch_size=4)))[0]
    channels_last = next(iter(headrace.DataLoader(dataset, batch_size=4, memory_format=torch.channels_last)))[
        0
    ]
    assert contiguous.is_contiguous()
    assert channels_last.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("decoder", [*ffi.decoder_names(), "pillow"])
def test_the_decoder_changes_no_pixel(folder: Path, decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DECODERS", decoder)
    steps = [v1.RandomResizedCrop(48), v1.ToTensor()]
    assert_equals_torchvision(folder, v1.Compose(steps))
