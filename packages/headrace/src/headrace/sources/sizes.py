"""Widths and heights of image files, read from their headers."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from headrace._files import cache_folder, make_cache, whole_file
from headrace._native import ffi
from headrace.errors import NativeError
from headrace.sources.reading import read_part

# Bytes in which most files have their size; JPEGs with thumbnails or color profiles may have it later.
PREFIXES = (1 << 12, 1 << 16)
READERS = 16
CHUNK = 16  # files that a thread is asked for at once
LONG_SECONDS = 1e-4  # for one file; four times what it takes if it is in memory


def image_sizes(
    paths: Sequence[str | os.PathLike[str]],
    *,
    cache: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> npt.NDArray[np.int32]:
    """Reads the sizes of image files from their headers, without decoding them.

    Args:
        paths: of the files, in any format that Pillow opens.
        cache: whether the sizes are kept on disk, in $XDG_CACHE_HOME/headrace or ~/.cache/headrace, and taken
            from there if no path, length or time of modification has changed (the default).
        progress: called with the numbers of files that are done and of all files. None (the default) prints
            them to standard error if that is a terminal.

    Returns:
        Width and height of each image in pixels, as they are stored (an EXIF orientation is not applied):
        int32 [n, 2].

    Raises:
        OSError: a file can't be read, or isn't an image (`PIL.UnidentifiedImageError`).
    """
    names = [os.fspath(path) for path in paths]
    kept = cache_folder() / f"sizes-{_digest(names)}.npy" if cache else None
    if kept is not None and kept.is_file():
        sizes: npt.NDArray[np.int32] = np.load(kept, allow_pickle=False)
        return sizes
    report = progress or _print_progress
    sizes = np.empty((len(names), 2), np.int32)
    for number, size in enumerate(_each_size(names)):
        sizes[number] = size
        report(number + 1, len(names))
    if kept is not None:
        make_cache(kept.parent)
        with whole_file(kept, contended=True) as file:
            np.save(file, sizes)
    return sizes


def _each_size(paths: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The sizes in order. Threads read once the files are seen to take long: until then, as they come from
    memory, threads would only wait for each other."""
    chunks = (paths[first : first + CHUNK] for first in range(0, len(paths), CHUNK))
    for chunk in chunks:
        start = time.perf_counter()
        yield from map(_size, chunk)
        if time.perf_counter() - start > CHUNK * LONG_SECONDS:
            break
    with ThreadPoolExecutor(READERS) as readers:
        for sizes in readers.map(lambda chunk: [_size(path) for path in chunk], chunks):
            yield from sizes


def _size(path: str) -> tuple[int, int]:
    for length in PREFIXES:
        with suppress(NativeError):
            return ffi.image_size(read_part(path, size=length))
    with Image.open(path) as image:
        return image.size


def _digest(paths: Sequence[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        status = os.stat(path)
        digest.update(f"{Path(path).absolute()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _print_progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and (done == total or done % 1000 == 0):
        sys.stderr.write(f"\rimage sizes: {done:,} of {total:,}" + "\n" * (done == total))
