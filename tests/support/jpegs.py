"""Images made at run time from fixed seeds: noise shows what photographs hide in the chroma."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFile

# Pillow's encoder wants optimized and progressive files to fit its buffer; noise is larger than it guesses.
ImageFile.MAXBLOCK = 1 << 24

# Pillow's save arguments by the name of the kind; "gray" changes the mode.
JPEG_KINDS: dict[str, dict[str, Any]] = {
    "4:2:0": {"subsampling": 2},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "gray": {},
    "progressive": {"subsampling": 2, "progressive": True},
}
RESTARTS: dict[str, dict[str, Any]] = {
    "no restarts": {},
    "every block": {"restart_marker_blocks": 1},
    "every 4 blocks": {"restart_marker_blocks": 4},
    "every row": {"restart_marker_rows": 1},
    "every 2 rows": {"restart_marker_rows": 2},
}


def picture(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """RGB: a gradient under noise whose strength is drawn: some are smooth and some are not."""
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([x * 255 // max(1, width - 1), y * 255 // max(1, height - 1), (x + y) % 256], axis=2)
    noise = rng.integers(-255, 256, (height, width, 3)) * rng.choice([0.05, 0.3, 1.0])
    return Image.fromarray(np.clip(base + noise, 0, 255).astype(np.uint8))


def jpeg(rng: np.random.Generator, kind: str, width: int, height: int, **save: Any) -> bytes:
    """A JPEG of one of JPEG_KINDS, its quality and tables drawn."""
    image = picture(rng, width, height)
    if kind == "gray":
        image = image.convert("L")
    file = io.BytesIO()
    quality, optimize = int(rng.choice([30, 75, 90, 98])), bool(rng.integers(2))
    image.save(file, "JPEG", quality=quality, optimize=optimize, **JPEG_KINDS[kind], **save)
    return file.getvalue()


def cmyk(rng: np.random.Generator, width: int, height: int, *, ycck: bool = False, **save: Any) -> bytes:
    """A JPEG of four components with an Adobe marker, as CMYK or as YCCK."""
    levels = np.dstack(
        [np.asarray(picture(rng, width, height)), np.asarray(picture(rng, width, height))[:, :, :1]]
    )
    file = io.BytesIO()
    Image.frombytes("CMYK", (width, height), levels.tobytes()).save(file, "JPEG", **save)
    marker = b"Adobe\0\x64\0\0\0\0"
    assert marker + b"\0" in file.getvalue()
    return file.getvalue().replace(marker + b"\0", marker + b"\2", 1) if ycck else file.getvalue()


def image_folder(root: Path, count: int, *, classes: int = 3, seed: int = 0, side: int = 90) -> Path:
    """`count` JPEGs of all kinds, about `side` pixels each way, in class folders."""
    rng = np.random.default_rng(seed)
    kinds = list(JPEG_KINDS)
    for i in range(count):
        folder = root / f"class{i % classes}"
        folder.mkdir(parents=True, exist_ok=True)
        width, height = (int(n) for n in rng.integers(side // 2, side * 3 // 2, 2))
        (folder / f"{i:05}.jpg").write_bytes(jpeg(rng, kinds[i % len(kinds)], width, height))
    return root
