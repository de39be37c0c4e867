"""What the scenarios train on: made below DATA once, from `pictures.py`'s photographs or from fixed seeds."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageChops

import pictures

PICTURES = 2000
HUGE, HUGE_SIZE, NAMES_OF_HUGE = 200, (3072, 2304), 5
RECORDINGS, CHANNELS = 6000, 16
REVIEWS = 6000
FRAMES = 2048
FEATURES, FEATURE_WIDTH = 400_000, 128
CLASSES = 10


def ensure(data: Path, name: str) -> Path:
    """The folder or file of that name below `data`, made where it isn't there.

    Raises KeyError for a name that isn't in `MAKERS`.
    """
    if name == "pictures":
        folder = data / f"pictures-{PICTURES}"
        pictures.ensure(folder, PICTURES, cache=data / "cache")
        return folder
    path = data / "scenarios" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"partial-{name}")
        MAKERS[name](data, partial)
        os.replace(partial, path)
    return path


def _huge(data: Path, out: Path) -> None:
    """The pictures enlarged to 7 megapixels, with a camera's noise; each under several names."""
    sources = sorted(ensure(data, "pictures").glob("class_*/*.jpg"))[:: PICTURES // HUGE]
    noise = Image.effect_noise(HUGE_SIZE, 10)
    noise = Image.merge("RGB", (noise, noise, noise))
    for number, source in enumerate(sources):
        image = Image.open(source).convert("RGB").resize(HUGE_SIZE, Image.Resampling.BICUBIC)
        folder = out / f"class_{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        first = folder / f"{number:04}-0.jpg"
        ImageChops.add(image, noise, offset=-128).save(first, quality=90)
        for name in range(1, NAMES_OF_HUGE):
            first.with_name(f"{number:04}-{name}.jpg").hardlink_to(first)


def _recordings(_data: Path, out: Path) -> None:
    """Of 200 to 600 moments, `values[starts[i]:starts[i + 1]]` (moments, channels) float32, and labels."""
    rng = np.random.default_rng(0)
    starts = np.concatenate(([0], np.cumsum(rng.integers(200, 600, RECORDINGS))))
    values = rng.standard_normal((starts[-1], CHANNELS), dtype=np.float32)
    with out.open("wb") as file:
        np.savez(file, values=values, starts=starts, labels=rng.integers(0, CLASSES, RECORDINGS))


def _reviews(_data: Path, out: Path) -> None:
    """Lines of "label<TAB>text": words of random syllables, some of which tell the label."""
    rng = random.Random(0)
    syllables = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(5000)]
    with out.open("w", encoding="utf-8") as file:
        for _ in range(REVIEWS):
            label = rng.randrange(2)
            text = rng.choices(words[label * 500 :], k=rng.randint(90, 110))
            file.write(f"{label}\t{' '.join(text)}\n")


def _frames(_data: Path, out: Path) -> None:
    """(frames, 3, 224, 224) uint8."""
    rng = np.random.default_rng(0)
    with out.open("wb") as file:
        np.save(file, rng.integers(0, 256, (FRAMES, 3, 224, 224), dtype=np.uint8))


def _features(_data: Path, out: Path) -> None:
    """(features, labels): (rows, width) float32, (rows,) int64."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(FEATURES, FEATURE_WIDTH, generator=generator)
    torch.save((features, torch.randint(0, CLASSES, (FEATURES,), generator=generator)), out)


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "huge": _huge,
    "recordings.npz": _recordings,
    "reviews.tsv": _reviews,
    "frames.npy": _frames,
    "features.pt": _features,
}
