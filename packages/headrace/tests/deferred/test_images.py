"""Lazy images give what Pillow gives, at the same point in time: pixels, attributes, exceptions, warnings."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deferred.test_every_method import EXAMPLES, state
from PIL import Image, ImageEnhance, ImageFile, ImageOps, ImageStat
from torchvision.transforms import functional

from headrace import deferred
from headrace._native import deferred as memory
from headrace.deferred import images as deferred_images
from support import odd_jpegs, pngs
from support.deferred_images import both, both_ways, comparable, is_deferred, outcome
from support.jpegs import JPEG_KINDS, RESTARTS, jpeg, picture
from support.odd_files import saved
from support.sampling import one_in

FOLDER = "HEADRACE_ODD_JPEGS"  # of other projects' test images, made by tools/odd-jpegs.sh


def random_chain(image: Image.Image, rng: random.Random) -> Image.Image:
    """One to five steps, most of them those that are recorded."""
    image = image.convert(rng.choice(["RGB", "RGB", "L"]))
    for _ in range(rng.randint(1, 5)):
        step, (width, height) = rng.randrange(7), image.size
        if step == 0:
            low = -3 if rng.random() < 0.1 else 0
            across, down = (sorted(rng.sample(range(low, n + 1), 2)) for n in (width, height))
            image = image.crop((across[0], down[0], across[1], down[1]))
        elif step == 1:
            image = image.resize((rng.randint(1, 200), rng.randint(1, 200)), rng.choice([0, 1, 2, 3, 4, 5]))
        elif step == 2:
            image = image.transpose(rng.choice(list(Image.Transpose)))
        elif step == 3:
            image = rng.choice([Image.Image.copy, copy.copy, copy.deepcopy])(image)  # type: ignore[operator]
        elif step == 4 and rng.random() < 0.3:
            image = image.rotate(rng.uniform(-40, 40), rng.choice([0, 2, 3]))  # type: ignore[arg-type]
        elif step == 5 and min(image.size) > 3:
            left, top = rng.uniform(0, 1.5), rng.uniform(0, 1.5)
            image = image.crop((left, top, image.width - 1.4, image.height - 0.6))
        else:
            image = image.convert(rng.choice(["RGB", "L"]))
    return image


@pytest.mark.parametrize("kind", JPEG_KINDS)
@pytest.mark.parametrize("restarts", RESTARTS)
def test_chains_of_steps_give_the_pixels_of_pillow(kind: str, restarts: str) -> None:
    rng = np.random.default_rng(len(kind) + len(restarts))
    for seed in range(12):
        width, height = (int(n) for n in rng.integers(4, 150, 2))
        ours, theirs = both(jpeg(rng, kind, width, height, **RESTARTS[restarts]))
        ours = random_chain(ours, random.Random(seed))
        theirs = random_chain(theirs, random.Random(seed))
        if seed % 2:
            assert np.array_equal(np.asarray(ours), np.asarray(theirs))
        assert comparable(ours) == comparable(theirs)
        assert ours == theirs
        assert theirs == ours


@pytest.mark.parametrize("kind", ["4:2:0", "gray"])
def test_gray_images_are_recorded(kind: str) -> None:
    ours, theirs = both(jpeg(np.random.default_rng(3), kind, 90, 70))
    found, expected = ours.convert("L"), theirs.convert("L")
    for step in (
        lambda image: image.crop((10, 5, 80, 61)),
        lambda image: image.resize((33, 41), Image.Resampling.BICUBIC),
        lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        lambda image: image.transpose(Image.Transpose.ROTATE_90),
        lambda image: image.convert("RGB"),
        lambda image: image.resize((20, 21)),
        lambda image: image.convert("L"),
        lambda image: image.crop((0, 1, 12, 9)),
    ):
        found, expected = step(found), step(expected)
        assert is_deferred(found)
        assert found.mode == expected.mode
        assert np.array_equal(np.asarray(found), np.asarray(expected))
        assert is_deferred(found)
    assert comparable(found) == comparable(expected)


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_exif_orientation_is_recorded_and_gives_what_pillow_gives(orientation: int, mode: str) -> None:
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112], exif[0x010F] = orientation, "maker"
    picture(np.random.default_rng(orientation), 70, 41).save(file, "JPEG", exif=exif)
    for turn in (
        lambda image: ImageOps.exif_transpose(image.convert(mode)).resize((30, 20)),
        lambda image: ImageOps.exif_transpose(image).convert(mode).crop((3, 4, 30, 40)),
    ):
        ours, theirs = both(file.getvalue())
        found, expected = turn(ours), turn(theirs)
        if orientation not in (5, 7):  # which Pillow does to pixels
            assert is_deferred(found)
        assert comparable(found) == comparable(expected)


OF_JPEGS = ("bits", "layers", "layer", "quantization", "app", "applist")
ACTIONS: dict[str, Callable[[Any], Any]] = {
    "size": lambda i: (i.size, i.width, i.height),
    "format": lambda i: (i.format, i.format_description, i.get_format_mimetype()),
    "info": lambda i: i.info,
    "layers": lambda i: [getattr(i, name, None) for name in OF_JPEGS],
    "palette": lambda i: (i.palette and i.palette.getdata(), i.getpalette()),
    "load, then a pixel set": lambda i: (i.load().__setitem__((1, 1), 7 if i.mode == "L" else (1, 2, 3)), i)[
        1
    ],
    "array": lambda i: np.array(i),
    "asarray": lambda i: np.asarray(i),
    "array as float": lambda i: np.asarray(i, np.float32),
    "array interface": lambda i: i.__array_interface__,
    "to_tensor": lambda i: functional.to_tensor(i),
    "pil_to_tensor": lambda i: functional.pil_to_tensor(i),
    "deepcopy": lambda i: copy.deepcopy(i),
    "pickle": lambda i: pickle.loads(pickle.dumps(i)),
    "convert RGB": lambda i: i.convert("RGB"),
    "crop": lambda i: i.crop((2, 1, 30, 20)),
    "crop beyond": lambda i: i.crop((-5, -5, 500, 500)),
    "crop empty": lambda i: i.crop((4, 4, 4, 9)),
    "crop the wrong way": lambda i: i.crop((9, 4, 4, 9)),
    "resize": lambda i: i.resize((20, 30)),
    "resize, a list": lambda i: i.resize([20, 30], Image.Resampling.BILINEAR),
    "resize with a gap": lambda i: i.resize((5, 6), reducing_gap=2.0),
    "resize to nothing": lambda i: i.resize((0, 5)),
    "resize to floats": lambda i: i.resize((5.5, 5.5)),
    "thumbnail": lambda i: (i.thumbnail((20, 20)), i)[1],
    "thumbnail after load": lambda i: (i.load() and None, i.thumbnail((20, 20)), i)[2],
    "draft": lambda i: (i.draft("RGB", (20, 20)), i.load() and None, i)[2],
    "draft to gray": lambda i: (i.draft("L", (20, 20)), i.convert("RGB"))[1],
    "draft after load": lambda i: (i.load() and None, i.draft("L", (20, 20)), i)[1:],
    "rotate": lambda i: i.rotate(20, Image.Resampling.BICUBIC, expand=True, fillcolor=9),
    "transform": lambda i: i.transform((30, 30), Image.Transform.AFFINE, (1, 0.2, 3, 0.1, 1, 2)),
    "seek and tell": lambda i: (i.tell(), i.seek(0), i.tell()),
    "seek beyond": lambda i: i.seek(3),
    "verify, then load": lambda i: (i.verify(), i.load() and None),
    "close, then load": lambda i: (i.close(), i.load()),
    "load, close, then look": lambda i: (i.load() and None, i.close(), i.getpixel((0, 0))),
    "convert, close, then look": lambda i: (converted := i.convert("RGB"), i.close(), converted.tobytes())[2],
    "used as a context": lambda i: _in_context(i),
    "text": lambda i: getattr(i, "text", None),
    "text after load": lambda i: (i.load() and None, getattr(i, "text", None))[1],
    "apply_transparency": lambda i: (i.apply_transparency(), i.info.get("transparency"))[1],
    "changed, then loaded": lambda i: (i.load() and None, i.paste(0, (0, 0, 9, 9)), i.load() and None, i)[3],
    "save as PNG": lambda i: _saved(i, "PNG"),
    "save as JPEG, kept": lambda i: _saved(i, "JPEG", quality="keep"),
    "equal to a number": lambda i: (i == 3, i != 3),
    "exif_transpose": lambda i: ImageOps.exif_transpose(i),
    "exif_transpose in place": lambda i: (ImageOps.exif_transpose(i, in_place=True), i)[1],
    "pad": lambda i: ImageOps.pad(i, (40, 40)),
    "fit": lambda i: ImageOps.fit(i, (40, 40)),
    "expand": lambda i: ImageOps.expand(i, 3),
    "mirror": lambda i: ImageOps.mirror(i),
    "autocontrast": lambda i: ImageOps.autocontrast(i),
    "equalize": lambda i: ImageOps.equalize(i),
    "posterize": lambda i: ImageOps.posterize(i, 3),
    "enhance": lambda i: ImageEnhance.Color(i).enhance(1.5),
    "statistics": lambda i: ImageStat.Stat(i).mean,
    "blend": lambda i: Image.blend(i, i.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 0.3),
    "a crop of a crop": lambda i: i.convert("RGB").crop((3, 3, 40, 40)).crop((1, 2, 20, 30)),
    "changed after a crop": lambda i: (crop := i.crop((0, 0, 9, 9)), i.paste(0, (0, 0, 9, 9)), crop)[2],
    "a changed crop": lambda i: (crop := i.crop((0, 0, 9, 9)), crop.paste(0, (0, 0, 9, 9)), i)[2],
}


# effect_spread() leaves pixels of 16 bits undefined.
METHODS: dict[str, Callable[[Any], Any]] = {
    f"{name} {number}": example
    for name, examples in EXAMPLES.items()
    for number, example in enumerate(examples)
    if name != "effect_spread"
}


def _in_context(image: Image.Image) -> Any:
    with image as same:
        converted = same.convert("RGB")
    return converted, same.size


def _saved(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "a photograph": lambda: jpeg(np.random.default_rng(0), "4:2:0", 61, 47),
    "gray": lambda: jpeg(np.random.default_rng(0), "gray", 61, 47),
    "progressive": lambda: jpeg(np.random.default_rng(0), "progressive", 61, 47),
    "truncated": lambda: jpeg(np.random.default_rng(0), "4:2:0", 61, 47)[:-200],
    "with EXIF": lambda: _with_exif(),
    "PNG": lambda: saved("PNG", width=61, height=47),
    "PNG with alpha": lambda: saved("PNG", "RGBA", 61, 47),
    "PNG, gray with alpha": lambda: saved("PNG", "LA", 61, 47),
    "PNG with a palette": lambda: saved("PNG", "P", 61, 47),
    "PNG with a transparent entry": lambda: pngs.TAKEN["a transparent entry of a palette"](),
    "PNG with a transparent gray": lambda: pngs.TAKEN["a transparent gray"](),
    "PNG of 16 bits": lambda: pngs.png(np.random.default_rng(0), 61, 47, 16, pngs.GRAY),
    "PNG of 1 bit": lambda: saved("PNG", "1", 61, 47),
    "PNG, interlaced": lambda: pngs.png(np.random.default_rng(0), 61, 47, interlaced=True),
    "PNG with texts before and behind": lambda: _png_with_texts(),
    "PNG, damaged": lambda: pngs.REFUSED["damaged pixels"](),
    "PNG, cut short": lambda: saved("PNG", width=61, height=47)[:-300],
    "WebP": lambda: saved("WEBP", width=61, height=47),
    "WebP with alpha and EXIF": lambda: _webp_with_alpha(),
}


def _with_exif() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter
    exif[0x011A] = 300.0
    image = Image.open(io.BytesIO(jpeg(np.random.default_rng(3), "4:2:0", 61, 47)))
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif, dpi=(72, 72), comment=b"a comment")
    return file.getvalue()


def _png_with_texts() -> bytes:
    texts = [(b"tEXt", b"Title\0a title"), (b"prVt", b"?")]
    return pngs.png(np.random.default_rng(0), 61, 47, before=texts, after=[*texts, (b"tEXt", b"Last\0x")])


def _webp_with_alpha() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.open(io.BytesIO(saved("PNG", "RGB", 61, 47)))
    image.putalpha(120)
    file = io.BytesIO()
    image.save(file, "WEBP", exif=exif, icc_profile=b"profile")
    return file.getvalue()


@pytest.mark.parametrize(("file", "action"), one_in(7, itertools.product(FILES, ACTIONS | METHODS)))
def test_everything_else_is_as_with_pillow(file: str, action: str) -> None:
    ours, theirs = both(FILES[file]())
    act = (ACTIONS | METHODS)[action]
    assert outcome(lambda: act(ours)) == outcome(lambda: act(theirs))
    assert outcome(lambda: ours.load() and None) == outcome(lambda: theirs.load() and None)
    assert state(ours) == state(theirs)


def animated() -> bytes:
    """A PNG of two frames with a text behind them."""
    frames = [picture(np.random.default_rng(n), 61, 47) for n in range(2)]
    file = io.BytesIO()
    frames[0].save(file, "PNG", save_all=True, append_images=frames[1:])
    end = pngs.chunk(b"IEND", b"")
    return file.getvalue().removesuffix(end) + pngs.chunk(b"tEXt", b"Title\0behind") + end


@pytest.mark.parametrize("name", ["text", "text after load", "convert RGB", "seek and tell", "seek beyond"])
@pytest.mark.parametrize("missing", ["", "fdAT"])
def test_animated_images_are_those_of_pillow(name: str, missing: str) -> None:
    data = pngs.without(animated(), missing.encode()) if missing else animated()
    ours, theirs = both(data)
    assert outcome(lambda: ACTIONS[name](ours)) == outcome(lambda: ACTIONS[name](theirs))


ODD_ACTIONS = ("convert RGB", "array", "thumbnail", "crop beyond", "rotate", "pickle")


@pytest.mark.parametrize(
    ("name", "action"),
    [
        *itertools.product(odd_jpegs.TAKEN, ODD_ACTIONS),
        *((name, "convert RGB") for name in odd_jpegs.REFUSED),
        *one_in(4, itertools.product(odd_jpegs.REFUSED, ODD_ACTIONS[1:])),
    ],
)
def test_odd_files_are_read_as_by_pillow(name: str, action: str) -> None:
    data = (odd_jpegs.TAKEN | odd_jpegs.REFUSED)[name]()

    def opened(data: bytes) -> Any:
        # The step itself must fail where Pillow's fails, not a later look at its pixels.
        return ACTIONS[action](Image.open(io.BytesIO(data)))

    ours, theirs = both_ways(lambda: opened(data))
    assert ours == theirs


def _after(action: Callable[[Any], Any], data: bytes) -> Any:
    return action(Image.open(io.BytesIO(data)))


@pytest.mark.slow
@pytest.mark.skipif(FOLDER not in os.environ, reason=f"{FOLDER} names no folder")
def test_other_projects_test_images_are_those_of_pillow() -> None:
    paths = [path for path in sorted(Path(os.environ[FOLDER]).rglob("*")) if path.is_file()]
    lazily = 0
    for path, (name, action) in itertools.product(paths, ACTIONS.items()):
        opening = functools.partial(_after, action, path.read_bytes())
        before = deferred_images.opened.count
        ours, theirs = both_ways(opening)
        assert ours == theirs, f"{path}: {name}"
        lazily += deferred_images.opened.count - before
    assert lazily > len(paths) * len(ACTIONS) // 4


def test_damaged_data_fail_when_pillow_fails() -> None:
    good = jpeg(np.random.default_rng(1), "4:2:0", 90, 70)
    rng = random.Random(2)
    for _ in range(150):
        data = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.choice([0, 0xFF, 0xD9, 0xC4, rng.randrange(256)])
        for size in (None, (9, 9)):
            ours, theirs = both_ways(functools.partial(_opened, bytes(data), size))
            assert ours == theirs


def _opened(data: bytes, size: tuple[int, int] | None) -> Any:
    """What becomes of convert() alone, from which errors must come, and of the pixels after it."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return None if size is None else image.resize(size)


