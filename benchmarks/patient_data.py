"""What the patients train on: made below DATA once, from `pictures.py`'s photographs or from fixed seeds."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter

import pictures

PICTURES = 2000
HUGE, HUGE_SIZE = 160, (3072, 2304)
RECORDINGS, CHANNELS = 2000, 16
REVIEWS = 4000
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
    path = data / "patients" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"partial-{name}")
        MAKERS[name](data, partial)
        os.replace(partial, path)
    return path


def _huge(data: Path, out: Path) -> None:
    """The pictures enlarged to about 7 megapixels, with grain as a camera's: some 2.5 MB each."""
    sources = sorted(ensure(data, "pictures").glob("class_*/*.jpg"))[: 10 * HUGE : 10]
    grain = np.random.default_rng(0).normal(0, 5, (HUGE_SIZE[1], HUGE_SIZE[0], 1))
    for number, source in enumerate(sources):
        image = Image.open(source).convert("RGB").resize(HUGE_SIZE, Image.Resampling.BICUBIC)
        image = image.filter(ImageFilter.UnsharpMask(6))
        pixels = np.clip(np.asarray(image) + np.roll(grain, 97 * number, axis=(0, 1)), 0, 255)
        folder = out / f"class_{number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number:04}.jpg", quality=92)


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
            text = rng.choices(words[label * 500 :], k=rng.randint(40, 60))
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
