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
from headrace.measure.images import HEAD, SIGNATURES, Images, Progress, Split, State, image_format
from headrace.measure.tree import refusal

# Returns the bytes of an image; None where it cannot be read, having recorded its state or reason.
Read = Callable[[Split, int], bytes | None]
CHUNK, CHUNK_BYTES = 64, 16_000_000  # images that a thread takes at a time, also limited in bytes
MOST_BYTES = 1 << 30  # larger files are not read into memory
WAIT_MS = 1000  # until a wait for native code returns to Python, so that Ctrl-C works
# So many zero bytes at the end of a file mean that its end never arrived: no encoder writes them.
ZEROS = 512
BOX = 4  # of PIL.Image.Resampling: the filter that uses every pixel
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
    """Fills in what reading and decoding shows about the images of `splits`, by as many threads (by default
    the usable cores + 1, as some will be reading); `progress` is called with (images done, images in all),
    now and then, and `read` reads one image. A file that fails only gets its state."""
    duplicated = _duplicated_sizes(splits)
    chunks = [(split, rows) for split in splits for rows in _chunks(split.images)]
    total, done = sum(len(rows) for _, rows in chunks), 0
    decoder = ffi.Pool(0, 0)
    # Pillow warns of unusual files; state and kind have what matters of it. Filters hold for the whole
    # process, so they are set before threads start.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pool = ThreadPoolExecutor(workers or usable_cores() + 1)
        try:
            looks = pool.map(lambda chunk: _look(chunk[0], chunk[1], decoder, duplicated, read), chunks)
            for (_, rows), _ in zip(chunks, looks, strict=True):
                done += len(rows)
                if progress is not None:
                    progress(done, total)
        finally:
            pool.shutdown(cancel_futures=True)
            decoder.close()


def _duplicated_sizes(splits: list[Split]) -> npt.NDArray[np.int64]:
    """The sizes, sorted, that more than one file has: only those can be equal."""
    sizes = np.concatenate([np.zeros(0, np.int64), *(split.images.sizes for split in splits)])
    found, counts = np.unique(sizes, return_counts=True)
    duplicated: npt.NDArray[np.int64] = found[counts > 1]
    return duplicated


def _chunks(images: Images) -> Iterator[npt.NDArray[np.int64]]:
    """Numbers of files that are present, a bounded part at a time."""
    rows = np.flatnonzero(images.states == State.UNSEEN)
    first, ends = 0, np.cumsum(images.sizes[rows])
    while first < len(rows):
        before = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, before + CHUNK_BYTES, "right"))
        stop = min(max(stop, first + 1), first + CHUNK)
        yield rows[first:stop]
        first = stop


def _look(
    split: Split, rows: npt.NDArray[np.int64], pool: ffi.Pool, duplicated: npt.NDArray[np.int64], read: Read
) -> None:
    images = split.images
    jpegs: dict[int, bytes] = {}
    for row in rows.tolist():
        if images.sizes[row] > MOST_BYTES:
            images.reasons[row] = f"not opened: it has {images.sizes[row]:,} bytes"
            continue
        data = read(split, row)
        if data is None:
            continue
        at = int(np.searchsorted(duplicated, len(data)))
        if at < len(duplicated) and duplicated[at] == len(data):
            digest = hashlib.sha256(data).digest()[:8]
            images.digests[row] = max(1, int.from_bytes(digest, "little"))
        if data.startswith(SIGNATURES[0][0]):
            jpegs[row] = data
        else:
            _by_pillow(images, row, data)
    if jpegs:
        _by_native(images, jpegs, pool)


def _by_native(images: Images, jpegs: dict[int, bytes], pool: ffi.Pool) -> None:
    statuses = _decode(pool, list(jpegs.values()), THOROUGH)
    for (row, data), status in zip(jpegs.items(), statuses, strict=True):
        if status["code"] == abi.OK:
            images.widths[row], images.heights[row] = status["width"], status["height"]
            images.states[row] = State.GOOD
            _set_kind(images, row, *_jpeg_kind(data))
            continue
        _by_pillow(images, row, data)
        if status["code"] == abi.CORRUPT and images.states[row] == State.GOOD:
            wrong = _decode(pool, [data], STRICT)["code"][0] == abi.CORRUPT
            images.states[row] = State.BROKEN if wrong else State.DOUBTFUL


def _decode(pool: ffi.Pool, files: list[bytes], decoder: str) -> npt.NDArray[np.void]:
    """[n] of `abi.STATUS`, from decoding whole images in the calling thread by one decoder.

    Each is resized to one pixel, to which every pixel contributes.
    """
    pixels = np.empty((len(files), 3), np.uint8)
    pipeline = ffi.Pipeline(
        [ffi.op("resize", (1, 1, BOX))],
        1,
        1,
        dtype=0,
        nhwc=False,
        table=None,
        keep=None,
        decoders=1 << ffi.decoder_names().index(decoder),
        max_pixels=0 if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS,
        pillow_vertical_first=True,
    )
    source, indices = ffi.Source.of_memory(files), np.arange(len(files))
    batch = pool.submit(pipeline, source, indices, seed=0, epoch=0, output=pixels.ctypes.data)
    while not batch.wait(WAIT_MS):
        pass
    return batch.statuses


def _by_pillow(images: Images, row: int, data: bytes) -> None:
    """What torchvision's loader would make of it."""
    if not data:
        images.states[row] = State.EMPTY
        return
    try:
        with Image.open(io.BytesIO(data)) as image:
            _set_kind(images, row, image.format or "", image.mode)
            images.widths[row], images.heights[row] = image.size
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


def _jpeg_kind(data: bytes) -> tuple[str, str]:
    """(format, mode) by the file's header: "JPEG", or "progressive JPEG"."""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            return "progressive JPEG" if image.info.get("progressive") else "JPEG", image.mode
    except Exception:  # Pillow raises anything; the native decoder took it all the same
        return "JPEG", ""


def looks_like(data: bytes) -> str:
    """What a file seems to be that is not an image."""
    head = data[:64].lstrip().lower()
    text = data[:64].isascii() and data[:64].decode("ascii").isprintable()
    rest = "nothing but zero bytes" if not data.strip(b"\0") else "text" if text else "unknown data"
    return next((what for start, what in LIKENESSES if head.startswith(start)), rest)
