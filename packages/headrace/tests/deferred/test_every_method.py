"""Every public method and attribute of Pillow's images does the same on lazy ones, around every step."""

from __future__ import annotations

import copy
import functools
import io
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter, ImagePalette

from headrace import deferred
from support import deferred_images
from support.jpegs import jpeg
from support.odd_files import saved
from support.sampling import one_in

WIDTH, HEIGHT = 24, 18
COLORS = bytes(range(256)) * 3
Step = Callable[[Any], Any]


def animated_webp() -> bytes:
    frames = [Image.new("RGB", (WIDTH, HEIGHT), color) for color in ("red", "blue")]
    file = io.BytesIO()
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], duration=[30, 40])
    return file.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "JPEG": lambda: jpeg(np.random.default_rng(0), "4:2:0", WIDTH, HEIGHT),
    "gray JPEG": lambda: jpeg(np.random.default_rng(0), "gray", WIDTH, HEIGHT),
    "PNG": lambda: saved("PNG", "RGB", WIDTH, HEIGHT),
    "gray PNG": lambda: saved("PNG", "L", WIDTH, HEIGHT),
    "PNG with a palette": lambda: saved("PNG", "P", WIDTH, HEIGHT),
    "WebP": lambda: saved("WEBP", "RGB", WIDTH, HEIGHT),
    "animated WebP": animated_webp,
}

STEPS: dict[str, Step] = {
    "convert RGB": lambda image: image.convert("RGB"),
    "convert L": lambda image: image.convert("L"),
    "crop": lambda image: image.crop((2, 1, WIDTH - 3, HEIGHT - 2)),
    "resize": lambda image: image.resize((15, 14)),
    "mirror": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "turn": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "rotate": lambda image: image.rotate(45),
    "transform": lambda image: image.transform((20, 15), Image.Transform.AFFINE, (1, 0.1, 2, 0.1, 1, 1)),
    "filter": lambda image: image.filter(ImageFilter.GaussianBlur(1.5)),
    "point": lambda image: image.point([255 - level for level in range(256)] * len(image.getbands())),
    "copy": lambda image: image.copy(),
}


def _color(image: Any) -> Any:
    return 7 if len(image.getbands()) == 1 else (1, 2, 3)


def _save(image: Any) -> Any:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue(), getattr(image, "encoderinfo", None)


def _change_by_access(image: Any) -> None:
    image.load()[1, 1] = _color(image)


