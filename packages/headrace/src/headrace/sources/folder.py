"""Image files and labels by index, in three flat arrays: what an ImageFolder's list of tuples holds."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from headrace._files import cache_folder
from headrace._native import ffi
from headrace.errors import ConfigError
from headrace.records import EntryPoints
from headrace.sources.reading import open_regular
from headrace.sources.source import Indices, Source

F = TypeVar("F", bound="ImageSource")

# Entry points of an image folder's files, made by `headrace index`.
ENTRIES_FILE = ".headrace-entry-points.arrow"

# Entries taken from the user's list at a time: bounds the transient Python objects to a few megabytes.
CHUNK = 16384


@dataclass(frozen=True, eq=False, repr=False)
class ImageSource(Source):
    """Image files and their labels.

    Attributes:
        paths: uint8; every path as the file system's bytes (`os.fsencode`), each followed by a zero byte.
        offsets: uint64 [n + 1]; path i starts at offsets[i] and its zero byte is at offsets[i + 1] - 1.
        labels: int64 [n].
        entries: entry points of the files, or None if there are none.
    """

    paths: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.uint64]
    labels: npt.NDArray[np.int64]
    entries: EntryPoints | None = None

    @classmethod
    def from_samples(cls, samples: Sequence[tuple[Any, Any]]) -> ImageSource:
        """Makes a source of (path, label) pairs, a chunk at a time. Raises ValueError if a path isn't one or
        holds a zero byte, or a label isn't an int of 64 bits."""
        n = len(samples)
        buffer = bytearray()  # grows in place: no second copy of all paths ever exists
        ends = np.empty(n, np.uint64)
        labels = np.empty(n, np.int64)
        for start in range(0, n, CHUNK):
            part = samples[start : start + CHUNK]
            # Not zip(*part): an iterator per entry would set the garbage collector off on all of the tuples.
            paths, targets = [path for path, _ in part], [target for _, target in part]
            stop = start + len(part)
            labels[start:stop] = _as_labels(targets, start)
            encoded = _encode(paths)
            ends[start:stop] = _ends(encoded, len(paths), start) + np.uint64(len(buffer))
            buffer += encoded
        offsets = np.concatenate((np.zeros(1, np.uint64), ends))
        return cls(np.frombuffer(buffer, np.uint8), offsets, labels)

    def path(self, i: int) -> str:
        """The file of sample `i`, where negative ones count from the end; bytes of its name that aren't text
        come as surrogates. Raises IndexError."""
        i = range(len(self))[i]
        start, stop = int(self.offsets[i]), int(self.offsets[i + 1])
        return os.fsdecode(self.paths[start : stop - 1].tobytes())

    def open(self, i: int) -> BinaryIO:
        """The file of sample `i`, for reading; raises OSError as `open_regular` does."""
        return open_regular(self.path(i))

    def native(self) -> ffi.Source | None:
        return ffi.Source.of_paths(self.paths, self.offsets, self.entries)

    def take(self: F, indices: Indices) -> F:
        """See `Source`; without entry points."""
        n = len(self)
        order = np.asarray(indices, dtype=np.int64).reshape(-1)
        bad = (order < -n) | (order >= n)
        if bad.any():
            raise IndexError(f"index {int(order[bad][0])} is out of range for {n} samples")
        starts = self.offsets[:-1][order].astype(np.int64)
        lengths = self.offsets[1:][order].astype(np.int64) - starts
        bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        paths = np.empty(bounds[-1], np.uint8)
        for first in range(0, len(order), CHUNK):
            part = slice(first, first + CHUNK)
            begin, end = bounds[first], bounds[min(first + CHUNK, len(order))]
            shifts = np.repeat(starts[part] - bounds[:-1][part], lengths[part])
            paths[begin:end] = self.paths[np.arange(begin, end) + shifts]
        offsets = bounds.astype(np.uint64)
        return replace(self, paths=paths, offsets=offsets, labels=self.labels[order], entries=None)

    def with_entries(self: F, root: str | None) -> tuple[F, str]:
        """See `Source`: by the index that `headrace index` made of `root`."""
        entries, remark = (None, "") if root is None else find_entry_points(root, self)
        return replace(self, entries=entries), remark

    def digest(self) -> str:
        paths = self.paths.tobytes().split(b"\0")[:-1]
        # Character by character is enough: the prefix is cut back to whole folders below.
        root: bytes = os.path.commonprefix([min(paths), max(paths)]) if paths else b""  # type: ignore[assignment]  # noqa: RUF071
        begin = root.rfind(b"/") + 1
        digest = hashlib.blake2b(self.labels.tobytes(), digest_size=8)
        digest.update(b"\0".join(path[begin:] for path in paths))
        return digest.hexdigest()

    def count_extensions(self, extensions: Sequence[str]) -> int:
        total = 0
        for start in range(0, len(self), CHUNK):
            bounds = self.offsets[start : start + CHUNK + 1].astype(np.int64)
            total += sum(_count_suffix(self.paths, bounds, ext.lower().encode("ascii")) for ext in extensions)
        return total


