"""PNG files of every kind, most of which Pillow can't write: made here chunk by chunk."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6
CHANNELS = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGBA: 4}
# (bits, color type), all that there are.
KINDS = [
    *((bits, GRAY) for bits in (1, 2, 4, 8, 16)),
    *((bits, PALETTE) for bits in (1, 2, 4, 8)),
    *((bits, color) for color in (RGB, GRAY_ALPHA, RGBA) for bits in (8, 16)),
]
# x and y of the first pixel of each pass of an interlaced image, and the steps to the next.
PASSES = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
SIGNATURE = b"\x89PNG\r\n\x1a\n"

Chunks = Iterable[tuple[bytes, bytes]]
Samples = npt.NDArray[np.uint16]


def chunk(name: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")


def header(width: int, height: int, bits: int, color: int, interlaced: bool = False) -> bytes:
    fields = bytes((bits, color, 0, 0, int(interlaced)))
    return chunk(b"IHDR", width.to_bytes(4, "big") + height.to_bytes(4, "big") + fields)


def packed(samples: Samples, bits: int) -> npt.NDArray[np.uint8]:
    """Rows of samples [height, width × channels] as bytes."""
    if bits == 16:
        return np.ascontiguousarray(samples.astype(">u2")).view(np.uint8).reshape(len(samples), -1)
    if bits == 8:
        return samples.astype(np.uint8)
    single = np.unpackbits(samples.astype(np.uint8)[:, :, None], axis=2)[:, :, 8 - bits :]
    return np.packbits(single.reshape(len(samples), -1), axis=1)


def filtered(rows: npt.NDArray[np.uint8], step: int, filters: npt.NDArray[np.int64]) -> bytes:
    """Each row after its filter's number; `step`: bytes from a sample to its neighbor in the next pixel."""
    up = np.zeros_like(rows, np.int64)
    up[1:] = rows[:-1]
    left, corner = np.zeros_like(up), np.zeros_like(up)
    left[:, step:] = rows[:, :-step] if step < rows.shape[1] else 0
    corner[:, step:] = up[:, :-step] if step < rows.shape[1] else 0
    guess = left + up - corner
    near = [abs(guess - each) for each in (left, up, corner)]
    paeth = np.where(
        (near[0] <= near[1]) & (near[0] <= near[2]), left, np.where(near[1] <= near[2], up, corner)
    )
    choices = (np.zeros_like(up), left, up, (left + up) // 2, paeth)
    out = bytearray()
    for y, (row, kind) in enumerate(zip(rows, filters, strict=True)):
        out.append(int(kind))
        out += (row - choices[kind][y]).astype(np.uint8).tobytes()
    return bytes(out)


def image_data(rng: np.random.Generator, samples: Samples, bits: int, color: int, interlaced: bool) -> bytes:
    """The data of the IDAT chunks: samples [height, width, channels], each row filtered in its own way."""
    step = max(1, bits * CHANNELS[color] // 8)
    parts = [samples[y0::dy, x0::dx] for x0, y0, dx, dy in PASSES] if interlaced else [samples]
    raw = b"".join(
        filtered(packed(part.reshape(len(part), -1), bits), step, rng.integers(0, 5, len(part)))
        for part in parts
        if part.size
    )
    return zlib.compress(raw, int(rng.integers(0, 7)))


def png(  # noqa: PLR0913
    rng: np.random.Generator,
    width: int,
    height: int,
    bits: int = 8,
    color: int = RGB,
    *,
    interlaced: bool = False,
    entries: int | None = None,
    before: Chunks = (),
    after: Chunks = (),
) -> bytes:
    """An image of random pixels, smooth or noisy, in IDAT chunks of random sizes.

    Args:
        entries: of the palette, or None for as many as there are values.
        before, after: further chunks, before and after the image data.
    """
    most = (1 << bits) - 1
    y, x = np.mgrid[0:height, 0:width]
    smooth = (x * 7 + y * 3)[:, :, None] + np.arange(CHANNELS[color]) * 50
    noise = rng.integers(0, most + 1, smooth.shape)
    samples = ((smooth * (most // 255 or 1) if rng.integers(2) else noise) & most).astype(np.uint16)
    data = image_data(rng, samples, bits, color, interlaced)
    out = SIGNATURE + header(width, height, bits, color, interlaced)
    if color == PALETTE:
        palette = rng.integers(0, 256, 3 * (1 << bits if entries is None else entries), dtype=np.uint8)
        out += chunk(b"PLTE", palette.tobytes())
    out += b"".join(chunk(*each) for each in before)
    out += b"".join(chunk(b"IDAT", part) for part in pieces(rng, data))
    return out + b"".join(chunk(*each) for each in after) + chunk(b"IEND", b"")


def pieces(rng: np.random.Generator, data: bytes) -> Iterator[bytes]:
    most = int(rng.choice([17, 300, 8192, 1 << 20]))
    for at in range(0, len(data), most):
        yield data[at : at + most]


def _rng() -> np.random.Generator:
    return np.random.default_rng(11)


def _with(*before: tuple[bytes, bytes], **kind: int) -> bytes:
    return png(_rng(), 37, 29, before=before, **kind)  # type: ignore[arg-type]


def _itxt(text: bytes, *, compressed: bool = False) -> bytes:
    return b"Comment\0" + bytes((compressed, 0)) + b"en\0Comment\0" + text


def changed(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes((value,)) + data[at + 1 :]


def without(data: bytes, name: bytes) -> bytes:
    """Removes the chunks of that name."""
    while name in data:
        at = data.index(name) - 4
        data = data[:at] + data[at + 12 + int.from_bytes(data[at : at + 4], "big") :]
    return data


SMALL = zlib.compress(b"profile" * 300)
BOMB = zlib.compress(bytes(3 << 20), 9)
NAMED = b"Name\0\0"

# What native code decodes, beyond the kinds of pixels.
TAKEN: dict[str, Callable[[], bytes]] = {
    "a transparent entry of a palette": lambda: _with((b"tRNS", b"\xff\xff\0\xff"), color=PALETTE),
    "a transparent gray": lambda: _with((b"tRNS", b"\0\5"), color=GRAY),
    "a transparent gray that isn't there": lambda: _with((b"tRNS", b"\xff\xff"), color=GRAY),
    "a transparent gray of 1 bit": lambda: _with((b"tRNS", b"\0\1"), color=GRAY, bits=1),
    "a transparent gray of 16 bits": lambda: _with((b"tRNS", b"\1\2"), color=GRAY, bits=16),
    "a transparent color": lambda: _with((b"tRNS", b"\0\5\0\6\0\7")),
    "fewer palette entries than values": lambda: _with(color=PALETTE, entries=3),
    "one palette entry": lambda: _with(color=PALETTE, entries=1),
    "more palette entries than values": lambda: _with(color=PALETTE, bits=2, entries=200),
    "a palette that is only suggested": lambda: _with((b"PLTE", bytes(range(30)))),
    "gamma and chromaticities": lambda: _with(
        (b"gAMA", b"\0\0\xb1\x8f"), (b"cHRM", bytes(range(32))), (b"sRGB", b"\0")
    ),
    "sizes of pixels": lambda: _with((b"pHYs", b"\0\0\x0b\x13\0\0\x0b\x13\1")),
    "a color profile": lambda: _with((b"iCCP", NAMED + SMALL)),
    "a large color profile": lambda: _with(
        (b"iCCP", NAMED + zlib.compress(_rng().integers(0, 99, 300_000, dtype=np.uint8).tobytes()))
    ),
    "a damaged color profile": lambda: _with((b"iCCP", NAMED + b"\x78\x9c" + bytes(5000))),
    "texts": lambda: _with((b"tEXt", b"Title\0a title"), (b"iTXt", _itxt(b"text")), (b"tEXt", b"no value")),
    "compressed texts": lambda: _with(
        (b"zTXt", NAMED + SMALL), (b"iTXt", _itxt(SMALL, compressed=True)), (b"zTXt", b"no value")
    ),
    "EXIF": lambda: _with((b"eXIf", b"MM\0*\0\0\0\x08\0\0")),
    "chunks that nobody knows": lambda: _with((b"prVt", b"?"), (b"tIME", bytes(7)), (b"bKGD", bytes(6))),
    "texts and times behind the pixels": lambda: png(
        _rng(), 9, 9, after=[(b"tEXt", b"date:create\0now"), (b"tIME", bytes(7)), (b"eXIf", b"MM")]
    ),
    "garbage behind the end": lambda: _with() + b"garbage",
}

# What native code leaves to Pillow, and Pillow reads, or not.
REFUSED: dict[str, Callable[[], bytes]] = {
    "transparent entries of a palette": lambda: _with((b"tRNS", b"\xff\x80\0"), color=PALETTE),
    "an opaque palette that says so": lambda: _with((b"tRNS", b"\xff\xff"), color=PALETTE),
    "transparency of no value": lambda: _with((b"tRNS", b""), color=PALETTE),
    "transparency cut short": lambda: _with((b"tRNS", b"\0\0\0")),
    "transparency twice": lambda: _with((b"tRNS", b"\0\5"), (b"tRNS", b"\0\6"), color=GRAY),
    "no palette": lambda: without(_with(color=PALETTE), b"PLTE"),
    "a palette of a size that can't be": lambda: _with((b"PLTE", bytes(10))),
    "a profile that is a bomb": lambda: _with((b"iCCP", NAMED + BOMB)),
    "a compressed text that is a bomb": lambda: _with((b"zTXt", NAMED + BOMB)),
    "a compressed international text that is a bomb": lambda: _with((b"iTXt", _itxt(BOMB, compressed=True))),
    "a profile of an unknown method": lambda: _with((b"iCCP", b"Name\0\1" + SMALL)),
    "a text of an unknown method": lambda: _with((b"zTXt", b"Name\0\1" + SMALL)),
    "texts of megabytes": lambda: _with(*[(b"tEXt", b"Comment\0" + bytes(300_000))] * 5),
    "a text called transparency": lambda: _with((b"tEXt", b"transparency\0x"), color=GRAY),
    "a text called interlace": lambda: _with((b"tEXt", b"interlace\0x")),
    "a text called bbox": lambda: _with((b"iTXt", b"bbox\0\0\0\0\0text")),
    "gamma cut short": lambda: _with((b"gAMA", b"\0\0")),
    "chromaticities cut short": lambda: _with((b"cHRM", bytes(30))),
    "an unknown chunk that is critical": lambda: _with((b"CRIT", b"?")),
    "an animation of one frame": lambda: _with((b"acTL", b"\0\0\0\1\0\0\0\0")),
    "an unknown kind of interlacing": lambda: _start_changed(12, 2),
    "an unknown kind of filters": lambda: _start_changed(11, 1),
    "an unknown kind of compression": lambda: _start_changed(10, 1),
    "a kind of pixels that can't be": lambda: _start_changed(8, 3),
    "no pixels": lambda: without(png(_rng(), 3, 3), b"IDAT"),
    "a size of zero": lambda: png(_rng(), 3, 3).replace(header(3, 3, 8, RGB), header(0, 3, 8, RGB)),
    "an empty IDAT": lambda: _with((b"IDAT", b"")),
    "data after other chunks": lambda: _data_in_two(),
    "a wrong checksum of the header": lambda: changed(_with(), 29, 0),
    "a wrong checksum of a text": lambda: _with((b"tEXt", b"Title\0a title")).replace(b"a title", b"b title"),
    "damaged pixels": lambda: changed(_with(), len(_with()) // 2, 0xFF),
    "no end": lambda: _with()[:-12],
    "cut in its data": lambda: _with()[: len(_with()) // 2],
    "only the signature": lambda: SIGNATURE,
}


# Checksums of chunks don't show whether the image data of these are whole.
DECEPTIVE: dict[str, Callable[[], bytes]] = {
    "a wrong checksum of the data": lambda: changed(_with(), len(_with()) - 13, 0),
    "more rows than data": lambda: png(_rng(), 3, 3).replace(header(3, 3, 8, RGB), header(3, 4, 8, RGB)),
}


def _start_changed(at: int, value: int) -> bytes:
    data = _with()
    fields = changed(data[16:29], at, value)
    return SIGNATURE + chunk(b"IHDR", fields) + data[33:]


def _data_in_two() -> bytes:
    data = _with()
    at = data.index(b"IDAT") - 4
    size = int.from_bytes(data[at : at + 4], "big")
    content = data[at + 8 : at + 8 + size]
    parts = [chunk(b"IDAT", content[:9]), chunk(b"tEXt", b"Title\0x"), chunk(b"IDAT", content[9:])]
    return data[:at] + b"".join(parts) + data[at + 12 + size :]