# How each method is called; a name that is missing here is read as an attribute, and set to its own value.
EXAMPLES: dict[str, list[Step]] = {
    "alpha_composite": [lambda i: i.alpha_composite(Image.new("RGBA", (3, 3), (1, 2, 3, 90)), (1, 1))],
    "apply_transparency": [lambda i: i.apply_transparency()],
    "close": [lambda i: i.close()],
    "convert": [
        *(lambda i, mode=mode: i.convert(mode) for mode in (None, "1", "L", "P", "RGB", "RGBA", "CMYK", "?")),
        lambda i: i.convert("L", (0.5, 0.3, 0.2, 0)),
        lambda i: i.convert(["L"]),
    ],
    "copy": [lambda i: i.copy()],
    "crop": [
        lambda i: i.crop(),
        lambda i: i.crop(1),
        lambda i: i.crop((1, 2, 3)),
        lambda i: i.crop(("a", 2, 3, 4)),
        lambda i: i.crop((1.4, 2.6, 9.5, 10.5)),
        lambda i: i.crop((-2, -2, 9, 9)),
        lambda i: i.crop((1, 1, float("nan"), 9)),
        lambda i: i.crop(np.array([1, 2, 9, 10])),
    ],
    "draft": [lambda i: i.draft("L", (10, 10)), lambda i: i.draft(None, (6, 5))],
    "effect_spread": [lambda i: i.effect_spread(0)],
    "entropy": [lambda i: i.entropy()],
    "filter": [lambda i: i.filter(ImageFilter.FIND_EDGES), lambda i: i.filter(3)],
    "frombytes": [lambda i: i.frombytes(i.tobytes()[::-1]), lambda i: i.frombytes(b"1")],
    "get_child_images": [lambda i: i.get_child_images()],
    "get_flattened_data": [lambda i: i.get_flattened_data()],
    "get_format_mimetype": [lambda i: i.get_format_mimetype()],
    "getbands": [lambda i: i.getbands()],
    "getbbox": [lambda i: i.getbbox()],
    "getchannel": [lambda i: i.getchannel(0), lambda i: i.getchannel("A")],
    "getcolors": [lambda i: i.getcolors(1 << 20)],
    "getdata": [lambda i: list(i.getdata())],
    "getexif": [lambda i: dict(i.getexif())],
    "getextrema": [lambda i: i.getextrema()],
    "getpalette": [lambda i: i.getpalette(), lambda i: i.getpalette(None)],
    "getpixel": [lambda i: i.getpixel((3, 2)), lambda i: i.getpixel((300, 2))],
    "getprojection": [lambda i: i.getprojection()],
    "getxmp": [lambda i: i.getxmp()],
    "histogram": [lambda i: i.histogram()],
    "load": [lambda i: i.load()[3, 4], _change_by_access],
    "paste": [lambda i: i.paste(3, (0, 0, 9, 9)), lambda i: i.paste(Image.new("RGB", (3, 3), "red"), (1, 1))],
    "point": [lambda i: i.point(lambda level: 255 - level), lambda i: i.point([1, 2]), lambda i: i.point(3)],
    "putalpha": [lambda i: i.putalpha(100)],
    "putdata": [lambda i: i.putdata([_color(i)] * 9)],
    "putpalette": [
        lambda i: i.putpalette(COLORS),
        lambda i: i.putpalette(COLORS + COLORS[:256], "RGBA"),
        lambda i: i.putpalette(ImagePalette.ImagePalette("RGB", COLORS)),
        lambda i: i.putpalette(3),
    ],
    "putpixel": [lambda i: i.putpixel((1, 2), _color(i)), lambda i: i.putpixel((1, 2), (9, 8, 7))],
    "quantize": [lambda i: i.quantize(8)],
    "reduce": [lambda i: i.reduce(2), lambda i: i.reduce(1)],
    "remap_palette": [lambda i: i.remap_palette(list(range(255, -1, -1)))],
    "resize": [
        lambda i: i.resize(i.size),
        lambda i: i.resize((9, 8), 2.0),
        lambda i: i.resize((9, 8), [2]),
        lambda i: i.resize((9, 8), 77),
        lambda i: i.resize((9, 8), box=(1, 1, 9, 9)),
        lambda i: i.resize((9, 8), reducing_gap=1.5),
        lambda i: i.resize(5),
    ],
    "rotate": [lambda i: i.rotate(90), lambda i: i.rotate(30, Image.Resampling.BILINEAR, expand=True)],
    "save": [_save],
    "seek": [lambda i: i.seek(0), lambda i: i.seek(1)],
    "split": [lambda i: i.split()],
    "tell": [lambda i: i.tell()],
    "thumbnail": [lambda i: i.thumbnail((9, 8)), lambda i: i.thumbnail((9, 8), reducing_gap=None)],
    "tobitmap": [lambda i: i.tobitmap()],
    "tobytes": [lambda i: i.tobytes(), lambda i: i.tobytes("raw", "?")],
    "transform": [
        lambda i: i.transform((9, 8), Image.Transform.EXTENT, (1, 1, 9, 9)),
        lambda i: i.transform((9, 8), Image.Transform.AFFINE, (1, 2)),
        lambda i: i.transform((9, 8), Image.Transform.AFFINE),
        lambda i: i.transform((9, 8), [1], (1, 0, 0, 0, 1, 0)),
        lambda i: i.transform((9, 8), Image.Transform.AFFINE, (1, 0, 0, 0, 1, 0), [1]),
    ],
    "transpose": [
        *(lambda i, method=method: i.transpose(method) for method in Image.Transpose),
        lambda i: i.transpose([1]),
        lambda i: i.transpose(0.0),
        lambda i: i.transpose(99),
    ],
    "verify": [lambda i: i.verify()],
    # Attributes to which more is done than to set them to their own value.
    "im": [lambda i: (i.im.mode, i.im.size), lambda i: setattr(i, "im", Image.new(i.mode, i.size).im)],
    "info": [lambda i: setattr(i, "info", {"a": [1]}), lambda i: i.info.update(b=2)],
    "palette": [
        lambda i: setattr(i, "palette", ImagePalette.raw("RGB", COLORS)),
        lambda i: setattr(i, "palette", None),
        lambda i: i.palette.getcolor((1, 2, 3), i),
    ],
    "readonly": [
        lambda i: setattr(i, "readonly", 1),
        lambda i: (setattr(i, "readonly", 1), i.putpixel((0, 0), 1)),  # type: ignore[func-returns-value]
    ],
    "tile": [lambda i: i.tile, lambda i: setattr(i, "tile", [])],
}

