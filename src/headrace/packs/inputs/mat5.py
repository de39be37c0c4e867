"""Reads arrays of structs from MATLAB 5 files: as much of the format as ImageNet's devkit needs.

The format: "MAT-File Format", The MathWorks, chapter 1, level 5.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any

# Data types of elements, as struct's letters; those of text by their encodings.
_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXTS = {16: "utf-8", 17: "utf-16-le", 18: "utf-32-le"}
_MATRIX, _COMPRESSED = 14, 15

# Classes of arrays.
_STRUCT, _CHAR = 2, 4
_FIRST_NUMERIC = 6

_HEADER = 128

# What a file that isn't as it should be ends in, beside ValueError.
DAMAGE = (struct.error, zlib.error, OverflowError, RuntimeError, StopIteration, LookupError, TypeError)

# Of what one element is decompressed to; ImageNet's has 200,000.
MOST_BYTES = 64_000_000


def read_structs(data: bytes, name: str) -> list[dict[str, Any]]:
    """The variable `name`, an array of structs: numbers come as lists of them, text as str.

    Raises:
        ValueError: the file isn't of this kind, or holds no such variable.
    """
    if data[126:128] != b"IM":
        raise ValueError("it isn't a little-endian MATLAB 5 file")
    try:
        for kind, content in _elements(data[_HEADER:]):
            if kind == _MATRIX:
                found, value = _array(content)
                if found == name and isinstance(value, list):
                    return value
    except DAMAGE as error:
        raise ValueError(f"it is damaged: {error!r}") from None
    raise ValueError(f"it holds no structs {name!r}")


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, content) of the elements in `data`, decompressed."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:  # a small element: its size and content share the tag
            yield kind & 0xFFFF, data[at + 4 : at + 4 + (kind >> 16)]
            at += 8
            continue
        content = data[at + 8 : at + 8 + size]
        if kind == _COMPRESSED:
            whole = zlib.decompressobj().decompress(content, MOST_BYTES)
            if len(whole) == MOST_BYTES:
                raise ValueError(f"it holds more than {MOST_BYTES:,} bytes once it is decompressed")
            yield from _elements(whole)
            at += 8 + size
        else:
            yield kind, content
            at += 8 + size + -size % 8


def _array(data: bytes) -> tuple[str, Any]:
    """(name, value) of an array; the value of a kind that isn't needed is None."""
    if not data:
        return "", []
    parts = _elements(data)
    kind = _numbers(next(parts))[0] & 0xFF
    shape = _numbers(next(parts))
    name = next(parts)[1].decode("ascii")
    if kind == _STRUCT:
        width = _numbers(next(parts))[0]
        text = next(parts)[1]
        fields = [text[i : i + width].partition(b"\0")[0].decode("ascii") for i in range(0, len(text), width)]
        count = math.prod(shape)
        if count and not (fields and 0 < count <= len(data)):  # each takes some of the bytes
            raise ValueError(f"it is damaged: {count} structs of {len(fields)} fields in {len(data):,} bytes")
        return name, [{field: _array(next(parts)[1])[1] for field in fields} for _ in range(count)]
    if kind == _CHAR:
        return name, _text(next(parts, (16, b"")))
    return name, _numbers(next(parts, (2, b""))) if kind >= _FIRST_NUMERIC else None


def _numbers(element: tuple[int, bytes]) -> list[Any]:
    kind, content = element
    letter = _NUMBERS[kind]
    count = len(content) // struct.calcsize(letter)
    return list(struct.unpack(f"<{count}{letter}", content))


def _text(element: tuple[int, bytes]) -> str:
    kind, content = element
    return content.decode(_TEXTS[kind]) if kind in _TEXTS else "".join(map(chr, _numbers(element)))
