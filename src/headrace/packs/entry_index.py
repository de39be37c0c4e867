"""Writes an image folder's index of entry points: in parallel, resumable, only for files that changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace._native import ffi
from headrace.errors import NativeError
from headrace.measure.machine import usable_cores
from headrace.sources.entry_index import SCHEMA, EntryIndex, index_places
from headrace.sources.folder import JPEG_EXTENSIONS
from headrace.sources.reading import named, open_regular

# Files per part: what an interruption can cost, a few seconds of work.
PART = 4096

# MCUs from one entry point to the next; 0: the fewest, 4 or more, that keep a file's index within 2 % of it.
DEFAULT_EVERY = 0

Row = tuple[bytes, int, int, bytes]


@dataclass(frozen=True)
class IndexSummary:
    """What was done.

    Attributes:
        path: of the index.
        files: JPEG files by extension.
        indexed: that have entry points.
        reused: taken over from an earlier run, because size and time of modification are the same.
        data_bytes, index_bytes: of the files, and of the index.
    """

    path: Path
    files: int
    indexed: int
    reused: int
    data_bytes: int
    index_bytes: int


def build_entry_index(
    root: str | os.PathLike[str],
    *,
    workers: int | None = None,
    every: int = DEFAULT_EVERY,
    progress: Callable[[int, int], None] | None = None,
) -> IndexSummary:
    """Makes or brings up to date the index of all JPEG files below `root`.

    Args:
        root: a folder, as given to `ImageFolder`.
        workers: threads; None: the cores that this process may use.
        every: MCUs between entry points; fewer make crops cheaper and the index larger. 0: as few as keep a
            file's entry points within 2 % of its size, 4 at least.
        progress: called with (files done, files in all) after each part.

    Raises:
        NotADirectoryError: `root` isn't a folder.
        OSError: neither the folder nor the user's cache can be written to.
    """
    if not os.path.isdir(root):
        raise NotADirectoryError(f"{os.fspath(root)} isn't a folder; give the one that ImageFolder gets.")
    files = sorted(_jpeg_files(Path(root)))
    target = _writable_place(root)
    parts = target.with_suffix(".parts")
    parts.mkdir(exist_ok=True)
    known = {row[0]: row for row in _known_rows(root, parts)}
    counts = _Counts()
    with ThreadPoolExecutor(workers or usable_cores()) as pool:
        for start in range(0, len(files), PART):
            names = files[start : start + PART]
            rows = list(pool.map(lambda name: _row(os.fsencode(root), name, known, every), names))
            _write(parts / f"{start // PART:08}.arrow", [_batch(row for row in rows if row is not None)])
            counts.add(rows, known)
            if progress is not None:
                progress(start + len(names), len(files))
    written = [parts / f"{start // PART:08}.arrow" for start in range(0, len(files), PART)]
    _write(target, (_only_batch(path) for path in written))
    shutil.rmtree(parts)
    return IndexSummary(
        target, len(files), counts.indexed, counts.reused, counts.data_bytes, target.stat().st_size
    )


@dataclass
class _Counts:
    indexed: int = 0
    reused: int = 0
    data_bytes: int = 0

    def add(self, rows: list[Row | None], known: dict[bytes, Row]) -> None:
        for row in rows:
            if row is not None:
                self.indexed += bool(row[3])
                self.reused += known.get(row[0]) is row
                self.data_bytes += row[1]


def _jpeg_files(root: Path) -> Iterator[bytes]:
    base = os.fsencode(root)
    extensions = tuple(extension.encode() for extension in JPEG_EXTENSIONS)
    for folder, _, names in os.walk(base, followlinks=True):
        for name in names:
            if name.lower().endswith(extensions):
                yield os.path.relpath(os.path.join(folder, name), base)


def _writable_place(root: str | os.PathLike[str]) -> Path:
    inside, cache = index_places(root)
    if os.access(inside.parent, os.W_OK):
        return inside
    cache.parent.mkdir(parents=True, exist_ok=True)
    return cache


def _known_rows(root: str | os.PathLike[str], parts: Path) -> Iterator[Row]:
    """Of the last index, and then of the parts of a run that was interrupted."""
    for path in (*index_places(root), *sorted(parts.glob("*.arrow"))):
        if path.is_file():
            try:
                yield from EntryIndex(path).rows()
            except (OSError, pa.ArrowException, ValueError):
                continue  # damaged or of another format: made anew


def _row(root: bytes, name: bytes, known: dict[bytes, Row], every: int) -> Row | None:
    """The row of one file; None where it is gone or can't be read."""
    path = os.path.join(root, name)
    try:
        info = os.stat(path)
        old = known.get(name)
        if old is not None and old[1:3] == (info.st_size, info.st_mtime_ns):
            return old
        with open_regular(path) as file:
            data = file.read()
    except OSError:
        return None
    try:
        entries = ffi.jpeg_entry_points(data, every)
    except NativeError:
        entries = b""  # not a JPEG of the kind that has any: decoded as a whole
    return name, len(data), info.st_mtime_ns, entries


def _batch(rows: Iterable[Row]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


def _only_batch(path: Path) -> pa.RecordBatch:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).get_batch(0)


def _write(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    """Whole or not at all: under another name, to the disk, then renamed."""
    partial = path.with_name(path.name + ".partial")
    with named(partial), open(partial, "wb") as file:
        with pa.ipc.new_file(file, SCHEMA) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
