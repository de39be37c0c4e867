"""Indexes tar shards and LMDBs that others made: in parallel, and resumable after each shard."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import PackError
from headrace.measure.machine import usable_cores
from headrace.packs.assemble import write_index
from headrace.packs.files import naming
from headrace.packs.lmdb_index import write_lmdb_index
from headrace.packs.ordered import in_order
from headrace.packs.records import Sample
from headrace.packs.rows import Facts, Packed, Part, Rows, part_path
from headrace.sources.pack import read_extent
from headrace.sources.pack_index import FILE_NAME, PackAbout, PackIndex, Shard
from headrace.sources.tar_index import (
    IMAGE_EXTENSIONS,
    LEFT_OUT,
    image_of,
    is_lmdb,
    kept_index,
    label_of,
    resolved_shards,
    state_of,
)
from headrace.sources.tar_samples import TarSample, read_samples


@dataclass(frozen=True)
class ShardIndexSummary:
    """What was done.

    Attributes:
        path: of the index.
        shards: tar files.
        samples: that have an image.
        indexed: of them, that have entry points.
        data_bytes, index_bytes: of the shards, and of the index.
    """

    path: Path
    shards: int
    samples: int
    indexed: int
    data_bytes: int
    index_bytes: int


def build_shard_index(
    path: str | os.PathLike[str],
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ShardIndexSummary:
    """Makes the index of WebDataset shards or an LMDB, for `headrace.PackedDataset`. They stay as they are.

    It becomes ``index.arrow`` beside the shards of a folder; where that can't be written, or for a single
    file, it is kept in the user's cache. Interrupted, the same call goes on after the last finished shard.

    Args:
        path: a folder of .tar files, or one of them; the folder or the file of an LMDB of msgpack (image
            bytes, label).
        workers: threads; None: the cores that this process may use.
        progress: called with (done, all): shards, or an LMDB's samples.

    Raises:
        PackError: a shard can't be read, no sample has an image, or the folder is a pack with an index of its
            own.
    """
    shards = resolved_shards(path)
    target = _target(Path(path), shards)
    if is_lmdb(shards[0]):
        write_lmdb_index(shards[0], target, workers or usable_cores(), progress)
        return _summary(target)
    work = target.with_name(target.name + ".partial")
    with naming(target):
        part_path(work, 0).parent.mkdir(parents=True, exist_ok=True)
    for number, shard in enumerate(shards):
        _finish_shard(work, number, shard, workers or usable_cores())
        if progress is not None:
            progress(number + 1, len(shards))
    parts = [part for number in range(len(shards)) if (part := Part.read(part_path(work, number)))]
    about = PackAbout(
        "tar",
        tuple(
            Shard(_name(shard, target), part.shard_bytes) for shard, part in zip(shards, parts, strict=True)
        ),
        made={
            "by": "headrace index",
            "state": state_of(shards),
            LEFT_OUT: sum(len(part.notes) for part in parts),
        },
    )
    if not any(part.batch.num_rows for part in parts):
        raise PackError(f"{path}: no sample has an image ({', '.join(IMAGE_EXTENSIONS)}).")
    os.replace(write_index(work, parts, about, None), target)
    shutil.rmtree(work)
    return _summary(target)


def _target(path: Path, shards: Sequence[Path]) -> Path:
    beside = path / FILE_NAME
    if not path.is_dir() or not os.access(path, os.W_OK):
        kept = kept_index(shards)
        kept.parent.mkdir(parents=True, exist_ok=True)
        return kept
    if beside.is_file() and PackIndex(beside).about.made.get("by") != "headrace index":
        raise PackError(f"{beside} was made by headrace pack and has all that an index can have.")
    return beside


def _name(shard: Path, target: Path) -> str:
    """As the index says it: relative where both lie in one folder, so that they can be moved together."""
    return shard.name if shard.parent == target.parent.resolve() else str(shard)


def _finish_shard(work: Path, number: int, shard: Path, workers: int) -> None:
    """Writes the rows of one shard, unless an interrupted run did."""
    ((size, mtime),) = state_of([shard])
    origin = f"{shard} {size} {mtime}"
    done = Part.read(part_path(work, number))
    if done is not None and done.origin == origin:
        return
    rows = Rows(number)
    for sample, packed in in_order(lambda sample: _packed(shard, sample), read_samples(shard), workers):
        if packed is not None:
            rows.add(*packed)
        else:
            rows.note(sample.key, "has no image")
    rows.write(part_path(work, number), size, origin)


def _packed(shard: Path, sample: TarSample) -> tuple[Packed, int] | None:
    image = image_of(sample)
    if image is None:
        return None
    data = read_extent(shard, sample.offset, sample.size)
    begin = image.offset - sample.offset
    content = data[begin : begin + image.size]
    found = Sample(sample.key, image.extension, content, label_of(sample, shard))
    return Packed((data,), begin, found, Facts.of(content), None), sample.offset


def _summary(target: Path) -> ShardIndexSummary:
    index = PackIndex(target)
    _, begins, ends = index.entries()
    return ShardIndexSummary(
        path=target,
        shards=len(index.about.shards),
        samples=len(index),
        indexed=int((ends > begins).sum()),
        data_bytes=sum(shard.size for shard in index.about.shards),
        index_bytes=target.stat().st_size,
    )
