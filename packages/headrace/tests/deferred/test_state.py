"""What is changed on a deferred image, rather than made of it, has the effect that Pillow gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImagePalette

from support.deferred_images import both
from support.jpegs import jpeg
from support.odd_files import saved

COLORS = bytes((3 * entry + 100 * channel) % 256 for entry in range(256) for channel in range(3))

FILES: dict[str, Callable[[], bytes]] = {
    "gray JPEG": lambda: jpeg(np.random.default_rng(0), "gray", 61, 47),
    "JPEG": lambda: jpeg(np.random.default_rng(0), "4:2:0", 61, 47),
    "gray PNG": lambda: saved("PNG", "L", 61, 47),
    "PNG with a palette": lambda: saved("PNG", "P", 61, 47),
}


def _palette_object(image: Any) -> None:
    image.palette = ImagePalette.raw("RGB", COLORS)


def _palette_in_place(image: Any) -> None:
    if image.palette is not None:
        image.palette.palette, image.palette.dirty = COLORS, 1


def _palette_in_place_unsaid(image: Any) -> None:
    if image.palette is not None:
        image.palette.palette = COLORS


def _mode(image: Any) -> None:
    image.convert("L")  # a step before
    image._mode = "P" if image.mode == "L" else image.mode


CHANGES: dict[str, Callable[[Any], None]] = {
    "putpalette": lambda image: image.putpalette(COLORS),
    "putpalette, RGBA": lambda image: image.putpalette(bytes(range(256)) * 4, "RGBA"),
    "putpalette, few": lambda image: image.putpalette([1, 2, 3, 4, 5, 6]),
    "palette": _palette_object,
    "palette in place": _palette_in_place,
    "palette in place, without dirty": _palette_in_place_unsaid,
    "a mode as plug-ins set it": _mode,
}

AFTER: dict[str, Callable[[Any], Any]] = {
    "itself": lambda image: image,
    "convert RGB": lambda image: image.convert("RGB"),
    "convert L": lambda image: image.convert("L"),
    "crop": lambda image: image.crop((3, 4, 30, 40)),
    "crop, convert": lambda image: image.crop((3, 4, 30, 40)).convert("RGB"),
    "resize": lambda image: image.resize((20, 31)),
    "copy": lambda image: image.copy(),
    "copy, convert": lambda image: image.copy().convert("RGB"),
    "transpose": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "rotate": lambda image: image.rotate(30),
}

BEFORE: dict[str, Callable[[Any], Any]] = {
    "opened": lambda image: image,
    "loaded": lambda image: (image.load() and None, image)[1],
    "convert L": lambda image: image.convert("L"),
    "crop": lambda image: image.crop((0, 1, 60, 47)),
}


def state(image: Any) -> Any:
    palette = image.palette
    shown = palette and (palette.mode, palette.rawmode, palette.dirty, bytes(palette.palette))
    return image.mode, image.size, image.info, shown, image.readonly


def outcome(image: Any, *steps: Callable[[Any], Any]) -> Any:
    """The state and the pixels after the steps, or the error."""
    try:
        for step in steps:
            image = step(image)
        return state(image), image.getpalette(), image.tobytes(), state(image)
    except Exception as error:  # whatever Pillow raises is the expected result
        return type(error), str(error)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("file", FILES)
def test_a_palette_that_is_changed_counts(file: str, before: str, change: str) -> None:
    def changed(image: Any) -> Any:
        CHANGES[change](image)
        return image

    for name, after in AFTER.items():
        ours, theirs = both(FILES[file]())
        steps = (BEFORE[before], changed, after)
        assert outcome(ours, *steps) == outcome(theirs, *steps), name


@pytest.mark.parametrize("file", FILES)
def test_pixel_access_keeps_to_its_pixels(file: str) -> None:
    def kept(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def looked(image: Any) -> Any:
            access = image.load()
            change(image)
            before = access[60, 46]
            access[60, 46] = 0 if isinstance(before, int) else (0, 0, 0)
            return before, access[60, 46], access[0, 0]

        return looked

    changes: dict[str, Callable[[Any], Any]] = {
        "nothing": lambda image: None,
        "thumbnail": lambda image: image.thumbnail((20, 20)),
        "thumbnail, without a gap": lambda image: image.thumbnail((20, 20), reducing_gap=None),
        "close": lambda image: image.close(),
        "im": lambda image: setattr(image, "im", Image.new(image.mode, (2, 2)).im),
        "readonly": lambda image: (setattr(image, "readonly", 1), image.putpixel((60, 46), 0)),  # type: ignore[func-returns-value]
    }
    for name, change in changes.items():
        ours, theirs = both(FILES[file]())
        assert kept(change)(ours) == kept(change)(theirs), name


def test_pixel_access_changes_the_image() -> None:
    ours, theirs = both(FILES["JPEG"]())
    for image in (ours, theirs):
        first, second = image.load(), image.load()
        first[3, 4] = (1, 2, 3)
        assert second[3, 4] == (1, 2, 3)
    assert ours == theirs


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", ["tile", "_size", "decoderconfig"])
def test_what_the_decoder_goes_by_may_be_changed(file: str, name: str) -> None:
    def changed(image: Any) -> Any:
        setattr(image, name, {"tile": [], "_size": (61, 40), "decoderconfig": (2, 0)}[name])
        return image

    def changed_in_place(image: Any) -> Any:
        image.tile.append(image.tile[0]) if name == "tile" else changed(image)
        return image

    for change in (changed, changed_in_place):
        ours, theirs = both(FILES[file]())
        assert outcome(ours, change) == outcome(theirs, change)
