"""A transcoded file has the coefficients, so the pixels, of its source: by Pillow's decoder."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from headrace._native import ffi
from headrace.errors import NativeError
from support.jpegs import JPEG_KINDS, jpeg, picture

APP1, COMMENT, RESTART_INTERVAL = 0xE1, 0xFE, 0xDD


def saved(mode: str = "RGB", width: int = 133, height: int = 77, **options: Any) -> bytes:
    file = io.BytesIO()
    picture(np.random.default_rng(1), width, height).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def with_exif() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(exif=exif, comment=b"a comment", icc_profile=bytes(70000))


def sixteen_bit_quantizers() -> bytes:
    return saved(qtables=[[min(65535, 16 + 40 * i) for i in range(64)]] * 2)


FILES: dict[str, Callable[[], bytes]] = {
    **{
        kind: lambda kind=kind: jpeg(np.random.default_rng(2), kind, 133, 77)  # type: ignore[misc]
        for kind in JPEG_KINDS
    },
    "progressive 4:4:4": lambda: saved(progressive=True, subsampling=0),
    "progressive gray": lambda: saved("L", progressive=True),
    "cmyk": lambda: saved("CMYK"),
    "rgb inside": lambda: saved(keep_rgb=True),
    "restart markers": lambda: saved(restart_marker_blocks=3),
    "restart markers by rows": lambda: saved(restart_marker_rows=2),
    "exif": with_exif,
    "trailing garbage": lambda: saved() + b"and more\xff\xd8",
    "two pictures": lambda: saved() + saved("L"),
    "one pixel": lambda: saved(width=1, height=1),
    "black and white": lambda: saved("1"),
    "coarse": lambda: saved(quality=1),
    "fine": lambda: saved(quality=100, subsampling=0),
    "sixteen bit quantizers": sixteen_bit_quantizers,
}


def pixels(data: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


def segments(data: bytes) -> list[tuple[int, bytes]]:
    """(marker, payload) up to the first scan."""
    found, at = [], 2
    while (marker := data[at + 1]) != 0xDA:
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((marker, data[at + 4 : at + 2 + size]))
        at += 2 + size
    return found


def restart_markers(data: bytes) -> int:
    start = data.index(b"\xff\xda")
    return len(re.findall(rb"\xff[\xd0-\xd7]", data[start:]))


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("interval", [-1, 0, 1, 5])
@pytest.mark.parametrize("name", FILES)
def test_pixels_stay(name: str, interval: int, optimize: bool) -> None:
    source = FILES[name]()
    out = ffi.jpeg_transcode(source, restart_interval=interval, optimize=optimize)
    assert np.array_equal(pixels(out), pixels(source))
    with Image.open(io.BytesIO(out)) as image:
        assert "progressive" not in image.info
    frames = [marker for marker, _ in segments(out) if 0xC0 <= marker <= 0xC2]
    assert frames == [0xC1 if name == "sixteen bit quantizers" else 0xC0]


@pytest.mark.parametrize("name", ["4:2:0", "4:2:2", "4:4:4", "gray", "progressive", "restart markers"])
def test_our_own_decoder_takes_the_result(name: str) -> None:
    source = FILES[name]()
    out = ffi.jpeg_transcode(source)
    whole = np.asarray(Image.open(io.BytesIO(source)).convert("RGB"))
    assert np.array_equal(ffi.image_decode(out, "headrace", (40, 20, 50, 30)), whole[20:50, 40:90])


def test_transcoding_twice_changes_nothing() -> None:
    for name, make in FILES.items():
        once = ffi.jpeg_transcode(make())
        assert ffi.jpeg_transcode(once) == once, name


def test_optimized_tables_make_files_smaller() -> None:
    source = saved(quality=75)
    plain = ffi.jpeg_transcode(source, restart_interval=0, optimize=False)
    assert plain == source  # Pillow writes the standard tables, too
    assert len(ffi.jpeg_transcode(source, restart_interval=0)) < len(plain)


# 133 columns are 9 MCUs of 16 pixels, 17 of 8; 77 rows 5 and 10.
@pytest.mark.parametrize(
    ("width", "subsampling", "asked", "interval"),
    [
        (133, 2, 0, None),
        (133, 2, 7, 7),
        (133, 2, 65535, 65535),
        (133, 2, -1, 3),  # 9 MCUs a row
        (133, 0, -1, 1),  # 17
        (128, 2, -1, 4),  # 8
        (96, 2, -1, 3),  # 6
        (160, 2, -1, 2),  # 10
    ],
)
def test_restart_intervals_are_those_asked_for(
    width: int, subsampling: int, asked: int, interval: int | None
) -> None:
    source = saved(width=width, subsampling=subsampling, restart_marker_blocks=2)
    out = ffi.jpeg_transcode(source, restart_interval=asked)
    stated = [
        int.from_bytes(payload, "big") for marker, payload in segments(out) if marker == RESTART_INTERVAL
    ]
    assert stated == ([] if interval is None else [interval])
    side = 8 if subsampling == 0 else 16
    mcus = -(-width // side) * -(-77 // side)
    assert restart_markers(out) == (0 if interval is None else -(-mcus // interval) - 1)


def test_markers_are_kept_or_stripped() -> None:
    source = with_exif()

    def metadata(data: bytes) -> list[tuple[int, bytes]]:
        return [(marker, payload) for marker, payload in segments(data) if marker >= 0xE0]

    kept = ffi.jpeg_transcode(source)
    assert metadata(kept) == metadata(source)
    assert {APP1, COMMENT} <= {marker for marker, _ in metadata(kept)}
    stripped = ffi.jpeg_transcode(source, copy_markers=False)
    assert metadata(stripped) == [(0xE0, segments(source)[0][1])]  # JFIF
    assert len(stripped) < len(kept) - 70000


def test_what_the_colors_mean_is_never_stripped() -> None:
    for source in (saved("CMYK"), saved(keep_rgb=True)):
        out = ffi.jpeg_transcode(source, copy_markers=False)
        assert np.array_equal(pixels(out), pixels(source))


def test_many_markers_may_outgrow_the_first_guess_of_the_size() -> None:
    file = io.BytesIO()
    Image.new("L", (400, 400)).save(file, "JPEG", progressive=True)
    source = file.getvalue()
    out = ffi.jpeg_transcode(source, restart_interval=1, optimize=False)
    assert len(out) > len(source) * 3 // 2 + 1024
    assert np.array_equal(pixels(out), pixels(source))


@pytest.mark.parametrize("kind", ["4:2:0", "progressive"])
def test_a_file_that_was_cut_short_is_refused(kind: str) -> None:
    data = jpeg(np.random.default_rng(3), kind, 133, 77)
    for length in (0, 1, 2, 20, 200, len(data) // 2, len(data) - 20, len(data) - 1):
        with pytest.raises(NativeError):
            ffi.jpeg_transcode(data[:length])


def test_damage_is_refused_or_harmless() -> None:
    """What is given back has the pixels that Pillow makes of the source, and Pillow doesn't complain."""
    rng = np.random.default_rng(4)
    data = jpeg(rng, "4:2:0", 133, 77)
    refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        damaged[rng.integers(len(data))] ^= 1 << rng.integers(8)
        try:
            out = ffi.jpeg_transcode(bytes(damaged))
        except NativeError:
            refused += 1
            continue
        assert np.array_equal(pixels(out), pixels(bytes(damaged)))
    assert 10 < refused < 290


def test_what_is_no_jpeg_is_refused() -> None:
    for data in (b"GIF89a", bytes(1000), b"\xff\xd8\xff\xd9"):
        with pytest.raises(NativeError):
            ffi.jpeg_transcode(data)


@pytest.mark.parametrize("interval", [-2, 65536])
def test_a_restart_interval_out_of_range_is_named(interval: int) -> None:
    with pytest.raises(NativeError, match=r"restart interval is -1 .* or 0 to 65535"):
        ffi.jpeg_transcode(saved(), restart_interval=interval)
