"""What is made at a touch is what Pillow would have decoded, of damaged files as well."""

from __future__ import annotations

import faulthandler
import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageDraw, ImageOps

import headrace
from headrace import _pillow_compat
from headrace._native import abi, render
from headrace._native import deferred as memory
from headrace.deferred import images
from headrace.deferred.chain import Chain, File
from headrace.deferred.steps import RGB_ROWS
from headrace.errors import NativeError
from support import pngs
from support.deferred_images import both, is_deferred, needs_native, outcome
from support.jpegs import JPEG_KINDS, jpeg
from support.odd_files import saved


def test_pillow_keeps_images_as_expected() -> None:
    assert _pillow_compat.problem() is None


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A JPEG with one to four bytes of its compressed data changed."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(data.rindex(b"\xff\xda") + 14, len(data) - 2)] = rng.randrange(255)
    return bytes(changed)


@pytest.mark.parametrize("kind", JPEG_KINDS)
def test_damaged_jpegs_are_decoded_as_by_pillow(kind: str) -> None:
    rng, late = random.Random(len(kind)), 0
    good = jpeg(np.random.default_rng(0), kind, 90, 70)

    for _ in range(60):
        ours, theirs = both(damaged(good, rng))
        wanted = outcome(theirs.tobytes)
        if isinstance(wanted[0], bytes):
            ours.load()
            late += is_deferred(ours)
        assert outcome(ours.tobytes) == wanted
    assert late > 20 or kind == "progressive"


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1"])
def test_an_inflated_png_is_the_same_image(mode: str) -> None:
    needs_native("PNG")
    data, size = saved("PNG", mode, 300, 200), (300, 200)
    inflated = render.inflated_png(data)
    for crop in ((0, 0, *size), (20, 70, 100, 50), (299, 199, 1, 1)):
        made = []
        for file, flags in ((data, 0), (inflated, abi.INFLATED)):
            chain = Chain.whole(File(file, size, flags), "RGB")._replace(crop=crop, size=crop[2:])
            out = np.empty((crop[3], crop[2], 3), np.uint8)
            assert chain._replace(window=(0, 0, *crop[2:])).write(RGB_ROWS, out.ctypes.data)
            made.append(out)
        assert np.array_equal(made[0], made[1])


@pytest.mark.parametrize("name", pngs.REFUSED)
def test_a_damaged_png_is_not_inflated(name: str) -> None:
    data = pngs.REFUSED[name]()
    try:
        inflated = render.inflated_png(data)
    except NativeError:
        return
    assert len(inflated) > 0  # its pixels are whole


def test_faulthandler_comes_second_once_images_are_deferred() -> None:
    ours, theirs = both(jpeg(np.random.default_rng(0), "4:2:0", 61, 47))
    ours.load()
    enabled = faulthandler.is_enabled()
    faulthandler.enable()
    try:
        assert is_deferred(ours)
        assert ours.tobytes() == theirs.tobytes()
    finally:
        if not enabled:
            faulthandler.disable()


def test_without_deferred_memory_pillow_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = jpeg(np.random.default_rng(0), "4:2:0", 61, 47)
    monkeypatch.setattr(memory, "problem", lambda: "there is none here")
    ours, theirs = both(data)
    assert ours.tobytes() == theirs.tobytes()
    assert images.problem() == "there is none here"
    loader: Any = headrace.DataLoader(Opened(data), 2, num_workers=1)  # type: ignore[arg-type]
    list(loader)
    assert "native code can't do so here: there is none here" in " ".join(loader.explain().split())


class Opened:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return np.array(Image.open(io.BytesIO(self.data)))[index]


def test_images_without_deferred_memory_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = both(jpeg(np.random.default_rng(0), "4:2:0", 61, 47))
    ours.load()
    monkeypatch.setattr(memory, "take", lambda *_: None)
    crop, wanted = ours.crop((3, 4, 30, 40)), theirs.crop((3, 4, 30, 40))
    assert crop == wanted
    assert not is_deferred(crop)


def test_a_damaged_webp_gives_pillows_error_when_its_pixels_are_needed() -> None:
    rng, errors = random.Random(3), 0
    good = saved("WEBP", lossless=True)
    for _ in range(30):
        changed = bytearray(good)
        changed[rng.randrange(40, len(good))] = rng.randrange(256)
        ours, theirs = both(bytes(changed))
        found, wanted = (outcome(lambda: image.convert("RGB").tobytes()) for image in (ours, theirs))  # noqa: B023
        assert found == wanted
        errors += not isinstance(wanted[0], bytes)
    assert 0 < errors < 30


def with_a_line(image: Image.Image) -> bytes:
    ImageDraw.Draw(image).line((0, 0, 9, 9))
    return image.tobytes()


READS: dict[str, Callable[[Image.Image], Any]] = {
    "tobytes": lambda image: image.tobytes(),
    "getpixel": lambda image: image.getpixel((1, 2)),
    "equalize": lambda image: ImageOps.equalize(image).tobytes(),
    "draw": with_a_line,
    "multiply": lambda image: ImageChops.multiply(image, image).tobytes(),
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_methods_of_pillows_need_no_fault(read: Callable[[Image.Image], Any], kind: str) -> None:
    needs_native(kind)
    for prepare in (lambda image: image, lambda image: image.convert("RGB").crop((3, 2, 33, 32))):
        ours, theirs = map(prepare, both(saved(kind, "RGB", 60, 50)))
        before = memory.counts().faults
        assert np.array_equal(read(ours), read(theirs))
        assert memory.counts().faults == before
    ours, theirs = both(saved(kind, "RGB", 60, 50))
    ours.load()[0, 0] = theirs.load()[0, 0] = (1, 2, 3)  # type: ignore[index]
    assert memory.counts().faults == before + 1
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("options", [{"progressive": True}, {}], ids=["progressive", "small"])
def test_files_that_are_not_worth_it_are_pillows(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "FEWEST_PIXELS", 61 * 50)
    file = io.BytesIO()
    Image.new("RGB", (60, 50 + len(options))).save(file, "JPEG", **options)
    ours, _ = both(file.getvalue())
    ours.load()
    assert not is_deferred(ours)
