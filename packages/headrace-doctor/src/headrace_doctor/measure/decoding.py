"""Reads and decodes every image of a split by Pillow, as torchvision's datasets do."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from headrace_doctor.machine import usable_cores
from headrace_doctor.measure.images import HEAD, Images, Progress, Split, State, image_format, looks_like
from headrace_doctor.measure.tree import refusal

CHUNK = 64  # images that a thread takes at a time
# Formats by the extensions that imply them, in lower case.
IMPLIED = {
    **dict.fromkeys((".jpg", ".jpeg"), "JPEG"),
    **dict.fromkeys((".ppm", ".pgm"), "PPM"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **{f".{name.lower()}": name for name in ("PNG", "BMP", "WEBP")},
}


def default_workers() -> int:
    """Number of threads to list and decode with: some will be reading."""
    return usable_cores() + 1


def decode_all(splits: list[Split], *, workers: int | None = None, progress: Progress | None = None) -> None:
    """Fills in what reading and decoding shows about the images of `splits`.

    A file that fails only gets its state; nothing is raised for it.

    Args:
        splits: as listed; images whose state is known are left as they are.
        workers: number of threads. Default: as of `default_workers`.
        progress: called with (images done, images in all), now and then. Default: not at all.
    """
    chunks = [(split, rows) for split in splits for rows in _chunks(split.images)]
    total = sum(len(rows) for _, rows in chunks)
    done = 0
    # Pillow warns of unusual files; states have what matters of it. Filters hold for the whole process, so
    # they are set before threads start.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pool = ThreadPoolExecutor(workers or default_workers())
        try:
            looks = pool.map(lambda chunk: _decode(*chunk), chunks)
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


def _decode(split: Split, rows: npt.NDArray[np.int64]) -> None:
    images = split.images
    for row in rows.tolist():
        path = os.path.join(split.path, images.names[row])
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.read()
        except OSError as error:
            images.states[row], images.reasons[row] = State.UNREADABLE, refusal(path, error)
            continue
        images.states[row], reason, format_ = _by_pillow(data)
        if reason:
            images.reasons[row] = reason
        implied = IMPLIED.get(os.path.splitext(path)[1].lower())
        if format_ and implied not in (None, format_):
            images.misnamed[row] = format_


def _by_pillow(data: bytes) -> tuple[State, str, str]:
    """(state, reason, format) of what torchvision's loader would make of a file."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            # Pillow opens JPEGs of phones that hold further images behind the first as MPO.
            format_ = "JPEG" if image.format == "MPO" else image.format or ""
            image.convert("RGB")
        return State.GOOD, "", format_
    except UnidentifiedImageError:
        known = image_format(data[:HEAD].ljust(HEAD, b"\xff"))
        if known:
            return State.CUT, f"ends within the header of a {known}", ""
        return (State.ALIEN if data else State.EMPTY), looks_like(data), ""
    except Image.DecompressionBombError as error:
        return State.HUGE, str(error), ""
    except Exception as error:  # Pillow raises anything for a bad file: SyntaxError, struct.error, …
        state = State.CUT if "truncated" in str(error).lower() else State.DAMAGED
        return state, f"{type(error).__name__}: {error}", ""
