"""A deferred image is read from its file when Pillow reads it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image

from headrace.deferred import images
from support.deferred_images import both, both_ways, is_deferred, needs_native, outcome
from support.jpegs import jpeg
from support.odd_files import saved

FORMATS: dict[str, Callable[[int, int], bytes]] = {
    "JPEG": lambda width, height: jpeg(np.random.default_rng(width), "4:2:0", width, height),
    "PNG": lambda width, height: saved("PNG", "RGB", width, height),
    "PNG with a palette": lambda width, height: saved("PNG", "P", width, height),
    "WebP": lambda width, height: saved("WEBP", "RGB", width, height),
}
LOOKS: dict[str, Callable[[Any], Any]] = {
    "tobytes": lambda image: image.tobytes(),
    "convert": lambda image: image.convert("RGB").tobytes(),
    "crop": lambda image: image.crop((0, 0, 30, 20)).tobytes(),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("size", [(61, 47), (200, 160), (20, 10)])
@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_is_overwritten(format: str, size: tuple[int, int], look: str, tmp_path: Path) -> None:
    if (format, size) == ("JPEG", (200, 160)) and int(PIL.__version__.split(".")[0]) < 13:
        pytest.skip("Pillow 12 writes past the image if its JPEG file became a larger one")
    first, second = FORMATS[format](61, 47), FORMATS[format](*size)

    def in_a_file() -> Any:
        path = tmp_path / "image"
        path.write_bytes(first)
        before = os.stat(path)
        with Image.open(path) as image:
            path.write_bytes(second)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
            return LOOKS[look](image)

    def in_memory() -> Any:
        file = io.BytesIO(first)
        image = Image.open(file)
        file.seek(0)
        file.truncate()
        file.write(second)
        return LOOKS[look](image)

    def after_load() -> Any:
        path = tmp_path / "image"
        path.write_bytes(first)
        image = Image.open(path)
        image.load()
        path.write_bytes(second)
        return LOOKS[look](image)

    def replaced() -> Any:
        path = tmp_path / "image"
        path.write_bytes(first)
        image = Image.open(path)
        (tmp_path / "other").write_bytes(second)
        os.replace(tmp_path / "other", path)
        return LOOKS[look](image)

    for action in (in_a_file, in_memory, after_load, replaced):
        ours, theirs = both_ways(action)
        assert ours == theirs, action.__name__


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_is_closed(format: str, look: str, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(FORMATS[format](61, 47))

    def by_its_owner() -> Any:
        with open(path, "rb") as file:
            image = Image.open(file)
        return LOOKS[look](image)

    def in_memory() -> Any:
        with io.BytesIO(path.read_bytes()) as file:
            image = Image.open(file)
        return LOOKS[look](image)

    def as_a_context() -> Any:
        with Image.open(path) as image:
            pass
        return LOOKS[look](image)

    def by_close() -> Any:
        image = Image.open(path)
        image.close()
        return LOOKS[look](image)

    def by_verify() -> Any:
        image = Image.open(path)
        image.verify()
        return LOOKS[look](image)

    for action in (by_its_owner, in_memory, as_a_context, by_close, by_verify):
        ours, theirs = both_ways(action)
        assert ours == theirs, action.__name__


def pixels(array: Any, format_: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, format_, **options)
    return file.getvalue()


RNG = np.random.default_rng(5)
ALPHA = RNG.integers(0, 256, (60, 80, 4), dtype=np.uint8)
# Files in modes of which conversions alone are recorded.
CONVERTED: dict[str, bytes] = {
    "RGBA": pixels(ALPHA, "PNG"),
    "LA": pixels(ALPHA[..., :2].copy(), "PNG"),
    "1": pixels(ALPHA[..., 0] > 99, "PNG"),
    "I;16": pixels(RNG.integers(0, 1 << 16, (60, 80), dtype=np.uint16), "PNG"),
    "WebP": pixels(ALPHA, "WEBP"),
    "lossless WebP": pixels(ALPHA, "WEBP", lossless=True, exact=True),
}
USES: dict[str, Callable[[Any], Any]] = {
    "RGB": lambda image: image.convert("RGB"),
    "L": lambda image: image.convert("L"),
    "crop": lambda image: image.convert("RGB").crop((3, 4, 50, 40)).resize((31, 22)),
    "kept": lambda image: (image.convert("RGB"), image)[1],
    "used before": lambda image: (image.getpixel((3, 3)), image.convert("RGB"))[1],
    "changed before": lambda image: (image.putpixel((3, 3), 0), image.convert("RGB"))[1],
    "changed after": lambda image: (other := image.convert("RGB"), image.putpixel((3, 3), 0), other)[2],
    "resized before": lambda image: image.resize((31, 22)).convert("RGB"),
    "itself": lambda image: image,
    "copied": lambda image: image.copy().convert("RGB"),
    "an alpha channel": lambda image: image.convert("RGBA").split()[-1],
    "closed": lambda image: (image.load(), image.close(), image.convert("RGB"))[2],
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", CONVERTED)
def test_images_with_alpha_of_one_bit_or_sixteen_are_converted_as_by_pillow(name: str, use: str) -> None:
    ours, theirs = both(CONVERTED[name])

    def used(image: Any) -> Any:
        result = USES[use](image)
        return [type(result), np.asarray(result), result]

    assert outcome(lambda: used(ours)) == outcome(lambda: used(theirs))


@pytest.mark.parametrize("name", CONVERTED)
def test_conversions_of_such_images_are_recorded(name: str) -> None:
    count = images.opened.count
    image = both(CONVERTED[name])[0]
    needs_native(image.format)
    assert is_deferred(image.convert("RGB"))
    assert images.opened.count == count + 1
