"""The same file as a deferred image and as Pillow decodes it, and what comes of it."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from headrace import deferred
from headrace._native.decoders import native_formats
from headrace.deferred import conversion, images, recording


def start_recording() -> None:
    """From here on images are deferred, and transforms record, as in a worker process."""
    deferred.install()
    recording.start()


def stop_recording() -> None:
    recording.stop()
    deferred.uninstall()


def with_recording(action: Callable[[], Any]) -> tuple[Any, int]:
    """What `action` gives in a worker process, and how many tensors native code made for it."""
    start_recording()
    before = conversion.made.count
    try:
        return action(), conversion.made.count - before
    finally:
        stop_recording()


def comparable(value: Any) -> Any:
    """All that user code may see of images, arrays and tensors, also in lists."""
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.info, value.format, value.getpalette(), value.tobytes()
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.shape, value.stride(), value.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, (list, tuple)):
        return [comparable(each) for each in value]
    return value


def outcome(
    action: Callable[[], Any],
    comparable: Callable[[Any], Any] = comparable,
    hidden: str = "0x[0-9a-f]+",
) -> Any:
    """What an action gives, as `comparable` has it, or its exception without what matches `hidden`; and its
    warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = comparable(action())
        except Exception as error:  # whatever Pillow raises is the expected result
            value = (type(error), re.sub(hidden, "", str(error)))
    return value, [(each.category, str(each.message)) for each in caught]


def both_ways(action: Callable[[], Any]) -> tuple[Any, Any]:
    """The outcomes of an action with deferred images and without them."""
    deferred.install()
    ours = outcome(action)
    deferred.uninstall()
    return ours, outcome(action)


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
