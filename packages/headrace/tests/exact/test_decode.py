"""Every decoder gives the pixels of Pillow's decoder, for any rectangle, with every instruction set."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from headrace._native import ffi
from headrace._native.decoders import FORMATS
from headrace.errors import NativeError
from support.images import rectangle
from support.jpegs import JPEG_KINDS, RESTARTS, cmyk, jpeg

CROPS = 800
CROPS_PER_PICTURE = 10


@pytest.fixture(params=ffi.simd_names())
def simd(request: pytest.FixtureRequest) -> Iterator[str]:
    ffi.simd_force(request.param)
    yield request.param
    ffi.simd_force(None)


def sizes(rng: np.random.Generator) -> tuple[int, int]:
    """Tiny ones often: libjpeg takes another path where a component is at most two columns wide."""
    limit = int(rng.choice([8, 40, 160, 420]))
    width, height = (int(n) for n in rng.integers(1, limit + 1, 2))
    return width, height


def takes(decoder: str, kind: str) -> bool:
    """Whether the decoder must not refuse such a file."""
    return decoder != "headrace" or kind != "progressive"


# Only our own decoder has variants for instruction sets that can be forced.
VARIANTS = [("headrace", simd) for simd in ffi.simd_names()]
VARIANTS += [(decoder, ffi.simd_active()) for decoder in FORMATS["JPEG"] if decoder != "headrace"]


@pytest.mark.parametrize("kind", JPEG_KINDS)
@pytest.mark.parametrize(("decoder", "simd"), VARIANTS, indirect=["simd"])
def test_crops_equal_pillows(decoder: str, kind: str, simd: str) -> None:
    rng = np.random.default_rng(1)
    crops = refused = 0
    while crops + refused < CROPS:
        width, height = sizes(rng)
        restarts = str(rng.choice(list(RESTARTS)))
        data = jpeg(rng, kind, width, height, **({} if kind == "progressive" else RESTARTS[restarts]))
        whole = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        for _ in range(CROPS_PER_PICTURE):
            x, y, w, h = rectangle(rng, width, height)
            try:
                pixels = ffi.image_decode(data, decoder, (x, y, w, h))
            except NativeError:
                assert not takes(decoder, kind), f"{decoder} refused {kind}, {restarts}"
                refused += 1
                continue
            crops += 1
            where = f"{decoder}, {simd}: {width}×{height} {kind}, {restarts}, crop {(x, y, w, h)}"
            assert np.array_equal(pixels, whole[y : y + h, x : x + w]), where
    assert crops > CROPS // 4 or kind == "progressive"


@pytest.mark.parametrize("ycck", [False, True], ids=["cmyk", "ycck"])
@pytest.mark.parametrize("decoder", ["libjpeg-crop", "libjpeg-full"])
def test_crops_of_cmyk_equal_pillows(decoder: str, *, ycck: bool) -> None:
    rng = np.random.default_rng(4)
    crops = 0
    for number in range(60):
        width, height = sizes(rng)
        restarts = list(RESTARTS)[number % len(RESTARTS)]
        save = {"progressive": True} if number % 4 == 3 else RESTARTS[restarts]
        quality = int(rng.choice([30, 90]))
        data = cmyk(rng, width, height, ycck=ycck, quality=quality, **save)
        whole = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        for _ in range(CROPS_PER_PICTURE):
            x, y, w, h = rectangle(rng, width, height)
            pixels = ffi.image_decode(data, decoder, (x, y, w, h))
            crops += 1
            where = f"{width}×{height}, {save}, crop {(x, y, w, h)}"
            assert np.array_equal(pixels, whole[y : y + h, x : x + w]), where
    assert crops >= 100


@pytest.mark.parametrize("kind", ["4:2:0", "4:2:2", "4:4:4", "gray"])
def test_crops_equal_pillows_with_entry_points(kind: str, simd: str) -> None:
    rng = np.random.default_rng(2)
    crops = 0
    while crops < CROPS:
        width, height = (int(n) for n in rng.integers(1, 300, 2))
        data = jpeg(rng, kind, width, height)
        entries = ffi.index_images([data], int(rng.integers(1, 9)))[0].entries
        assert entries
        whole = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        for _ in range(CROPS_PER_PICTURE):
            x, y, w, h = rectangle(rng, width, height)
            pixels = ffi.image_decode(data, "headrace", (x, y, w, h), entries)
            crops += 1
            assert np.array_equal(pixels, whole[y : y + h, x : x + w]), f"{width}×{height}, {(x, y, w, h)}"


def test_damaged_entry_points_give_the_right_pixels_or_none() -> None:
    rng = np.random.default_rng(3)
    data = jpeg(rng, "4:2:0", 300, 200)
    entries = ffi.index_images([data], 4)[0].entries
    whole = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    for length in (1, 15, 16, 17, len(entries) - 1):
        assert np.array_equal(ffi.image_decode(data, "headrace", (0, 0, 300, 200), entries[:length]), whole)
    for at in range(len(entries)):
        damaged = bytearray(entries)
        damaged[at] ^= 1 << rng.integers(8)
        pixels = ffi.image_decode(data, "headrace", (150, 100, 50, 50), bytes(damaged))
        assert np.array_equal(pixels, whole[100:150, 150:200]), f"byte {at} of the entry points"


@pytest.mark.parametrize("decoder", FORMATS["JPEG"])
def test_metadata_is_stepped_over(decoder: str) -> None:
    image = Image.fromarray(np.random.default_rng(4).integers(0, 256, (70, 90, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated: torchvision ignores it, and so do we
    file = io.BytesIO()
    image.save(
        file,
        "JPEG",
        exif=exif,
        comment=b"\xff\xd8 not a marker",
        icc_profile=bytes(70000),
        restart_marker_rows=1,
    )
    whole = np.asarray(Image.open(io.BytesIO(file.getvalue())).convert("RGB"))
    assert np.array_equal(ffi.image_decode(file.getvalue(), decoder, (10, 20, 60, 40)), whole[20:60, 10:70])


@pytest.mark.parametrize("decoder", FORMATS["JPEG"])
def test_a_file_that_was_cut_short_is_refused_wherever_the_crop_lies(decoder: str) -> None:
    data = jpeg(np.random.default_rng(5), "4:2:0", 200, 200, restart_marker_rows=1)
    for length in (len(data) // 2, len(data) - 100, len(data) - 1):
        with pytest.raises(NativeError):
            ffi.image_decode(data[:length], decoder, (0, 0, 8, 8))


def test_what_is_no_jpeg_is_refused() -> None:
    for data in (b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"GIF89a", bytes(1000)):
        assert ffi.index_images([data])[0][1:] == (0, 0, b"")
        with pytest.raises(NativeError):
            ffi.image_decode(data, "libjpeg-full", (0, 0, 1, 1))


def test_a_rectangle_outside_the_image_is_an_error_not_a_crash() -> None:
    data = jpeg(np.random.default_rng(6), "gray", 20, 10)
    for rect in ((0, 0, 21, 10), (0, 0, 20, 11), (-1, 0, 5, 5), (19, 9, 2, 1), (0, 0, 0, 1)):
        with pytest.raises(NativeError, match="rectangle"):
            ffi.image_decode(data, "libjpeg-full", rect)
