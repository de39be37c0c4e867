"""Images for tests: noise, in which every misplaced pixel shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import headrace
from headrace._native.decoders import FORMATS


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
