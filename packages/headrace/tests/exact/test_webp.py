"""WebP files are decoded to Pillow's pixels, for any rectangle, or left to Pillow."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from headrace._native import ffi
from headrace._native.decoders import native_formats
from headrace.errors import NativeError
from support.images import Rectangle, by_pillow, check_rectangles, rectangle
from support.jpegs import picture

pytestmark = pytest.mark.skipif(
    "WEBP" not in native_formats() or not features.check("webp"), reason="built without libwebp"
)

KINDS: dict[str, dict[str, Any]] = {
    "lossy": {"quality": 70},
    "lossy, coarse": {"quality": 5, "method": 0},
    "lossy, fine": {"quality": 98, "method": 6},
    "lossy with alpha": {"quality": 60, "alpha_quality": 50},
    "lossy with exact alpha": {"quality": 80, "exact": True},
    "lossless": {"lossless": True, "quality": 30},
    "lossless with alpha": {"lossless": True, "quality": 90},
    "lossless with exact alpha": {"lossless": True, "exact": True},
}
FILES_OF_A_KIND = 40


def webp(rng: np.random.Generator, kind: str, width: int, height: int, **options: Any) -> bytes:
    image = picture(rng, width, height)
    if "alpha" in kind:
        alpha = rng.integers(0, 256, (height, width), np.uint8)
        image.putalpha(Image.fromarray(np.where(alpha < 90, 0, alpha).astype(np.uint8)))
    file = io.BytesIO()
    image.save(file, "WEBP", **KINDS[kind], **options)
    return file.getvalue()


def decoded(data: bytes, rect: Rectangle) -> npt.NDArray[np.uint8]:
    return ffi.image_decode(data, "libwebp", rect)


def check(data: bytes, *rectangles: Rectangle) -> None:
    check_rectangles("libwebp", data, *rectangles)


@pytest.mark.parametrize("kind", KINDS)
def test_crops_of_every_kind_equal_pillows(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for i in range(FILES_OF_A_KIND):
        limit = 4 if i < 10 else 120
        width, height = (int(n) for n in rng.integers(1, limit + 1, 2))
        data = webp(rng, kind, width, height)
        check(data, *(rectangle(rng, width, height) for _ in range(8)))


@given(
    kind=st.sampled_from(list(KINDS)),
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=150)
def test_any_file_gives_pillows_pixels(kind: str, size: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    check(webp(rng, kind, *size), *(rectangle(rng, *size) for _ in range(3)))


def test_every_rectangle_of_a_small_file() -> None:
    rng = np.random.default_rng(1)
    for kind in ("lossy", "lossless with alpha"):
        for width, height in ((5, 6), (9, 4), (17, 18)):
            data = webp(rng, kind, width, height)
            rects = [
                (x, y, w, h)
                for x in range(0, width, 1 + width // 8)
                for y in range(0, height, 1 + height // 8)
                for w in range(1, width - x + 1)
                for h in range(1, height - y + 1)
            ]
            check(data, *rects)


@pytest.mark.parametrize("kind", ["lossy", "lossy with alpha", "lossless"])
def test_a_large_file(kind: str) -> None:
    data = webp(np.random.default_rng(2), kind, 900, 700)
    check(data, (0, 0, 900, 3), (899, 699, 1, 1), (101, 51, 640, 481), (0, 350, 900, 350))


def test_metadata_change_no_pixel() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    rng = np.random.default_rng(3)
    for kind in ("lossy", "lossless with alpha"):
        check(webp(rng, kind, 40, 30, exif=exif, icc_profile=bytes(3000), xmp=b"<x/>"), (3, 5, 20, 7))


def test_animations_are_left_to_pillow() -> None:
    rng = np.random.default_rng(4)
    frames = [picture(rng, 30, 20) for _ in range(3)]
    file = io.BytesIO()
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], duration=100)
    with pytest.raises(NativeError):
        decoded(file.getvalue(), (0, 0, 5, 5))
    assert not ffi.image_decodes(file.getvalue())


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_was_cut_short_is_refused_wherever_the_crop_lies(kind: str) -> None:
    data = webp(np.random.default_rng(5), kind, 24, 18)
    whole = by_pillow(data)
    for length in range(len(data)):
        try:
            pixels = decoded(data[:length], (0, 0, 1, 1))
        except NativeError:
            continue
        # Only a byte of padding, or a chunk that says nothing about pixels, may be missing.
        assert np.array_equal(by_pillow(data[:length]), whole)
        assert np.array_equal(pixels, whole[:1, :1])


@pytest.mark.parametrize("kind", ["lossy", "lossy, fine", "lossless"])
def test_damage_behind_the_crop_never_changes_its_pixels(kind: str) -> None:
    """WebP has no checksums: Pillow may raise an error for such a file, of which the crop is intact."""
    rng, numbers = random.Random(7), np.random.default_rng(7)
    unnoticed = 0
    for _ in range(30):
        data = webp(numbers, kind, 64, 96)
        top = by_pillow(data)[:16]
        damaged = bytearray(data)
        for _ in range(3):
            damaged[rng.randrange(len(data) * 9 // 10, len(data))] = rng.randrange(256)
        try:
            pixels = decoded(bytes(damaged), (0, 0, 64, 16))
        except NativeError:
            continue
        assert np.array_equal(pixels, top)
        unnoticed += 1
    assert unnoticed > 0


@pytest.mark.parametrize("kind", KINDS)
def test_damage_gives_pillows_pixels_or_pillows_error(kind: str) -> None:
    rng, numbers = random.Random(6), np.random.default_rng(6)
    for _ in range(60):
        data = bytearray(webp(numbers, kind, 40, 40))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(12, len(data))] = rng.randrange(256)
        _, width, height, _ = ffi.index_images([bytes(data)])[0]
        if not 0 < width * height <= 1 << 22:  # damage may make them huge
            continue
        try:
            pixels = decoded(bytes(data), (0, 0, width, height))
        except NativeError:
            continue
        assert np.array_equal(pixels, by_pillow(bytes(data)))
