"""Reads and decodes every image of folders and packs: damage, sizes, kinds and duplicates."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from headrace._arrow import pa, pc
from headrace._native import abi, ffi
from headrace.errors import PackError
from headrace.measure.listing import HEAD, picture_format
from headrace.measure.machine import usable_cores
from headrace.measure.pictures import Pictures, Split, State
from headrace.measure.tree import refusal
from headrace.packs.records import JPEG_START, PILLOW_ERRORS, Progress, in_order
from headrace.packs.stored import StoredPack
from headrace.sources.pack_index import FILE_NAME, PackIndex

# Returns the bytes of an image; None where it can't be read, which its state or reason then says.
Read = Callable[[Split, int], bytes | None]

# What a thread is given at a time, bounded in bytes too.
CHUNK = 64
CHUNK_BYTES = 16_000_000

# Larger files aren't read into memory.
MOST_BYTES = 1 << 30

# Native code wakes up so often while it waits, in milliseconds.
WAIT_MS = 1000

# So many zero bytes at the end of a file mean that its end never arrived: no encoder writes them.
ZEROS = 512

# Of PIL.Image.Resampling: the filter that looks at every pixel.
BOX = 4

# Only libjpeg's own way through a whole file notices what is too much or missing before its end; the other
# decoders take 40 % less time. It doesn't tell that from codes that don't exist: Headrace's, which stops at
# those, does.
THOROUGH, STRICT = "libjpeg-full", "headrace"


def read_file(split: Split, row: int) -> bytes | None:
    """The bytes of the image's file."""
    pictures = split.pictures
    path = os.path.join(split.path, pictures.name(row))
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.read()
    except OSError as error:
        pictures.states[row] = State.UNREADABLE
        pictures.reasons[row] = refusal(path, error)
        return None
    return data


def decode_all(
    splits: list[Split],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    read: Read = read_file,
) -> None:
    """Fills in what reading and decoding finds out about the images of `splits`.

    A file that fails only gets its state; nothing is raised for it.

    Args:
        workers: threads; None: one more than the cores that this process may use, as some will read.
        progress: called with (images done, images in all), now and then.
    """
    shared = _sizes_shared(splits)
    chunks = [(split, chunk) for split in splits for chunk in _chunks(split.pictures)]
    total, done = sum(len(chunk) for _, chunk in chunks), 0
    decoder = _Decoder()

    def look(item: tuple[Split, npt.NDArray[np.int64]]) -> None:
        _look(item[0], item[1], decoder, shared, read)

    # Pillow warns of odd files in its own words: what matters of them is in state and kind. Filters are
    # the whole process's, so they are set before threads begin.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with closing(in_order(look, chunks, workers or usable_cores() + 1)) as stream:
                for (_, chunk), _ in stream:
                    done += len(chunk)
                    if progress is not None:
                        progress(done, total)
        finally:
            decoder.close()


class _Decoder:
    """Decodes JPEGs in the thread that asks."""

    def __init__(self) -> None:
        self._pool = ffi.Pool(0, 0)

    def decode(self, files: list[bytes], decoder: str) -> npt.NDArray[np.void]:
        """[n] of `abi.STATUS`: what became of each."""
        pixels = np.empty((len(files), 3), np.uint8)
        batch = self._pool.submit(
            _pipeline(decoder),
            ffi.Source.of_memory(files),
            np.arange(len(files)),
            seed=0,
            epoch=0,
            output=pixels.ctypes.data,
        )
        while not batch.wait(WAIT_MS):
            pass
        return batch.statuses

    def close(self) -> None:
        self._pool.close()