EXCLUDED = {
    "fp": "an object of the file's, which both open for themselves",
    "getim": "an address",
    "load_djpeg": "needs a program that few machines have",
    "load_end": "a part of Pillow's load(), which alone calls it",
    "load_prepare": "a part of Pillow's load(), which alone calls it",
    "load_read": "a part of Pillow's load(), which alone calls it",
    "load_seek": "a part of Pillow's load(), which alone calls it",
    "png": "an object of the file's, which both open for themselves",
    "show": "opens a window",
    "toqimage": "needs Qt",
    "toqpixmap": "needs Qt",
}


def examples(name: str) -> list[Step]:
    if name in EXAMPLES:
        return EXAMPLES[name]
    return [lambda image: getattr(image, name), lambda image: setattr(image, name, getattr(image, name))]


def opened(data: bytes, *, lazily: bool) -> Any:
    (deferred.install if lazily else deferred.uninstall)()
    return Image.open(io.BytesIO(data))


def comparable(value: Any) -> Any:
    if isinstance(value, Image.Image):
        return state(value)
    if isinstance(value, ImagePalette.ImagePalette):
        return value.mode, value.rawmode, value.dirty, bytes(value.palette), value.colors
    if isinstance(value, (list, tuple)):
        return [comparable(each) for each in value]
    return value


def outcome(action: Callable[[], Any]) -> Any:
    """What an action gives, or its error, and its warnings; without addresses and names of classes."""
    return deferred_images.outcome(action, comparable, r"0x[0-9a-f]+|\w*Image(File)?\b")


def attribute(image: Any, name: str) -> Any:
    return copy.copy(getattr(image, name, None))


def state(image: Any) -> Any:
    """All that can be seen of an image; what may change it by being read comes last."""
    named = ("mode", "size", "info", "palette", "readonly", "tile", "format", "encoderinfo", "is_animated")
    seen = [outcome(functools.partial(attribute, image, name)) for name in named]
    return seen, outcome(image.getpalette), outcome(image.tobytes)


# With one in seven, each file and each step is there.
@pytest.mark.parametrize(("file", "step"), one_in(7, itertools.product(FILES, STEPS)))
def test_every_method_before_and_after_every_step(file: str, step: str) -> None:
    data = FILES[file]()

    def before(image: Any, example: Step) -> Any:
        return [outcome(lambda: example(image)), outcome(lambda: STEPS[step](image)), state(image)]

    def after(image: Any, example: Step) -> Any:
        made = STEPS[step](image)
        return [outcome(lambda: example(made)), state(made), state(image)]

    def between(image: Any, example: Step) -> Any:
        made = STEPS[step](image)
        return [outcome(lambda: example(image)), state(made), outcome(lambda: STEPS[step](image))]

    different = []
    for name in dir(opened(data, lazily=False)):
        if name.startswith("_") or name in EXCLUDED:
            continue
        for number, example in enumerate(examples(name)):
            for order in (before, after, between):
                ours, theirs = opened(data, lazily=True), opened(data, lazily=False)
                found = outcome(functools.partial(order, ours, example))
                expected = outcome(functools.partial(order, theirs, example))
                if found != expected:
                    different.append((name, number, order.__name__))
    assert different == []


@pytest.mark.parametrize("file", FILES)
def test_every_method_has_an_example(file: str) -> None:
    kind = type(opened(FILES[file](), lazily=False))
    methods = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}
    assert methods - set(EXAMPLES) - set(EXCLUDED) == set()
