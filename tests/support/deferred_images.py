"""The same file as a deferred image and as Pillow decodes it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image

from headrace import deferred
from headrace._native.decoders import native_formats
from headrace.deferred import images


def both(data: bytes) -> tuple[Any, Any]:
    """An image that `PIL.Image.open` defers, and the same that is never deferred. From then
    on images are deferred, so that steps on the first are recorded."""
    deferred.install()
    ours, theirs = Image.open(io.BytesIO(data)), Image.open(io.BytesIO(data))
    never_deferred(theirs)
    return ours, theirs


def needs_native(format: str | None) -> None:
    """Skips the test if this build leaves files of a format, by Pillow's name for it, to Pillow."""
    if format not in native_formats():
        pytest.skip(f"built without a decoder of {format} files")


def never_deferred(image: Image.Image) -> Image.Image:
    """The image, whose file Pillow will decode."""
    image.__dict__.pop("_headrace_opened", None)
    return image


def is_deferred(image: Any) -> bool:
    """True if the pixels of an image are still to be made."""
    return isinstance(image, Image.Image) and images._deferred_of(image) is not None
