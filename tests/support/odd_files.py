"""Every kind of file that image folders hold, good and bad, by name."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
from PIL import Image

from support.jpegs import jpeg, picture

RNG = np.random.default_rng(8)
GOOD = jpeg(RNG, "4:2:0", 90, 70)


def saved(format_: str, mode: str = "RGB", width: int = 80, height: int = 60, **options: object) -> bytes:
    file = io.BytesIO()
    picture(np.random.default_rng(1), width, height).convert(mode).save(file, format_, **options)
    return file.getvalue()


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved("JPEG", exif=exif)


def sixteen_bits() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(80 * 60, dtype=np.uint16).reshape(60, 80) * 13).save(file, "PNG")
    return file.getvalue()


def exotic_sampling() -> bytes:
    """4:1:1, by rewriting the factors of an image whose blocks fit both."""
    data = bytearray(saved("JPEG", subsampling=0, width=8, height=8, quality=90))
    at = data.index(b"\xff\xc0")
    data[at + 11] = 0x41
    return bytes(data)


ODD_FILES: dict[str, Callable[[], bytes]] = {
    "progressive": lambda: saved("JPEG", progressive=True),
    "gray": lambda: saved("JPEG", "L"),
    "cmyk": lambda: saved("JPEG", "CMYK"),
    "rgb inside": lambda: saved("JPEG", keep_rgb=True),
    "png": lambda: saved("PNG"),
    "png with alpha": lambda: saved("PNG", "RGBA"),
    "png with a palette": lambda: saved("PNG", "P"),
    "png of 16 bits": sixteen_bits,
    "png of 1 bit": lambda: saved("PNG", "1"),
    "webp": lambda: saved("WEBP"),
    "gif": lambda: saved("GIF"),
    "bmp": lambda: saved("BMP"),
    "tiff": lambda: saved("TIFF"),
    "rotated by exif": rotated,
    "1×1": lambda: saved("JPEG", width=1, height=1),
    "very wide": lambda: saved("JPEG", width=3000, height=2),
    "very tall": lambda: saved("JPEG", width=1, height=2000),
    "garbage after the end": lambda: GOOD + b"and more",
    "fill bytes before a marker": lambda: GOOD[:2] + b"\xff\xff\xff" + GOOD[2:],
    "two pictures in one file": lambda: GOOD + GOOD,
    "without its end marker": lambda: GOOD[:-2],
    "empty": lambda: b"",
    "text": lambda: b"not a picture",
    "only the start": lambda: GOOD[:20],
    "cut in its header": lambda: GOOD[:200],
    "cut in its data": lambda: GOOD[: len(GOOD) * 2 // 3],
    "zeros from the middle on": lambda: GOOD[: len(GOOD) // 2] + bytes(len(GOOD) // 2),
    "4:1:1 by another's blocks": exotic_sampling,
}
