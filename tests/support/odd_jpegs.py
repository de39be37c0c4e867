"""JPEGs that few encoders write: made here bit by bit, of random coefficients."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from support.jpegs import picture

SOI, EOI, SOS, DQT, DHT, DRI, SOF0, SOF1 = 0xD8, 0xD9, 0xDA, 0xDB, 0xC4, 0xDD, 0xC0, 0xC1
APP0, APP14 = 0xE0, 0xEE
WIDTH, HEIGHT = 75, 53  # of no sampling's MCUs a multiple


def divide_up(a: int, b: int) -> int:
    return -(-a // b)


def segment(marker: int, payload: bytes) -> bytes:
    return bytes((0xFF, marker)) + (2 + len(payload)).to_bytes(2, "big") + payload


# Codes of equal length, so that every code is its symbol: 12 DC sizes in 4 bits, 255 AC symbols in 8.
DC_TABLE = bytes((0, 0, 0, 12, *[0] * 12, *range(12)))
AC_TABLE = bytes((0, 0, 0, 0, 0, 0, 0, 255, *[0] * 8, *range(255)))
ADOBE = b"Adobe\0\x64\0\0\0\0"  # and a byte: 0 RGB or CMYK, 1 YCbCr, 2 YCCK
JFIF = b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0"


class Bits:
    """Entropy-coded bits, stuffed."""

    def __init__(self) -> None:
        self._text: list[str] = []

    def put(self, value: int, count: int) -> None:
        if count:
            self._text.append(format(value, f"0{count}b"))

    def take(self) -> bytes:
        """Returns what was put since the last time, padded with ones."""
        text = "".join(self._text)
        self._text.clear()
        text += "1" * (-len(text) % 8)
        data = int("1" + text, 2).to_bytes(1 + len(text) // 8, "big")[1:]
        return data.replace(b"\xff", b"\xff\0")


def put_block(bits: Bits, rng: np.random.Generator) -> None:
    size = int(rng.integers(0, 8))
    bits.put(size, 4)
    bits.put(int(rng.integers(0, 1 << size)), size)
    at, last = 0, int(rng.choice([0, 3, 20, 63]))
    while True:
        run, size = int(rng.choice([0, 0, 0, 1, 5, 15])), int(rng.integers(1, 6))
        if at + run + 1 > last:
            break
        bits.put(run << 4 | size, 8)
        bits.put(int(rng.integers(0, 1 << size)), size)
        at += run + 1
    if at < 63:
        bits.put(0, 8)


@dataclass(frozen=True)
class Component:
    """A component of a frame: its identifier, sampling factors and tables."""

    id: int
    h: int = 1
    v: int = 1
    quantizer: int = 0
    dc: int = 0
    ac: int = 0


def ycbcr(h: int, v: int) -> list[Component]:
    return [Component(1, h, v), Component(2), Component(3)]


def quantizers(number: int = 0, *, bits: int = 8, most: int = 40) -> bytes:
    values = np.random.default_rng(5).integers(1, most + 1, 64)
    if bits == 8:
        return segment(DQT, bytes((number, *values.tolist())))
    return segment(DQT, bytes((0x10 | number,)) + values.astype(">u2").tobytes())


def huffman(number: int = 0) -> bytes:
    return segment(DHT, bytes((number,)) + DC_TABLE + bytes((0x10 | number,)) + AC_TABLE)


def frame(
    components: Sequence[Component], *, sof: int = SOF0, precision: int = 8, height: int = HEIGHT
) -> bytes:
    payload = bytes((precision, *height.to_bytes(2, "big"), *WIDTH.to_bytes(2, "big"), len(components)))
    for each in components:
        payload += bytes((each.id, each.h << 4 | each.v, each.quantizer))
    return segment(sof, payload)


def scan(
    components: Sequence[Component], chosen: Sequence[int], *, restart: int = 0, before_restarts: bytes = b""
) -> bytes:
    """SOS and data. One component alone isn't interleaved: its MCUs are blocks."""
    rng, bits = np.random.default_rng(6), Bits()
    most_h, most_v = max(c.h for c in components), max(c.v for c in components)
    header = bytes((len(chosen),))
    for i in chosen:
        header += bytes((components[i].id, components[i].dc << 4 | components[i].ac))
    data = segment(SOS, header + bytes((0, 63, 0)))
    if len(chosen) == 1:
        only = components[chosen[0]]
        columns = divide_up(divide_up(WIDTH * only.h, most_h), 8)
        rows = divide_up(divide_up(HEIGHT * only.v, most_v), 8)
        blocks = 1
    else:
        columns, rows = divide_up(WIDTH, 8 * most_h), divide_up(HEIGHT, 8 * most_v)
        blocks = sum(components[i].h * components[i].v for i in chosen)
    for mcu in range(columns * rows):
        if restart and mcu and mcu % restart == 0:
            data += bits.take() + before_restarts + bytes((0xFF, 0xD0 + (mcu // restart - 1) % 8))
        for _ in range(blocks):
            put_block(bits, rng)
    return data + bits.take()


def noise(
    components: Sequence[Component],
    *,
    before: bytes = b"",
    tables: bytes | None = None,
    scans: Sequence[Sequence[int]] | None = None,
    restart: int = 0,
    before_restarts: bytes = b"",
    **of_frame: Any,
) -> bytes:
    """A whole file. `before`: segments after SOI; `tables`: quantizers and Huffman tables."""
    data = bytes((0xFF, SOI)) + before
    data += quantizers() + huffman() if tables is None else tables
    data += frame(components, **of_frame)
    if restart:
        data += segment(DRI, restart.to_bytes(2, "big"))
    for chosen in scans or [list(range(len(components)))]:
        data += scan(components, chosen, restart=restart, before_restarts=before_restarts)
    return data + bytes((0xFF, EOI))


def saved(**options: Any) -> bytes:
    file = io.BytesIO()
    picture(np.random.default_rng(7), WIDTH, HEIGHT).save(file, "JPEG", **options)
    return file.getvalue()


def pieces(data: bytes) -> tuple[list[bytes], bytes]:
    """The header's segments, and the rest from SOS on."""
    found, at = [], 2
    while data[at + 1] != SOS:
        size = 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found.append(data[at : at + size])
        at += size
    return found, data[at:]


def rearranged(change: Callable[[list[bytes]], list[bytes]], **options: Any) -> bytes:
    segments, rest = pieces(saved(**options))
    return bytes((0xFF, SOI)) + b"".join(change(segments)) + rest


def without(marker: int) -> Callable[[list[bytes]], list[bytes]]:
    return lambda segments: [each for each in segments if each[1] != marker]


def all_in_one(marker: int) -> Callable[[list[bytes]], list[bytes]]:
    """All segments of one kind in a single one, at the first one's place."""

    def change(segments: list[bytes]) -> list[bytes]:
        merged = segment(marker, b"".join(each[4:] for each in segments if each[1] == marker))
        first = next(i for i, each in enumerate(segments) if each[1] == marker)
        rest = without(marker)(segments)
        return [*rest[:first], merged, *rest[first:]]

    return change


GRAY = [Component(1)]
RGB_IDS = [Component(ord(c)) for c in "RGB"]
OTHER_TABLES = [Component(1, 2, 2, quantizer=2, dc=1, ac=3), *(Component(i, 1, 1, 3, 3, 1) for i in (2, 3))]

FOUR = [Component(i) for i in range(1, 5)]
FOUR_SAMPLED = [Component(1, 2, 2), Component(2), Component(3), Component(4, 2, 2)]

# CMYK and YCCK, which libjpeg decodes for us.
FOUR_COMPONENTS: dict[str, Callable[[], bytes]] = {
    "four components": lambda: noise(FOUR),
    "four components, Adobe says CMYK": lambda: noise(FOUR, before=segment(APP14, ADOBE + b"\0")),
    "four components, Adobe says YCCK": lambda: noise(FOUR, before=segment(APP14, ADOBE + b"\2")),
    "four components, JFIF and Adobe": lambda: noise(
        FOUR, before=segment(APP0, JFIF) + segment(APP14, ADOBE + b"\2")
    ),
    "YCCK, color at half the size": lambda: noise(FOUR_SAMPLED, before=segment(APP14, ADOBE + b"\2")),
    "CMYK, color at half the size": lambda: noise(FOUR_SAMPLED),
    "CMYK, one scan for each component": lambda: noise(FOUR_SAMPLED, scans=[[0], [1], [2], [3]]),
    **{
        f"YCCK, a restart every {n} MCUs": lambda n=n: noise(  # type: ignore[misc]
            FOUR_SAMPLED, restart=n, before=segment(APP14, ADOBE + b"\2")
        )
        for n in (1, 3, 5, 10)
    },
}

# Files that our own decoder takes, and others: how many of them Pillow reads is up to Pillow.
TAKEN: dict[str, Callable[[], bytes]] = {
    **{f"noise {h}×{v}": lambda h=h, v=v: noise(ycbcr(h, v)) for h in (1, 2) for v in (1, 2)},  # type: ignore[misc]
    **{
        f"noise {h}×{v}, a restart every {n} MCUs": lambda h=h, v=v, n=n: noise(ycbcr(h, v), restart=n)  # type: ignore[misc]
        for h, v in ((1, 1), (2, 1), (2, 2))
        for n in (1, 2, 3, 5, 7, 10, 11, 64, 65535)
    },
    "gray": lambda: noise(GRAY),
    "gray with factors 2×2": lambda: noise([Component(1, 2, 2)]),
    "gray with factors 3×1": lambda: noise([Component(1, 3, 1)]),
    "gray with restarts": lambda: noise([Component(1, 2, 2)], restart=3),
    "SOF1": lambda: noise(ycbcr(2, 2), sof=SOF1),
    "16-bit quantizers": lambda: noise(
        ycbcr(2, 2), sof=SOF1, tables=quantizers(bits=16, most=300) + huffman()
    ),
    "16-bit quantizers in a baseline file": lambda: noise(
        ycbcr(2, 1), tables=quantizers(bits=16, most=300) + huffman()
    ),
    "quantizers over 32767": lambda: noise(ycbcr(2, 2), tables=quantizers(bits=16, most=65535) + huffman()),
    "tables 1 to 3": lambda: noise(
        OTHER_TABLES, tables=quantizers(2) + quantizers(3, most=9) + huffman(1) + huffman(3)
    ),
    "tables defined twice": lambda: noise(
        ycbcr(2, 2), tables=quantizers(most=3) + huffman() + quantizers() + huffman()
    ),
    "identifiers 0 to 2": lambda: noise([Component(0, 2, 2), Component(1), Component(2)]),
    "identifiers 255 and down": lambda: noise([Component(255, 2, 2), Component(254), Component(253)]),
    "identifiers R, G, B in a JFIF file": lambda: noise(RGB_IDS, before=segment(APP0, JFIF)),
    "Adobe says YCbCr": lambda: noise(ycbcr(2, 2), before=segment(APP14, ADOBE + b"\1")),
    "JFIF against Adobe": lambda: noise(
        ycbcr(1, 1), before=segment(APP14, ADOBE + b"\0") + segment(APP0, JFIF)
    ),
    "an Adobe marker cut short": lambda: noise(ycbcr(2, 2), before=segment(APP14, ADOBE)),
    "a JFIF marker cut short": lambda: noise(ycbcr(2, 2), before=segment(APP0, JFIF[:9])),
    "all Huffman tables in one segment": lambda: rearranged(all_in_one(DHT)),
    "all quantizers in one segment": lambda: rearranged(all_in_one(DQT)),
    "tables behind the frame": lambda: rearranged(lambda s: sorted(s, key=lambda each: each[1] != SOF0)),
    "fill bytes before every segment": lambda: rearranged(
        lambda s: [b"\xff" * (i % 4) + e for i, e in enumerate(s)]
    ),
    "restart interval stated twice": lambda: rearranged(
        lambda s: [segment(DRI, b"\0\1"), *s], restart_marker_blocks=3
    ),
    "restart interval of 0": lambda: rearranged(lambda s: [*s, segment(DRI, b"\0\0")]),
    "JFIF twice": lambda: rearranged(lambda s: [s[0], *s]),
    "a whole JPEG as EXIF thumbnail": lambda: rearranged(
        lambda s: [segment(0xE1, b"Exif\0\0" + saved(quality=20)), *s]
    ),
    "an empty comment and empty APPn segments": lambda: rearranged(
        lambda s: [segment(0xFE, b""), *(segment(m, b"") for m in range(0xE1, 0xEE)), *s]
    ),
    "fill bytes before restart markers": lambda: noise(ycbcr(2, 2), restart=3, before_restarts=b"\xff\xff"),
    "garbage before restart markers": lambda: noise(ycbcr(2, 2), restart=3, before_restarts=b"\x12\x34"),
}
REFUSED: dict[str, Callable[[], bytes]] = {
    "Motion JPEG: no Huffman tables": lambda: rearranged(without(DHT)),
    "Motion JPEG with restarts": lambda: rearranged(without(DHT), restart_marker_blocks=2),
    "no quantizers": lambda: rearranged(without(DQT)),
    "no frame": lambda: rearranged(without(SOF0)),
    "two frames": lambda: rearranged(lambda s: [*s, next(e for e in s if e[1] == SOF0)]),
    "height given later": lambda: noise(ycbcr(2, 2), height=0),
    "12 bits": lambda: noise(ycbcr(2, 2), sof=SOF1, precision=12),
    "one scan for each component": lambda: noise(ycbcr(2, 2), scans=[[0], [1], [2]]),
    "luma first, then chroma": lambda: noise(ycbcr(2, 1), scans=[[0], [1, 2]]),
    "components in another order": lambda: noise(ycbcr(2, 2), scans=[[1, 0, 2]]),
    "only luma's scan": lambda: noise(ycbcr(2, 2), scans=[[0]]),
    "4:1:1": lambda: noise(ycbcr(4, 1)),
    "4:1:0": lambda: noise(ycbcr(4, 2)),
    "factors 1×4": lambda: noise(ycbcr(1, 4)),
    "factors 3×1": lambda: noise(ycbcr(3, 1)),
    "factors 2×2 for all": lambda: noise([Component(i, 2, 2) for i in (1, 2)] + [Component(3, 1, 1)]),
    "factors 2×1 for all": lambda: noise([Component(i, 2, 1) for i in (1, 2, 3)]),
    "chroma finer than luma": lambda: noise([Component(1), Component(2, 2, 2), Component(3, 2, 2)]),
    "chromas of different factors": lambda: noise(
        [Component(1, 2, 2), Component(2, 2, 1), Component(3, 1, 2)]
    ),
    "two components": lambda: noise([Component(1), Component(2)]),
    **FOUR_COMPONENTS,
    "four components, Adobe says YCbCr": lambda: noise(FOUR, before=segment(APP14, ADOBE + b"\1")),
    "CMYK, 2×2 for all: too many blocks": lambda: noise([Component(i, 2, 2) for i in range(1, 5)]),
    "identifiers R, G, B": lambda: noise(RGB_IDS),
    "Adobe says RGB": lambda: noise(ycbcr(1, 1), before=segment(APP14, ADOBE + b"\0")),
    "two components of one identifier": lambda: noise([Component(1, 2, 2), Component(2), Component(2)]),
    "lossless": lambda: noise(ycbcr(1, 1), sof=0xC3),
    "hierarchical": lambda: noise(ycbcr(1, 1), sof=0xC5),
    "arithmetic": lambda: noise(ycbcr(2, 2), sof=0xC9),
    "progressive by name only": lambda: noise(ycbcr(2, 2), sof=0xC2),
    "a table that nobody defined": lambda: noise(OTHER_TABLES),
    "SOI twice": lambda: saved()[:2] + saved(),
    "bytes between segments": lambda: rearranged(lambda s: [s[0], b"\0\0", *s[1:]]),
    "garbage behind the end": lambda: saved() + b"garbage",
    "zeros behind the end": lambda: saved() + bytes(100),
    "an end marker less": lambda: saved()[:-2],
    "a restart marker less": lambda: noise(ycbcr(2, 2), restart=3).replace(b"\xff\xd1", b"", 1),
    "restart markers swapped": lambda: noise(ycbcr(2, 2), restart=3).replace(b"\xff\xd1", b"\xff\xd2", 1),
    "restarts without an interval": lambda: noise(ycbcr(2, 2), restart=3).replace(
        b"\xff\xdd\0\4\0\3", b"", 1
    ),
}
