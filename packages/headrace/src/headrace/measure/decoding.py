"""Reads and decodes every image of a split: damage, sizes, formats and duplicates."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from headrace._machine import usable_cores
from headrace._native import abi, ffi
from headrace.errors import NativeError
from headrace.measure.images import HEAD, SIGNATURES, Images, Progress, Split, State, image_format
from headrace.measure.tree import refusal

# Returns the bytes of an image; None where it cannot be read, having recorded its state or reason.
Read = Callable[[Split, int], bytes | None]
CHUNK = 64  # images that a thread takes at a time
MOST_BYTES = 1 << 30  # larger files are not read into memory
# So many zero bytes at the end of a file mean that its end never arrived: no encoder writes them.
ZEROS = 512
# Only libjpeg's complete decoder notices surplus or missing data before the end of a file; the others take
# 40 % less time. It cannot tell that from impossible codes: Headrace's decoder, which stops at those, can.
THOROUGH, STRICT = "libjpeg-full", "headrace"
# Beginnings of files found in place of images, in lower case.
LIKENESSES = (
    (b"version https://git-lfs", "a Git LFS pointer: run git lfs pull"),
    (b"<!doctype html", "an HTML page, as servers send for missing files"),
    (b"<html", "an HTML page, as servers send for missing files"),
    (b"<?xml", "XML"),
    (b"<svg", "SVG"),
    (b"\x1f\x8b", "gzip"),
    (b"pk\x03\x04", "a zip file"),
    (b"%pdf", "PDF"),
    (b"bplist", "a property list of macOS"),
    (b"\0\x05\x16\x07", "a resource fork of macOS, as its tar and zip leave next to each file"),
)
_kinds_lock = threading.Lock()


def read_file(split: Split, row: int) -> bytes | None:
    """The bytes of the image's file."""
    path = os.path.join(split.path, split.images.names[row])
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError as error:
        split.images.states[row] = State.UNREADABLE
        split.images.reasons[row] = refusal(path, error)
        return None


def decode_all(
    splits: list[Split],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    read: Read = read_file,
) -> None:
    """Fills in what reading and decoding shows about the images of `splits`.

    A file that fails only gets its state; nothing is raised for it.

    Args:
        splits: as listed; images that were opened, or couldn't be found, are left as they are.
        workers: number of threads. Default: usable cores + 1, as some will be reading.
        progress: called with (images done, images in all), now and then. Default: not at all.
        read: of one image. Default: from its file.
    """
    duplicated = _duplicated_sizes(splits)
    chunks = [(split, rows) for split in splits for rows in _chunks(split.images)]
    total = sum(len(rows) for _, rows in chunks)
    done = 0
    # Pillow warns of unusual files; state and kind have what matters of it. Filters hold for the whole
    # process, so they are set before threads start.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pool = ThreadPoolExecutor(workers or usable_cores() + 1)
        try:
            looks = pool.map(lambda chunk: _look(chunk[0], chunk[1], duplicated, read), chunks)
            for (_, rows), _ in zip(chunks, looks, strict=True):
                done += len(rows)
                if progress is not None:
                    progress(done, total)
        finally:
            pool.shutdown(cancel_futures=True)


def _chunks(images: Images) -> Iterator[npt.NDArray[np.int64]]:
    """Numbers of files that are present, a part at a time."""
    unseen = np.flatnonzero(images.states == State.UNSEEN)
    for first in range(0, len(unseen), CHUNK):
        yield unseen[first : first + CHUNK]


def _duplicated_sizes(splits: list[Split]) -> set[int]:
    """The sizes that more than one file has: only those can be equal."""
    sizes = np.concatenate([np.zeros(0, np.int64), *(split.images.sizes for split in splits)])
    found, counts = np.unique(sizes, return_counts=True)
    return set(found[counts > 1].tolist())


def _look(split: Split, rows: npt.NDArray[np.int64], duplicated: set[int], read: Read) -> None:
    images = split.images
    for row in rows.tolist():
        if images.sizes[row] > MOST_BYTES:
            images.reasons[row] = f"not opened: it has {images.sizes[row]:,} bytes"
            continue
        data = read(split, row)
        if data is None:
            continue
        if len(data) in duplicated:
            digest = hashlib.sha256(data).digest()[:8]
            images.digests[row] = max(1, int.from_bytes(digest, "little"))
        code = _decode(data, THOROUGH) if data.startswith(SIGNATURES[0][0]) else abi.UNSUPPORTED
        _by_pillow(images, row, data, decoded=code == abi.OK)
        if code == abi.CORRUPT and images.states[row] == State.GOOD:
            wrong = _decode(data, STRICT) == abi.CORRUPT
            images.states[row] = State.BROKEN if wrong else State.DOUBTFUL


def _decode(jpeg: bytes, decoder: str) -> int:
    """What decoding all of it by one decoder gives: `abi.OK` or what is wrong."""
    try:
        width, height = ffi.image_size(jpeg)
        if Image.MAX_IMAGE_PIXELS is not None and width * height > 2 * Image.MAX_IMAGE_PIXELS:
            return abi.TOO_LARGE
        ffi.image_decode(jpeg, decoder, (0, 0, width, height))
    except NativeError as error:
        return error.code
    return abi.OK


def _by_pillow(images: Images, row: int, data: bytes, *, decoded: bool) -> None:
    """What torchvision's loader would make of it; where native code has decoded it, by its header alone."""
    if not data:
        images.states[row] = State.EMPTY
        return
    try:
        with Image.open(io.BytesIO(data)) as image:
            progressive = "progressive " if decoded and image.info.get("progressive") else ""
            # As which Pillow opens JPEGs of phones that hold further images behind the first.
            format_ = "JPEG" if image.format == "MPO" else image.format or ""
            _set_kind(images, row, progressive + format_, image.mode)
            images.widths[row], images.heights[row] = image.size
            if not decoded:
                image.convert("RGB")
        images.states[row] = State.GOOD
    except UnidentifiedImageError:
        known = image_format(data[:HEAD].ljust(HEAD, b"\xff"))
        images.states[row] = State.CUT if known else State.ALIEN
        images.reasons[row] = f"ends within the header of a {known}" if known else looks_like(data)
    except Image.DecompressionBombError as error:
        images.states[row], images.reasons[row] = State.HUGE, str(error)
    except Exception as error:  # Pillow raises anything for a bad file: SyntaxError, struct.error, …
        cut = "truncated" in str(error).lower()
        images.states[row] = State.CUT if cut else State.DAMAGED
        zeros = len(data) - len(data.rstrip(b"\0"))
        at_end = f"; its last {zeros:,} of {len(data):,} bytes are zeros" if zeros >= ZEROS else ""
        images.reasons[row] = f"{type(error).__name__}: {error}{at_end}"


def _set_kind(images: Images, row: int, format_: str, mode: str) -> None:
    kind = (format_, mode)
    with _kinds_lock:
        if kind not in images.kind_names:
            images.kind_names.append(kind)
    images.kinds[row] = images.kind_names.index(kind)


def looks_like(data: bytes) -> str:
    """What a file seems to be that is not an image."""
    head = data[:64].lstrip().lower()
    text = data[:64].isascii() and data[:64].decode("ascii").isprintable()
    rest = "nothing but zero bytes" if not data.strip(b"\0") else "text" if text else "unknown data"
    return next((what for start, what in LIKENESSES if head.startswith(start)), rest)
