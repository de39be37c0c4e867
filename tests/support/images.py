"""Images for tests: noise, in which every misplaced pixel shows."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

import headrace
from headrace._native import ffi
from headrace._native.decoders import FORMATS

Rectangle = tuple[int, int, int, int]  # left, top, width, height


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    """An RGB image of height × width."""
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def image_folder(root: Path, count: int = 4, suffix: str = ".jpg") -> Path:
    """A folder of two classes with `count` images in all; returns `root`."""
    for i in range(count):
        folder = root / f"class{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        noise(40 + i, 50 + i, i).save(folder / f"{i}{suffix}")
    return root


def decoded_as_png(loader: headrace.DataLoader[Any]) -> int:
    """Counts the samples that a loader decoded by the decoders of PNG."""
    decoded = loader.stats().decoded_by
    return sum(count for name, count in decoded.items() if name in FORMATS["PNG"])


def by_pillow(data: bytes) -> npt.NDArray[np.uint8]:
    """The pixels of a file as RGB."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def rectangle(rng: np.random.Generator, width: int, height: int) -> Rectangle:
    """A random rectangle inside an image of width × height."""
    w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
    return int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1)), w, h


def check_rectangles(decoder: str, data: bytes, *rectangles: Rectangle) -> None:
    """A decoder gives Pillow's pixels of the whole image and of each rectangle."""
    whole = by_pillow(data)
    height, width, _ = whole.shape
    assert ffi.index_images([data])[0][1:3] == (width, height)
    for x, y, w, h in ((0, 0, width, height), *rectangles):
        pixels = ffi.image_decode(data, decoder, (x, y, w, h))
        assert np.array_equal(pixels, whole[y : y + h, x : x + w]), (x, y, w, h)


def check_first_sample(dataset: ImageFolder) -> None:
    """A native loader gives torchvision's first sample, or fails with its error."""
    loader = headrace.DataLoader(dataset, batch_size=1, num_workers=1)
    assert loader.plan().native is not None
    problem: Exception | None = None
    try:
        expected = dataset[0][0]
    except Exception as error:
        problem = error
    if problem is None:
        assert torch.equal(next(iter(loader))[0][0], expected)
        return
    with pytest.raises(headrace.SampleError) as caught:
        next(iter(loader))
    assert type(caught.value.__cause__) is type(problem)
    assert str(caught.value.__cause__) == str(problem)
