"""Several images of one file: it is decoded once where that is less work, and each is the one of Pillow."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter

from headrace._native import render
from headrace.deferred import arrays
from headrace.deferred.chain import Chain, File
from headrace.deferred.steps import RGB_ROWS, allowed_decoders, native_form
from headrace.errors import NativeError
from support.deferred_images import both
from support.jpegs import JPEG_KINDS, jpeg
from support.odd_files import saved

FLIP = Image.Transpose.FLIP_LEFT_RIGHT


def program(image: Image.Image, seed: int) -> list[Any]:
    """Crops of many sizes, and what user code does to an image between them."""
    found: list[Any] = []
    rng = random.Random(seed)
    base = image.convert(rng.choice(["RGB", "RGB", "L"]))
    for _ in range(8):
        (left, right), (top, bottom) = (sorted(rng.sample(range(edge + 1), 2)) for edge in base.size)
        view = base.crop((left, top, right, bottom))
        kind = rng.randrange(8)
        if kind == 0:
            found.append(base.getpixel((left, top)) if left < base.width and top < base.height else None)
        elif kind == 1:
            found.append(np.asarray(base).tobytes())
        elif kind == 2:
            base = base.copy()
            base.putpixel((0, 0), 7 if base.mode == "L" else (7, 8, 9))
        elif kind == 3:
            base = base.transpose(FLIP).resize((base.width + 5, base.height))
        elif kind == 4:
            view = view.filter(ImageFilter.GaussianBlur(1.5)).convert("L")
        elif kind == 5:
            view = image.convert("L").resize((31, 22))
        else:
            view = view.resize((rng.randint(1, 60), rng.randint(1, 60)), rng.choice([0, 2, 3]))
        found.append((view.mode, view.size, view.tobytes()))
    return found


@pytest.mark.parametrize("kind", JPEG_KINDS)
def test_views_are_those_of_pillow_whatever_is_done_between_them(kind: str) -> None:
    rng = np.random.default_rng(4)
    for seed in range(12):
        width, height = (int(n) for n in rng.integers(2, 150, 2))
        ours, theirs = both(jpeg(rng, kind, width, height))
        assert program(ours, seed) == program(theirs, seed)


@pytest.mark.parametrize("format", ["PNG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_views_of_other_formats_are_those_of_pillow(format: str, mode: str) -> None:
    for seed in range(6):
        ours, theirs = both(saved(format, mode))
        assert program(ours, seed) == program(theirs, seed)


def job(chain: Chain, output: Any) -> render.RenderJob:
    pipeline, draws = native_form(chain.steps, chain.shown, RGB_ROWS)
    geometry = (chain.crop, chain.size, chain.filter, chain.window, (chain.flip_x, chain.flip_y))
    return render.RenderJob(*geometry, pipeline, draws, output.ctypes.data)


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (37, 1), (16, 16), (130, 97)])
def test_a_decoded_image_renders_what_its_file_renders(size: tuple[int, int]) -> None:
    data, rng = jpeg(np.random.default_rng(6), "4:2:0", *size), random.Random(6)
    image = render.DecodedImage(data, size, allowed_decoders())
    whole = Chain.whole(File(data, size), "RGB")
    for _ in range(30):
        across, down = (sorted(rng.sample(range(edge + 1), 2)) for edge in size)
        chain: Any = whole.cropped(across[0], down[0], across[1], down[1])
        chain = chain.resized((rng.randint(1, 50), rng.randint(1, 50)), rng.randrange(6))
        chain = chain.flipped(x=rng.random() < 0.5).flipped(y=rng.random() < 0.5)
        found, wanted = (np.zeros((*chain.shown[::-1], 3), np.uint8) for _ in range(2))
        assert image.render([job(chain, found)]) == render.render_file(data, [job(chain, wanted)]) == [True]
        assert np.array_equal(found, wanted)


def test_a_decoded_image_refuses_boxes_beyond_it_and_files_of_another_size() -> None:
    data = jpeg(np.random.default_rng(7), "4:2:0", 40, 30)
    image = render.DecodedImage(data, (40, 30), allowed_decoders())
    larger = Chain.whole(File(data, (41, 30)), "RGB")
    with pytest.raises(NativeError, match="a crop leaves the image"):
        image.render([job(larger, np.zeros((30, 41, 3), np.uint8))])
    for size in ((41, 30), (0, 30), (1 << 30, 1 << 30)):
        with pytest.raises(NativeError):
            render.DecodedImage(data, size, allowed_decoders())
    with pytest.raises(NativeError):
        render.DecodedImage(data[: len(data) // 2], (40, 30), allowed_decoders())


def test_threads_may_make_views_of_one_file_at_the_same_time() -> None:
    data = jpeg(np.random.default_rng(8), "4:2:0", 140, 110)

    def views(image: Image.Image) -> list[Image.Image]:
        return [image.crop((n, n, n + 60, n + 50)).resize((33, 20 + n), 2) for n in range(24)]

    ours, theirs = both(data)
    wanted = [view.tobytes() for view in views(theirs.convert("RGB"))]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(10):
            ours, _ = both(data)
            assert (
                list(threads.map(lambda view: np.asarray(view).tobytes(), views(ours.convert("RGB"))))
                == wanted
            )


def test_threads_may_render_from_one_decoded_image_at_the_same_time() -> None:
    size = (150, 120)
    data = jpeg(np.random.default_rng(9), "4:2:0", *size)
    image, whole = (
        render.DecodedImage(data, size, allowed_decoders()),
        Chain.whole(File(data, size), "RGB"),
    )

    def view(number: int, render_jobs: Any) -> bytes:
        left, top = number % 40, number % 30
        chain: Any = whole.cropped(left, top, left + 100, top + 80)
        chain = chain.resized((60 + number % 50, 90), 2 + number % 4).flipped(x=number % 2 == 0)
        found = np.zeros((*chain.shown[::-1], 3), np.uint8)
        assert render_jobs([job(chain, found)]) == [True]
        return found.tobytes()

    wanted = [view(number, lambda jobs: render.render_file(data, jobs)) for number in range(60)]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            assert list(threads.map(lambda number: view(number, image.render), range(60))) == wanted


def test_a_decoded_image_makes_none_of_its_views_where_one_leaves_it() -> None:
    data = jpeg(np.random.default_rng(10), "4:2:0", 40, 30)
    image = render.DecodedImage(data, (40, 30), allowed_decoders())
    fitting, larger = (Chain.whole(File(data, size), "RGB") for size in ((40, 30), (41, 30)))
    first, second = np.full((30, 40, 3), 123, np.uint8), np.zeros((30, 41, 3), np.uint8)
    with pytest.raises(NativeError, match="a crop leaves the image"):
        image.render([job(fitting, first), job(larger, second)])
    assert (first == 123).all()


def counted(monkeypatch: pytest.MonkeyPatch, make: Callable[..., Any]) -> list[bytes]:
    """The files that are decoded as a whole from now on, for which `make` stands."""
    tried: list[bytes] = []

    def noting(data: bytes, *rest: Any) -> Any:
        tried.append(data)
        return make(data, *rest)

    monkeypatch.setattr(render, "DecodedImage", noting)
    return tried


def test_a_file_that_cannot_be_decoded_as_a_whole_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = jpeg(np.random.default_rng(11), "4:2:0", 90, 80)
    cut = data[: len(data) // 2]
    tried = counted(monkeypatch, render.DecodedImage)
    whole = Chain.whole(File(cut, (90, 80)), "RGB")
    pixels = np.empty((80, 90, 3), np.uint8)
    assert not any(whole.write(RGB_ROWS, pixels.ctypes.data) for _ in range(6))
    assert tried == [cut]


def test_views_are_made_by_crops_where_the_whole_image_does_not_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_large(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(arrays, "MOST_UNUSED", 0)
    data = jpeg(np.random.default_rng(12), "4:2:0", 90, 80)
    ours, theirs = both(data)
    tried = counted(monkeypatch, too_large)
    for n in range(8):
        crops = [np.asarray(image.convert("RGB").crop((n, n, n + 70, n + 60))) for image in (ours, theirs)]
        assert (crops[0] == crops[1]).all()
    assert tried == [data]


def decoded_images() -> int:
    gc.collect()
    return sum(isinstance(each, render.DecodedImage) for each in gc.get_objects())


def test_decoded_pixels_are_held_no_longer_than_an_image_that_may_need_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrays, "MOST_UNUSED", 0)
    before = decoded_images()
    kept = []
    for n in range(6):
        image = both(jpeg(np.random.default_rng(n), "4:2:0", 90, 80))[0].convert("RGB")
        kept += [np.asarray(image.crop((0, 0, 80, 70 + view))) for view in range(4)]
    assert decoded_images() == before + 1  # of the last one
    del image
    assert decoded_images() == before
    assert len(kept) == 24
