"""Changes bytes the way that finds bugs in readers: bits, lengths, pieces moved, doubled and lost."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

# Numbers at the edges of what lengths and offsets are kept in.
EDGES = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    (1 << 63) - 1,
    (1 << 64) - 1,
)


def mutated(data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """`data` after one to six changes; pieces of `others` may get into it."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(_CHANGES)(changed, others, rng)
    return bytes(changed)


def _flip(data: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(data: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _number(data: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    kind = rng.choice(("<B", "<H", ">H", "<I", ">I", "<Q", ">Q"))
    size = struct.calcsize(kind)
    if len(data) >= size:
        at = rng.randrange(len(data) - size + 1)
        value = rng.choice(EDGES) + rng.choice((-1, 0, 0, 1))
        data[at : at + size] = struct.pack(kind, value % (1 << 8 * size))


def _digits(data: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    """Tar and JSON keep numbers as text."""
    places = [i for i, byte in enumerate(data) if 48 <= byte < 58]
    if places:
        data[rng.choice(places)] = rng.choice(b"0123456789-.e")


def _cut(data: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _lose(data: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    begin, end = _span(data, rng)
    del data[begin:end]


def _double(data: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    begin, end = _span(data, rng)
    data[begin:begin] = data[begin:end]


def _fill(data: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    begin, end = _span(data, rng)
    data[begin:end] = bytes([rng.choice((0, 0xFF, rng.randrange(256)))]) * (end - begin)


def _splice(data: bytearray, others: Sequence[bytes], rng: random.Random) -> None:
    other = rng.choice(others) if others else bytes(data)
    begin, end = _span(other, rng)
    at = rng.randrange(len(data) + 1)
    if rng.random() < 0.5:
        data[at : at + end - begin] = other[begin:end]
    else:
        data[at:at] = other[begin:end]


_CHANGES = (_flip, _set, _number, _number, _digits, _cut, _lose, _double, _fill, _splice)


def _span(data: bytes | bytearray, rng: random.Random) -> tuple[int, int]:
    begin = rng.randrange(len(data) + 1)
    size = rng.choice((1, 4, 8, 64, 512, 4096))
    return begin, min(len(data), begin + rng.randrange(size + 1))
