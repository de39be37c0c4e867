"""Training data that scenarios share: made below DATA once, from photographs or fixed seeds."""

import contextlib
import json
import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageChops

PICTURES = 2000
HUGE, HUGE_SIZE, NAMES_OF_HUGE = 200, (3072, 2304), 5
RECORDINGS, CHANNELS = 6000, 16
REVIEWS = 6000
FRAMES = 2048
FEATURES, FEATURE_WIDTH = 400_000, 128
CLASSES = 10


def ensure(data: Path, name: str) -> Path:
    """The folder or file of that name below `data`, made if it isn't there; "" is a folder for all."""
    path = data / "stalls" / name
    if name == "pictures":
        import pictures

        path = data / f"pictures-{PICTURES}"
        pictures.ensure(path, PICTURES, cache=data / "cache")
    elif not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"partial-{name}")
        MAKERS[name](data, partial)
        os.replace(partial, path)
    return path


def _huge(data: Path, out: Path) -> None:
    """The images enlarged to 7 megapixels, with a camera's noise; each under several names."""
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
    """Makes recordings of 200 to 600 moments, `values[starts[i]:starts[i + 1]]` ([n, channels] float32)."""
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


def _png(data: Path, out: Path) -> None:
    """400 of the images as PNG."""
    for source in sorted(ensure(data, "pictures").glob("class_*/*.jpg"))[:400]:
        folder = out / source.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        Image.open(source).convert("RGB").save(folder / f"{source.stem}.png", compress_level=6)


def _traces(_data: Path, out: Path) -> None:
    """24 files of 8 MB, each a random walk: (2,000,000,) float32."""
    rng = np.random.default_rng(0)
    out.mkdir()
    for number in range(24):
        np.save(out / f"trace-{number:02}.npy", rng.standard_normal(2_000_000, dtype=np.float32))


def _events(_data: Path, out: Path) -> None:
    """6,000 lines {"readings": [{"value": "0.123"}, …] (200), "label": 3}."""
    rng = np.random.default_rng(0)
    with out.open("w", encoding="utf-8") as file:
        for _ in range(6000):
            readings = [{"value": f"{value:.3f}"} for value in rng.random(200)]
            file.write(json.dumps({"readings": readings, "label": int(rng.integers(10))}) + "\n")


def _volumes(save: Callable[..., None], out: Path) -> None:
    """200 archives: "volume" (64, 96, 96) int16, smooth with some noise; "label"."""
    rng = np.random.default_rng(0)
    out.mkdir()
    ramp = np.linspace(0, 2000, 96, dtype=np.float32)
    for number in range(200):
        noise = rng.integers(0, 64, (64, 96, 96))
        volume = (ramp[:, None] + ramp + noise).astype(np.int16)
        save(out / f"{number:03}.npz", volume=volume, label=number % 10)


def _measurements(_data: Path, out: Path) -> None:
    """measurements(code TEXT, vector BLOB of 64 float32, label INTEGER): 20,000 rows, no index."""
    rng = np.random.default_rng(0)
    with contextlib.closing(sqlite3.connect(out)) as connection, connection:
        connection.execute("CREATE TABLE measurements (code TEXT, vector BLOB, label INTEGER)")
        rows = (
            (f"m{number:08}", rng.standard_normal(64, dtype=np.float32).tobytes(), number % 10)
            for number in range(20_000)
        )
        connection.executemany("INSERT INTO measurements VALUES (?, ?, ?)", rows)


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "": lambda _data, out: out.mkdir(),
    "huge": _huge,
    "recordings.npz": _recordings,
    "reviews.tsv": _reviews,
    "frames.npy": _frames,
    "features.pt": _features,
    "png": _png,
    "traces": _traces,
    "events.jsonl": _events,
    "compressed": lambda _data, out: _volumes(np.savez_compressed, out),
    "uncompressed": lambda _data, out: _volumes(np.savez, out),
    "measurements.sqlite": _measurements,
}