def test_nothing_is_decoded_until_pixels_are_needed() -> None:
    before = memory.counts().fills
    image, _ = both(FILES["a photograph"]())
    image = (
        image.convert("RGB").crop((5, 6, 25, 36)).resize((10, 10)).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    )
    assert image.size == (10, 10)
    array = np.asarray(image)
    assert memory.counts().fills == before
    assert array.max() > 0
    assert memory.counts().fills == before + 1


def test_a_file_may_be_closed_after_convert(tmp_path: Path) -> None:
    deferred.install()
    path = tmp_path / "image.jpg"
    path.write_bytes(FILES["a photograph"]())
    with open(path, "rb") as file:
        image = Image.open(file).convert("RGB")
    opened = Image.open(path)
    opened.load()
    assert getattr(opened, "fp", None) is None  # closed by Pillow's own rule: it had opened the file
    path.unlink()
    assert image == opened.convert("RGB")


def test_truncated_images_are_loaded_where_the_user_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    ours, theirs = both(FILES["truncated"]())
    assert ours.convert("RGB") == theirs.convert("RGB")


def test_large_images_warn_as_with_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 61 * 47 - 1)
    data = FILES["a photograph"]()
    ours, theirs = both_ways(lambda: Image.open(io.BytesIO(data)).crop((0, 0, 60, 47)))
    assert ours == theirs


@pytest.mark.parametrize("filter", list(Image.Resampling), ids=lambda filter: filter.name)
def test_resizes_by_every_filter(filter: Image.Resampling) -> None:
    images = both(FILES["a photograph"]())
    ours, theirs = (
        image.convert("RGB").resize((37, 21), filter).resize((50, 60), filter) for image in images
    )
    assert ours == theirs
