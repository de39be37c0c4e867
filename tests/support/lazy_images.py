"""The same file as a lazy image and as Pillow's."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from headrace import lazy
from headrace.lazy.image import Recorded


def both(data: bytes) -> tuple[Any, Any]:
    """What `PIL.Image.open` gives of a file where lazy images are installed, and where they aren't."""
    lazy.install()
    try:
        ours = Image.open(io.BytesIO(data))
    finally:
        lazy.uninstall()
    theirs = Image.open(io.BytesIO(data))
    assert isinstance(ours, Recorded)
    assert type(theirs) is ours.stands_for
    return ours, theirs