def concatenate(sources: Sequence[ImageSource]) -> ImageSource:
    """The samples of all `sources`, at least one, one source after another."""
    paths = np.concatenate([source.paths for source in sources])
    before = np.cumsum([0, *(len(source.paths) for source in sources)], dtype=np.uint64)
    starts = [source.offsets[:-1] + start for source, start in zip(sources, before, strict=False)]
    labels = np.concatenate([source.labels for source in sources])
    return ImageSource(paths, np.concatenate([*starts, before[-1:]]), labels)


def index_places(root: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Returns the places that entry points of the folder `root` may have: in it, or in the user's cache."""
    resolved = Path(root).resolve()
    digest = hashlib.sha256(os.fsencode(resolved)).hexdigest()[:32]
    return resolved / ENTRIES_FILE, cache_folder() / "entry-points" / f"{digest}.arrow"


def find_entry_points(root: str | os.PathLike[str], source: ImageSource) -> tuple[EntryPoints | None, str]:
    """The entry points of the files of `source`, all below `root`, and a note on them for the plan; None and
    an empty note if there is no index, or None and the reason if it can't be read."""
    path = next((place for place in index_places(root) if place.is_file()), None)
    if path is None:
        return None, ""
    try:
        from headrace.sources.entry_index import READ_ERRORS, EntryIndex
    except ConfigError as error:
        return None, f"entry points of {path} are ignored: {error}"
    try:
        entries = EntryIndex(path).match(os.fsencode(os.fspath(root)), source.paths, source.offsets)
    except READ_ERRORS as error:
        return None, f"entry points of {path} are ignored: {error}"
    return entries, f"entry points for {entries.indexed} of {len(source)} files"


def joined_paths(paths: Sequence[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
    """`paths` and `offsets` of `ImageSource`, of a list that is short enough for Python."""
    ends = np.cumsum([len(path) + 1 for path in paths], dtype=np.uint64)
    text = np.frombuffer(b"".join(path + b"\0" for path in paths), np.uint8)
    return text, np.concatenate((np.zeros(1, np.uint64), ends))


def _encode(paths: Sequence[Any]) -> bytes:
    # One call for the whole chunk when all are str: encoding them one by one would take a second per million.
    if set(map(type, paths)) <= {str}:
        joined = "\0".join(paths).encode(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())
        return joined + b"\0"
    try:
        return b"".join(os.fsencode(path) + b"\0" for path in paths)
    except TypeError as error:
        raise ValueError(f"a path isn't a str, bytes or os.PathLike: {error}") from None


def _ends(encoded: bytes, count: int, start: int) -> npt.NDArray[np.uint64]:
    ends = np.flatnonzero(np.frombuffer(encoded, np.uint8) == 0)
    if len(ends) != count:
        raise ValueError(f"a path among samples {start} to {start + count - 1} holds a zero byte")
    after: npt.NDArray[np.uint64] = ends.astype(np.uint64) + np.uint64(1)
    return after


def _as_labels(targets: Sequence[Any], start: int) -> npt.NDArray[np.int64]:
    # Only int itself: a bool, float or numpy scalar collates to another dtype than int64.
    if not set(map(type, targets)) <= {int}:
        i, wrong = next((i, t) for i, t in enumerate(targets) if type(t) is not int)
        raise ValueError(f"the target of sample {start + i} is {type(wrong).__name__}, not int")
    try:
        return np.array(targets, dtype=np.int64)
    except OverflowError:
        raise ValueError("a target doesn't fit in 64 bits") from None


def _count_suffix(paths: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64], suffix: bytes) -> int:
    ends = bounds[1:] - 1
    match = ends - bounds[:-1] >= len(suffix)
    for back, byte in enumerate(reversed(suffix), start=1):
        level = paths[np.maximum(ends - back, 0)]
        match &= (level == byte) | (level == bytes([byte]).upper()[0])
    return int(match.sum())
