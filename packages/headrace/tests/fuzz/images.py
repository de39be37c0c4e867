"""Image files of every format that native code decodes, generated at random, and decoded as Pillow does.

Each file is decoded whole and in three rectangles, by each decoder that takes it, and compared with Pillow's
`convert("RGB")`. Sizes are from 1×1 and 1×N to 300×300, a few are larger.

    python tests/fuzz/images.py --count 10000
    python tests/fuzz/images.py --folder Pillow/Tests/images         (those files instead)
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tests"))

from headrace._native import ffi
from headrace._native.decoders import FORMATS, native_formats
from headrace.errors import NativeError
from support.jpegs import cmyk
from support.pngs import GRAY, KINDS, PALETTE, RGB, png

Pixels = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]

# Pillow's encoder wants an optimized file to fit its buffer, and noise is larger than it guesses.
ImageFile.MAXBLOCK = 1 << 24

CROPS = 3
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def size_of(rng: np.random.Generator) -> tuple[int, int]:
    """Width and height."""
    kind = rng.integers(10)
    if kind == 0:
        return 1, 1
    if kind in (1, 2):
        edges = [1, int(rng.integers(1, 400))]
        return edges[kind - 1], edges[2 - kind]
    most = 20 if kind < 5 else 900 if rng.integers(60) == 0 else 300
    width, height = (int(edge) for edge in rng.integers(1, most + 1, 2))
    return width, height


def picture(rng: np.random.Generator, channels: int = 3) -> Image.Image:
    """Noise, smooth noise, or a few colours, of which each format makes something else."""
    width, height = size_of(rng)
    kind = rng.integers(3)
    scale = 1 if kind == 0 else int(rng.integers(2, 12))
    small = rng.integers(0, 256, (height // scale + 1, width // scale + 1, channels), dtype=np.uint8)
    image = Image.fromarray(small if channels > 1 else small[:, :, 0])
    filter = Image.Resampling.NEAREST if kind == 2 else Image.Resampling.BICUBIC
    return image.resize((width, height), filter)


def saved(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def jpeg_file(rng: np.random.Generator) -> bytes:
    if rng.integers(8) == 0:
        return cmyk(rng, *size_of(rng), ycck=bool(rng.integers(2)))
    options: dict[str, Any] = {"quality": int(rng.integers(1, 101)), "subsampling": int(rng.integers(3))}
    if rng.integers(4) == 0:
        options["progressive"] = True
    elif rng.integers(3) == 0:
        options["restart_marker_blocks"] = int(rng.integers(1, 20))
    if rng.integers(3) == 0:
        options["optimize"] = True
    image = picture(rng)
    return saved(image.convert("L") if rng.integers(4) == 0 else image, "JPEG", **options)


def png_file(rng: np.random.Generator) -> bytes:
    if rng.integers(3) == 0:
        mode = MODES[rng.integers(len(MODES))]
        image = picture(rng)
        if mode == "I;16":
            image = Image.fromarray(np.asarray(image)[:, :, 0].astype(np.uint16) * int(rng.integers(1, 257)))
        level = int(rng.integers(10))
        return saved(image if mode == "I;16" else image.convert(mode), "PNG", compress_level=level)
    bits, color = KINDS[rng.integers(len(KINDS))]
    before = []
    if color in (GRAY, RGB) and rng.integers(3) == 0:
        levels = rng.integers(0, 1 << min(bits, 8), 2 if color == GRAY else 6)
        before.append((b"tRNS", bytes(levels.tolist())))
    entries = int(rng.integers(1, (1 << bits) + 1)) if color == PALETTE and rng.integers(2) else None
    return png(rng, *size_of(rng), bits, color, entries=entries, before=before)


def webp_file(rng: np.random.Generator) -> bytes:
    options: dict[str, Any] = {"quality": int(rng.integers(0, 101)), "method": int(rng.integers(7))}
    if rng.integers(2) == 0:
        options["lossless"] = True
    if rng.integers(2) == 0:
        options |= {"exact": bool(rng.integers(2)), "alpha_quality": int(rng.integers(1, 101))}
        return saved(picture(rng, 4), "WEBP", **options)
    return saved(picture(rng), "WEBP", **options)


SIGNATURES: dict[str, Callable[[bytes], bool]] = {
    "JPEG": lambda data: data.startswith(b"\xff\xd8\xff"),
    "PNG": lambda data: data.startswith(b"\x89PNG\r\n\x1a\n"),
    "WEBP": lambda data: data[:4] == b"RIFF" and data[8:12] == b"WEBP",
}
MAKERS: dict[str, Callable[[np.random.Generator], bytes]] = {
    "JPEG": jpeg_file,
    "PNG": png_file,
    "WEBP": webp_file,
}


def rectangles(rng: np.random.Generator, width: int, height: int) -> list[Box]:
    """All of the image, and parts of it."""
    found = [(0, 0, width, height)]
    for _ in range(CROPS):
        w, h = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
        found.append((int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h))
    return found


def compare(data: bytes, format: str, rng: np.random.Generator) -> set[str]:
    """The decoders that take all of a file.

    Raises:
        ValueError: one of them gives other pixels than Pillow.
    """
    whole = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    height, width, _ = whole.shape
    if ffi.image_size(data) != (width, height):
        raise ValueError(f"size {ffi.image_size(data)}, not {(width, height)}")
    taken = set()
    boxes = rectangles(rng, width, height)
    for decoder in FORMATS[format]:
        for x, y, w, h in boxes if decoder in ffi.decoder_names() else ():
            try:
                pixels = ffi.image_decode(data, decoder, (x, y, w, h))
            except NativeError:
                break
            if not np.array_equal(pixels, whole[y : y + h, x : x + w]):
                raise ValueError(f"{decoder} gives other pixels for {(x, y, w, h)} of {width}×{height}")
            taken.add(decoder)
    return taken


def run(count: int, seed: int) -> Counter[str]:
    """How many of `count` files each decoder took, by "FORMAT decoder"; "FORMAT" is how many there were."""
    found: Counter[str] = Counter()
    formats = native_formats()
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        format = formats[number % len(formats)]
        data = MAKERS[format](rng)
        try:
            taken = compare(data, format, rng)
        except ValueError as error:
            raise ValueError(f"file {number} of seed {seed} ({format}): {error}") from error
        if not taken:
            raise ValueError(f"file {number} of seed {seed} ({format}) is left to Pillow")
        found.update([format, *(f"{format} {decoder}" for decoder in taken)])
    return found


def run_folder(folder: Path) -> Counter[str]:
    """The same of the files in a folder that begin as those of these formats; "FORMAT left to Pillow" counts
    those that no decoder takes as a whole. What Pillow can't open must not be decoded."""
    found: Counter[str] = Counter()
    for number, path in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        data = path.read_bytes()
        format = next((name for name, begins in SIGNATURES.items() if begins(data)), None)
        if format is None:
            continue
        try:
            taken = compare(data, format, np.random.default_rng([1, number]))
        except NativeError:
            taken = set()
        except Exception as error:
            if type(error) is ValueError and "other pixels" in str(error):
                raise ValueError(f"{path}: {error}") from error
            taken = {name for name in FORMATS[format] if _decodes(data, name)}
            if taken:
                raise ValueError(f"{path}: {taken} take it, Pillow raises {error!r}") from error
        found.update([format, *(f"{format} {name}" for name in taken or ["left to Pillow"])])
    return found


def _decodes(data: bytes, decoder: str) -> bool:
    try:
        ffi.image_decode(data, decoder, (0, 0, *ffi.image_size(data)))
    except (NativeError, ValueError):
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="of files to compare in place of generated ones")
    arguments = parser.parse_args()
    start = time.monotonic()
    found = run_folder(arguments.folder) if arguments.folder else run(arguments.count, arguments.seed)
    for name, number in sorted(found.items()):
        sys.stdout.write(f"{name:<24} {number:>6,}\n")
    seconds = time.monotonic() - start
    files = sum(found[name] for name in FORMATS)
    sys.stdout.write(f"{files:,} files, each whole and in {CROPS} parts: no difference ({seconds:.0f} s)\n")


if __name__ == "__main__":
    main()
