"""Samples as values of an LMDB: msgpack (image bytes, label), as the usual training scripts read them."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from headrace.errors import PackError
from headrace.packs.records import Sample
from headrace.packs.rows import JPEG_START, PILLOW_ERRORS

_MISSING = "{} isn't installed, which LMDBs need: pip install 'headrace[lmdb]'."


def import_lmdb() -> Any:
    """The module `lmdb`. Raises PackError where it isn't installed."""
    try:
        import lmdb
    except ImportError:
        raise PackError(_MISSING.format("lmdb")) from None
    return lmdb


def import_msgpack() -> Any:
    """The module `msgpack`. Raises PackError where it isn't installed."""
    try:
        import msgpack
    except ImportError:
        raise PackError(_MISSING.format("msgpack")) from None
    return msgpack


def value(sample: Sample) -> tuple[bytes, int]:
    """The value of a sample, and where in it the image's bytes begin.

    (image, label), the label None where there is none; and, only where a sample has further fields, a third
    element: a map from their extensions to their bytes.
    """
    label = sample.label if sample.label >= 0 else None
    fields = {extension: data for extension, data in sample.fields if extension != "cls"}
    parts = (sample.image, label, fields) if fields else (sample.image, label)
    packed: bytes = import_msgpack().packb(parts, use_bin_type=True)
    return packed, image_begin(sample.image)


def image_begin(image: bytes) -> int:
    """Where in its value an image begins: after the list's head and its own, as short as msgpack has them."""
    size = len(image)
    return 3 if size < 1 << 8 else 4 if size < 1 << 16 else 6


def parse_value(data: bytes, key: str, where: str) -> Sample:
    """The sample that `data`, the value of `key` in the file `where`, is. Raises PackError."""
    parts = read_object(data)
    if not (isinstance(parts, (list, tuple)) and len(parts) in (2, 3) and isinstance(parts[0], bytes)):
        raise PackError(f"{where}: the value of {key} isn't msgpack (image bytes, label).")
    image, label, *rest = parts
    fields = rest[0] if rest else {}
    if label is not None and not (isinstance(label, int) and 0 <= label < 1 << 63):
        raise PackError(f"{where}: the label of {key} is {label!r}, not a whole number from 0 on.")
    if not isinstance(fields, dict) or not all(isinstance(each, bytes) for each in fields.values()):
        raise PackError(f"{where}: the third element of {key} isn't a map from extensions to bytes.")
    return Sample(key, kind_of(image), image, -1 if label is None else label, tuple(fields.items()))


def read_object(data: Any) -> Any:
    """What msgpack bytes hold; None where they are none."""
    msgpack = import_msgpack()
    try:
        return None if data is None else msgpack.unpackb(data, raw=False)
    except (ValueError, msgpack.UnpackException):
        return None


def kind_of(image: bytes) -> str:
    """The extension that an image's bytes should have."""
    if image.startswith(JPEG_START):
        return "jpg"
    try:
        with Image.open(io.BytesIO(image)) as opened:
            return (opened.format or "bin").lower()
    except PILLOW_ERRORS:
        return "bin"
