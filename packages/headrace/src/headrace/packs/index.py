"""Indexes of data that stays as it is: image folders, and tar shards that others made."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headrace._arrow import pa
from headrace._files import make_cache, whole_file
from headrace._machine import usable_cores
from headrace._native import ffi
from headrace.errors import PackError
from headrace.packs.places import DiskFolder
from headrace.packs.rows import Packed, Part, Rows, examine, naming, part_path, write_index
from headrace.packs.samples import ProgressCallback, Sample, in_order
from headrace.sources.entry_index import READ_ERRORS, SCHEMA, EntryIndex
from headrace.sources.folder import index_places
from headrace.sources.pack import lmdb_refused, read_extent
from headrace.sources.pack_index import FILE_NAME, LEFT_OUT, PackAbout, PackIndex, Shard, rows_batch
from headrace.sources.reading import named, open_regular
from headrace.sources.source import EXTENSIONS
from headrace.sources.tar_index import (
    IMAGE_EXTENSIONS,
    TarSample,
    image_of,
    is_lmdb,
    kept_index,
    label_of,
    read_samples,
    resolved_shards,
    state_of,
)

# Files per part: what an interruption can cost, a few seconds of work.
PART = 4096

# MCUs from one entry point to the next; 0: the fewest, 4 or more, that keep a file's index within 2 % of it.
DEFAULT_EVERY = 0

Row = tuple[bytes, int, int, bytes]


@dataclass(frozen=True)
class IndexSummary:
    """The result of indexing.

    Attributes:
        path: the file of the index.
        samples: the number of JPEG files (by extension), or of samples that have an image.
        indexed: the number of them that have entry points.
        data_bytes, index_bytes: the size of the files or shards, and of the index, in bytes.
        reused: the number of files whose entry points are those of an earlier run, as their size and time of
            modification are the same; 0 for shards.
    """

    path: Path
    samples: int
    indexed: int
    data_bytes: int
    index_bytes: int
    reused: int = 0


def build_entry_index(
    root: str | os.PathLike[str],
    *,
    workers: int | None = None,
    every: int = DEFAULT_EVERY,
    progress: ProgressCallback | None = None,
) -> IndexSummary:
    """Makes or brings up to date the index of all JPEG files below `root`, a folder as `ImageFolder` gets it.

    `every` is the number of MCUs from one entry point to the next: fewer make crops cheaper and the index
    larger. Calls `progress` with (files done, files in all) after each part. Raises OSError if `root` isn't a
    folder, or neither it nor the user's cache can be written to.
    """
    if not os.path.isdir(root):
        raise NotADirectoryError(f"{os.fspath(root)} isn't a folder; give the one that ImageFolder gets.")
    walk = DiskFolder(root).walk()
    paths = (os.path.normpath(f"{place}/{name}") for place, names in walk for name in names)
    files = sorted(os.fsencode(path) for path in paths if path.lower().endswith(EXTENSIONS["JPEG"]))
    target = _place(*index_places(root))
    parts = target.with_suffix(".parts")
    parts.mkdir(exist_ok=True)
    known = {row[0]: row for row in _known_rows(root, parts)}
    indexed = reused = data_bytes = 0
    written = [parts / f"{number:08}.arrow" for number in range(-(-len(files) // PART))]
    with ThreadPoolExecutor(workers or usable_cores()) as pool:
        for number, path in enumerate(written):
            names = files[number * PART : (number + 1) * PART]
            all_rows = pool.map(lambda name: _row(os.fsencode(root), name, known, every), names)
            rows = [row for row in all_rows if row is not None]
            _write(path, [rows_batch(rows, SCHEMA)])
            indexed += sum(bool(row[3]) for row in rows)
            reused += sum(known.get(row[0]) is row for row in rows)
            data_bytes += sum(row[1] for row in rows)
            if progress is not None:
                progress(number * PART + len(names), len(files))
    _write(target, (_only_batch(path) for path in written))
    shutil.rmtree(parts)
    return IndexSummary(target, len(files), indexed, data_bytes, target.stat().st_size, reused)


def _place(inside: Path | None, cache: Path) -> Path:
    """The first of two places that can be written to. Raises CacheError if neither can."""
    if inside is not None and os.access(inside.parent, os.W_OK):
        return inside
    return make_cache(cache.parent) / cache.name


def _known_rows(root: str | os.PathLike[str], parts: Path) -> Iterator[Row]:
    """Yields the rows of the last index, and then those of a run that was interrupted."""
    for path in (*index_places(root), *sorted(parts.glob("*.arrow"))):
        if path.is_file():
            try:
                yield from EntryIndex(path).rows()
            except READ_ERRORS:
                continue  # damaged or of another format: made again


def _row(root: bytes, name: bytes, known: dict[bytes, Row], every: int) -> Row | None:
    """The row of one file, or None if it is gone or can't be read."""
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
    return name, len(data), info.st_mtime_ns, ffi.index_images([data], every)[0].entries


