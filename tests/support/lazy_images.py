"""The same file as a lazy image and as Pillow's."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from headrace import lazy
from headrace.lazy.image import Recorded


def both(data: bytes) -> tuple[Any, Any]:
    """Returns the results of `PIL.Image.open` for a file, with lazy images and without."""
    lazy.install()
    try:
        ours = Image.open(io.BytesIO(data))
    finally:
        lazy.uninstall()
    theirs = Image.open(io.BytesIO(data))
    assert isinstance(ours, Recorded)
    assert type(theirs) is ours.stands_for
    return ours, theirs
