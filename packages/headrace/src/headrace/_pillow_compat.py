"""The parts of Pillow that Headrace uses, and that Pillow doesn't promise to keep."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import PIL
from PIL import Image
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

_CORE: Any = Image.core  # type: ignore[attr-defined]
PIXEL_NBYTES = {"L": 1, "P": 1, "RGB": 4}  # of modes that a core image on other memory may have


def core_on(memory: Any, mode: str, size: tuple[int, int]) -> Any:
    """Makes what Pillow calls an image's core, whose rows lie in a buffer: `PIXEL_NBYTES` for each pixel."""
    return _CORE.map_buffer(memory, size, "raw", 0, (mode, 0, 1))


def core_of(image: Image.Image) -> Any:
    """The core of an image, or what else it holds in its place."""
    return getattr(image, "_im", None)


def image_on(origin: Image.Image, core: Any) -> Image.Image:
    """The image that a method of `origin` with the result `core` returns: with its info, and a palette."""
    return origin._new(core)


def mark_loaded(image: WebPImageFile) -> None:
    """Has Pillow know that the only frame of a WebP was decoded."""
    image._WebPImageFile__loaded = image._WebPImageFile__logical_frame  # type: ignore[attr-defined]


def is_unloaded(image: WebPImageFile) -> bool:
    """Returns whether Pillow would decode the only frame of a WebP when it loads the image."""
    return getattr(image, "_WebPImageFile__loaded", None) == -1


def end_after(image: PngImageFile, at: int) -> None:
    """Has Pillow do what it does when all pixels were read: those of a PNG whose image data end at `at`."""
    assert image.fp is not None
    image.fp.seek(at - 4)  # the checksum
    image._PngImageFile__idat = 0  # type: ignore[attr-defined]
    image.load_end()


@cache
def problem() -> str | None:
    """Why images can't be put on other memory, or None if they can."""
    try:
        works = all(map(_works, PIXEL_NBYTES))
    except Exception as error:  # a private function may do anything
        return f"Pillow {PIL.__version__}: {error}"
    return None if works else f"Pillow {PIL.__version__} keeps images in another way"


def _works(mode: str) -> bool:
    pixel = PIXEL_NBYTES[mode]
    memory = np.arange(6 * pixel, dtype=np.uint8)
    image = Image.new(mode, (1, 1))
    image.im = core_on(memory, mode, (2, 3))
    memory[0] = 77
    made = image_on(image, core_of(image))
    bands = made.tobytes()
    wanted = memory.reshape(6, pixel)[:, : 3 if pixel == 4 else 1].tobytes()
    return type(made) is Image.Image and (made.mode, made.size) == (mode, (2, 3)) and bands == wanted