def _pipeline(decoder: str) -> ffi.Pipeline:
    """Decodes a whole image by one decoder, and resizes it to one pixel, which every pixel contributes to."""
    return ffi.Pipeline(
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


def _sizes_shared(splits: list[Split]) -> npt.NDArray[np.int64]:
    """The sizes, in order, that more than one file has: only those can be equal."""
    sizes = np.concatenate([np.zeros(0, np.int64), *(split.pictures.sizes for split in splits)])
    found, counts = np.unique(sizes, return_counts=True)
    shared: npt.NDArray[np.int64] = found[counts > 1]
    return shared


def _chunks(pictures: Pictures) -> Iterator[npt.NDArray[np.int64]]:
    """Numbers of files that are there, a bounded part at a time."""
    rows = np.flatnonzero(pictures.states == State.UNSEEN)
    first, ends = 0, np.cumsum(pictures.sizes[rows])
    while first < len(rows):
        before = int(ends[first - 1]) if first else 0
        stop = int(np.searchsorted(ends, before + CHUNK_BYTES, "right"))
        stop = min(max(stop, first + 1), first + CHUNK)
        yield rows[first:stop]
        first = stop


def _look(
    split: Split,
    rows: npt.NDArray[np.int64],
    decoder: _Decoder,
    shared: npt.NDArray[np.int64],
    read: Read,
) -> None:
    pictures = split.pictures
    jpegs: dict[int, bytes] = {}
    for row in rows.tolist():
        if pictures.sizes[row] > MOST_BYTES:
            pictures.reasons[row] = f"not opened: it has {pictures.sizes[row]:,} bytes"
            continue
        data = read(split, row)
        if data is None:
            continue
        at = int(np.searchsorted(shared, len(data)))
        if at < len(shared) and shared[at] == len(data):
            digest = hashlib.sha256(data).digest()[:8]
            pictures.digests[row] = max(1, int.from_bytes(digest, "little"))
        if data.startswith(JPEG_START):
            jpegs[row] = data
        else:
            _by_pillow(pictures, row, data)
    if jpegs:
        _by_native(pictures, jpegs, decoder)


def _by_native(pictures: Pictures, jpegs: dict[int, bytes], decoder: _Decoder) -> None:
    statuses = decoder.decode(list(jpegs.values()), THOROUGH)
    for (row, data), status in zip(jpegs.items(), statuses, strict=True):
        if status["code"] == abi.OK:
            pictures.widths[row], pictures.heights[row] = status["width"], status["height"]
            pictures.states[row] = State.GOOD
            _put_kind(pictures, row, *_jpeg_kind(data))
            continue
        _by_pillow(pictures, row, data)
        if status["code"] == abi.CORRUPT and pictures.states[row] == State.GOOD:
            wrong = decoder.decode([data], STRICT)["code"][0] == abi.CORRUPT
            pictures.states[row] = State.BROKEN if wrong else State.DOUBTFUL


def _by_pillow(pictures: Pictures, row: int, data: bytes) -> None:
    """What torchvision's loader would make of it."""
    if not data:
        pictures.states[row] = State.EMPTY
        return
    try:
        with Image.open(io.BytesIO(data)) as image:
            _put_kind(pictures, row, image.format or "", image.mode)
            pictures.widths[row], pictures.heights[row] = image.size
            image.convert("RGB")
        pictures.states[row] = State.GOOD
    except UnidentifiedImageError:
        known = picture_format(data[:HEAD].ljust(HEAD, b"\xff"))
        pictures.states[row] = State.CUT if known else State.ALIEN
        pictures.reasons[row] = f"ends within the header of a {known}" if known else looks_like(data)
    except Image.DecompressionBombError as error:
        pictures.states[row], pictures.reasons[row] = State.HUGE, str(error)
    except Exception as error:  # Pillow raises anything for a bad file: SyntaxError, struct.error, …
        cut = "truncated" in str(error).lower()
        pictures.states[row] = State.CUT if cut else State.DAMAGED
        zeros = len(data) - len(data.rstrip(b"\0"))
        at_end = f"; its last {zeros:,} of {len(data):,} bytes are zeros" if zeros >= ZEROS else ""
        pictures.reasons[row] = f"{type(error).__name__}: {error}{at_end}"


_kinds_lock = threading.Lock()


def _put_kind(pictures: Pictures, row: int, format_: str, mode: str) -> None:
    kind = (format_, mode)
    with _kinds_lock:
        if kind not in pictures.kind_names:
            pictures.kind_names.append(kind)
    pictures.kinds[row] = pictures.kind_names.index(kind)


def _jpeg_kind(data: bytes) -> tuple[str, str]:
    """(format, mode) by the file's header: "JPEG", or "progressive JPEG"."""
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            return "progressive JPEG" if image.info.get("progressive") else "JPEG", image.mode
    except PILLOW_ERRORS:
        return "JPEG", ""


# Beginnings of what is found where an image should be, in lower case.
LIKENESSES = (
    (b"version https://git-lfs", "a Git LFS pointer: run git lfs pull"),
    (b"<!doctype html", "an HTML page, as servers send for what they don't give"),
    (b"<html", "an HTML page, as servers send for what they don't give"),
    (b"<?xml", "XML"),
    (b"<svg", "SVG"),
    (b"\x1f\x8b", "gzip"),
    (b"pk\x03\x04", "a zip file"),
    (b"%pdf", "PDF"),
    (b"bplist", "a property list of macOS"),
    (b"\0\x05\x16\x07", "a resource fork of macOS, as its tar and zip leave beside each file"),
)


def looks_like(data: bytes) -> str:
    """What a file seems to be that is not an image."""
    head = data[:64].lstrip().lower()
    for start, what in LIKENESSES:
        if head.startswith(start):
            return what
    if not data.strip(b"\0"):
        return "nothing but zero bytes"
    return "text" if data[:64].isascii() and data[:64].decode("ascii").isprintable() else "unknown data"


def open_pack(path: str) -> tuple[PackIndex, Split]:
    """The index of the pack in the folder `path`, and its images as an unread split.

    Raises:
        PackError: it is missing or damaged.
    """
    index = PackIndex(Path(path) / FILE_NAME)
    try:
        index.batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise PackError(
            f"{index.path} is damaged: {error}. Make it again by headrace index or pack."
        ) from None
    names = pc.binary_join_element_wise(
        index.batch["key"], index.batch["extension"], pa.scalar(".", pa.large_string())
    )
    pictures = Pictures(
        names.cast(pa.large_binary()),
        index.numbers("label").astype(np.int32),
        index.numbers("size").astype(np.int64),
        np.full(len(index), State.UNSEEN, np.uint8),
    )
    pictures.widths = index.numbers("width").astype(np.uint32)
    pictures.heights = index.numbers("height").astype(np.uint32)
    labels = pictures.labels
    classes = index.about.classes or tuple(str(label) for label in range(int(labels.max(initial=-1)) + 1))
    return index, Split("", path, classes, pictures)


def decode_pack(
    index: PackIndex,
    split: Split,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Fills in what decoding finds; see `decode_all`. A record that can't be read stays unseen."""
    pack = StoredPack(index)

    def read(split: Split, row: int) -> bytes | None:
        try:
            return pack.image(row)
        except (
            OSError,
            IndexError,
            ValueError,
            OverflowError,
            MemoryError,
        ) as error:  # reported by verify too
            split.pictures.reasons[row] = str(error)
            return None

    decode_all([split], workers=workers, progress=progress, read=read)
