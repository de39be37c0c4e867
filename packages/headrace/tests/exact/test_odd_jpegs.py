"""Odd encoders' files: every decoder gives Pillow's pixels or refuses; nobody takes what Pillow refuses."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from headrace._native import ffi
from headrace.errors import NativeError
from support.odd_jpegs import FOUR_COMPONENTS, REFUSED, TAKEN

FOLDER = "HEADRACE_ODD_JPEGS"


def by_pillow(data: bytes) -> npt.NDArray[np.uint8] | None:
    """RGB as torchvision's loader makes it, or None if Pillow raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about EXIF and the like: not about pixels
        try:
            return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            return None


def by_ours(data: bytes, decoder: str, rect: tuple[int, int, int, int]) -> npt.NDArray[np.uint8] | None:
    """None: the decoder refuses the file."""
    try:
        return ffi.image_decode(data, decoder, rect)
    except NativeError:
        return None


def rectangles(width: int, height: int) -> list[tuple[int, int, int, int]]:
    """All, the middle, the last corner, and a column: (x, y, width, height)."""
    w, h = -(-width // 3), -(-height // 3)
    return [
        (0, 0, width, height),
        (w // 2, h // 2, w, h),
        (width - w, height - h, w, h),
        (width // 2, 0, 1, height),
    ]


def takers(data: bytes, name: str) -> set[str]:
    """The decoders that take the file, all of its rectangles compared with Pillow's pixels."""
    expected = by_pillow(data)
    _, width, height, _ = ffi.index_images([data])[0]
    if not width:
        return set()
    if width * height > (Image.MAX_IMAGE_PIXELS or 0):
        return set()  # what a loader leaves to Pillow
    found = set()
    for decoder in ffi.decoder_names():
        for x, y, w, h in rectangles(width, height):
            pixels = by_ours(data, decoder, (x, y, w, h))
            if pixels is None:
                continue
            assert expected is not None, f"{name}: {decoder} takes what Pillow refuses"
            assert expected.shape == (height, width, 3), name
            assert np.array_equal(pixels, expected[y : y + h, x : x + w]), (
                f"{name}: {decoder}, {(x, y, w, h)}"
            )
            found.add(decoder)
    return found


@pytest.mark.parametrize("name", TAKEN)
def test_our_decoder_takes_it_and_gives_pillows_pixels(name: str) -> None:
    data = TAKEN[name]()
    assert by_pillow(data) is not None
    assert "headrace" in takers(data, name)


@pytest.mark.parametrize("name", REFUSED)
def test_our_decoder_leaves_it_to_others(name: str) -> None:
    assert "headrace" not in takers(REFUSED[name](), name)


@pytest.mark.parametrize("name", FOUR_COMPONENTS)
def test_libjpeg_takes_cmyk_and_gives_pillows_pixels(name: str) -> None:
    data = FOUR_COMPONENTS[name]()
    assert {"libjpeg-crop", "libjpeg-full"} <= takers(data, name)


@pytest.mark.slow
@pytest.mark.skipif(
    FOLDER not in os.environ, reason=f"{FOLDER} names no folder: tools/odd-jpegs.sh fetches one"
)
def test_other_projects_test_images() -> None:
    counts: Counter[str] = Counter()
    for path in sorted(Path(os.environ[FOLDER]).rglob("*")):
        if not path.is_file() or not (data := path.read_bytes()).startswith(b"\xff\xd8\xff"):
            continue
        found = takers(data, str(path))
        counts["files"] += 1
        counts["taken by Pillow"] += by_pillow(data) is not None
        counts["taken by our decoder"] += "headrace" in found
        counts["taken by libjpeg only"] += bool(found) and "headrace" not in found
        counts["left to Pillow"] += not found
    logging.info("%s", dict(counts))
    assert counts["files"] >= 100
    assert counts["taken by our decoder"] > counts["files"] // 4