def _only_batch(path: Path) -> pa.RecordBatch:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).get_batch(0)


def _write(path: Path, batches: Iterable[pa.RecordBatch]) -> None:
    with named(path), whole_file(path) as file, pa.ipc.new_file(file, SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)


def build_shard_index(
    path: str | os.PathLike[str],
    *,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> IndexSummary:
    """Makes the index of WebDataset shards, a folder of .tar files or one of them, for
    `headrace.PackedDataset`. They stay as they are.

    It becomes ``index.arrow`` in the folder of the shards; if that can't be written, or for a single file, it
    is kept in the user's cache. Interrupted, the same call continues after the last finished shard. Raises
    PackError if a shard can't be read, no sample has an image, or the path is that of a pack with an index of
    its own, or of an LMDB.
    """
    shards = resolved_shards(path)
    if is_lmdb(shards[0]):
        raise lmdb_refused(shards[0])
    inside = Path(path) / FILE_NAME
    target = _place(inside if Path(path).is_dir() else None, kept_index(shards))
    if target == inside and inside.is_file() and PackIndex(inside).about.made.get("by") != "headrace index":
        raise PackError(f"{inside} was made by headrace pack and has all that an index can have.")
    work = target.with_name(target.name + ".partial")
    with naming(target):
        part_path(work, 0).parent.mkdir(parents=True, exist_ok=True)
    parts = []
    for number, shard in enumerate(shards):
        parts.append(_part(part_path(work, number), number, shard, workers or usable_cores()))
        if progress is not None:
            progress(number + 1, len(shards))
    if not any(part.batch.num_rows for part in parts):
        raise PackError(f"{path}: no sample has an image ({', '.join(IMAGE_EXTENSIONS)}).")
    # Relative if both lie in one folder, so that they can be moved together.
    folder = target.parent.resolve()
    names = [shard.name if shard.parent.resolve() == folder else str(shard.resolve()) for shard in shards]
    files = tuple(Shard(name, part.shard_bytes) for name, part in zip(names, parts, strict=True))
    left_out = sum(len(part.notes) for part in parts)
    made = {"by": "headrace index", "state": state_of(shards), LEFT_OUT: left_out}
    os.replace(write_index(work, parts, PackAbout("tar", files, made=made)), target)
    shutil.rmtree(work)
    index = PackIndex(target)
    _, begins, ends = index.entries()
    data_bytes = sum(file.size for file in files)
    return IndexSummary(target, len(index), int((ends > begins).sum()), data_bytes, index.nbytes)


def _part(path: Path, number: int, shard: Path, workers: int) -> Part:
    """The rows of one shard, written to `path` unless an interrupted run did that."""
    ((size, mtime),) = state_of([shard])
    origin = f"{shard} {size} {mtime}"
    done = Part.read(path)
    if done is not None and done.origin == origin:
        return done
    rows = Rows(number)
    for sample, packed in in_order(lambda sample: _packed(shard, sample), read_samples(shard), workers):
        if packed is not None:
            rows.add(*packed)
        else:
            rows.note(sample.key, "has no image")
    return rows.write(path, size, origin)


def _packed(shard: Path, sample: TarSample) -> tuple[Packed, int] | None:
    image = image_of(sample)
    if image is None:
        return None
    data = read_extent(shard, sample.offset, sample.size)
    begin = image.offset - sample.offset
    content = data[begin : begin + image.size]
    read = Sample(sample.key, image.extension, content, label_of(sample, shard))
    return Packed(read, (data,), begin, examine([content])[0]), sample.offset
