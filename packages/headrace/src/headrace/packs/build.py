"""Builds packs: shards, on threads of this process or by a cluster, and the index that makes them a pack."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from headrace._machine import usable_cores
from headrace._native import ffi
from headrace.errors import ConfigError, PackError
from headrace.packs.changes import Changes
from headrace.packs.destinations import Destination, differences, exists
from headrace.packs.inputs import open_input
from headrace.packs.lmdb import TRANSACTION_BYTES, LmdbShards
from headrace.packs.on_ray import build_on_ray
from headrace.packs.rows import Packed, examine, write_index
from headrace.packs.samples import Input, Layout, Listing, ProgressCallback, in_order, make_layout
from headrace.packs.tar import TarShards, shard_name
from headrace.sources.pack_index import FILE_NAME, PackAbout, PackIndex
from headrace.sources.stores.client import is_url

Shards = TarShards | LmdbShards
# Numbers of shards, and what each of them holds.
Work = Sequence[tuple[int, Listing]]

# Threads beyond the cores: at any time one waits for the disk, or for the interpreter's lock; of reads from
# a store (True), each waits for the network.
READERS_BEYOND = {False: 1, True: 33}

# What a thread is given at a time: enough that handing it over costs nothing, and bounded in bytes.
CHUNK = 16
CHUNK_BYTES = 4_000_000


@dataclass(frozen=True)
class PackSummary:
    """The result of packing.

    Attributes:
        path: the pack's folder, or its URL.
        samples, shards: the numbers of samples and of shards in the pack.
        reused: the number of shards that an earlier run had finished.
        source_bytes: the size of the source's images and other fields, in bytes.
        pack_bytes: the size of the shards and the index, in bytes.
        kept: (key, reason) of each image that was to be changed and is kept as it was.
        notes: remarks for the user.
        up_to_date: whether the pack was there already, so that nothing was written.
    """

    path: Path | str
    samples: int
    shards: int
    reused: int
    source_bytes: int
    pack_bytes: int
    kept: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    up_to_date: bool = False


def build(  # noqa: PLR0913
    src: Any,
    dest: str | os.PathLike[str],
    changes: Changes,
    *,
    format: str,
    workers: int | None,
    shard_size: int,
    shuffle: int | None,
    ray: str | None,
    storage_options: Mapping[str, Any] | None,
    progress: ProgressCallback | None,
) -> PackSummary:
    """Makes a pack, or finishes one; see `headrace.pack`."""
    destination = Destination(dest, storage_options)
    if format == "lmdb":
        shard_size = min(shard_size, TRANSACTION_BYTES)
        if ray is not None or destination.in_store:
            raise ConfigError("format='lmdb' is one file on a local disk: by ray or to a URL, pack as 'tar'.")
    if ray is not None and isinstance(src, (str, os.PathLike)) and not is_url(src):
        src = os.path.abspath(src)  # nodes work in folders of their own
    source = open_input(src, changes, storage_options)
    layout = make_layout(source.items(), shard_size, shuffle)
    made = {
        "headrace": ffi.build_info()["version"],
        "format": format,
        "source": source.kind,
        "records": layout.names_digest,
        "shard_size": shard_size,
        "shuffle": shuffle,
        **vars(changes),
    }
    index, reused = _up_to_date(destination, source, layout, made), layout.shards
    up_to_date = index is not None
    if index is None:
        with destination.workplace(made, layout) as folder:
            shards: Shards
            if format == "lmdb":
                shards = LmdbShards(folder, layout)
            else:
                shards = TarShards(folder, partial(destination.parts, folder, layout.shards))
            missing = [(i, layout.of(i)) for i, part in enumerate(shards.parts()) if part is None]
            reused -= len(missing)
            if not (folder / FILE_NAME).exists():
                report = _counting(progress, missing, len(layout.items))
                beyond = READERS_BEYOND[is_url(src)]
                if ray is not None:
                    threads = (workers or 1) + beyond
                    one = partial(_build_shard, source, changes, destination, threads, made["headrace"])
                    build_on_ray(one, missing, ray, workers or 1, report)
                else:
                    keep = partial(destination.keep, folder) if destination.in_store else None
                    threads = workers or usable_cores() + beyond
                    write_shards(source, changes, shards, missing, threads, report, keep)
                _write_index(folder, shards, source.classes, made)
            index = PackIndex(folder / FILE_NAME)
    return PackSummary(
        path=destination.path,
        samples=len(index),
        shards=layout.shards,
        reused=reused,
        source_bytes=layout.source_bytes,
        pack_bytes=sum(shard.size for shard in index.about.shards) + index.nbytes,
        kept=tuple((key, why) for key, why in index.about.made["kept"]),
        notes=tuple(source.notes()),
        up_to_date=up_to_date,
    )


def _write_index(folder: Path, shards: Shards, classes: tuple[str, ...], made: dict[str, Any]) -> None:
    parts = []
    for number, part in enumerate(shards.parts()):
        if part is None:
            raise PackError(f"{shard_name(number)} has been changed while it was made: run it again.")
        parts.append(part)
    kept = [note for part in parts for note in part.notes]
    about = PackAbout(made["format"], shards.shards(parts), classes, {**made, "kept": kept})
    write_index(folder, parts, about)


def _up_to_date(
    destination: Destination, source: Input, layout: Layout, made: dict[str, Any]
) -> PackIndex | None:
    """The index of the pack at the destination if it is the one to make, as far as options, keys, sizes and
    times of modification show, or None if there is none yet, or one that can't be compared with it. Raises
    PackError if it is another pack."""
    existing = destination.existing()
    if existing is None:
        return None
    index, files = existing
    same_version = {"headrace": made["headrace"]}  # another version's pack of the same files is as good
    earlier = {name: index.about.made.get(name) for name in made} | same_version
    if different := differences(earlier, made):
        raise exists(str(destination.path), different)
    shards, modified = index.about.shards, source.modified_ns(layout.items)
    complete = all(shard.name in files and files[shard.name].size == shard.size for shard in shards)
    if not complete or modified is None:
        return None
    if modified >= min(files[name].modified_ns for name in (FILE_NAME, *(shard.name for shard in shards))):
        raise exists(str(destination.path), "files that have changed since")
    return index


def _counting(progress: ProgressCallback | None, missing: Work, total: int) -> Callable[[int], None]:
    """Reports samples to `progress` as they are written, those of earlier runs included."""
    done = total - sum(len(items) for _, items in missing)

    def report(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return report


def write_shards(
    source: Input,
    changes: Changes,
    shards: Shards,
    work: Work,
    workers: int,
    report: Callable[[int], None],
    keep: Callable[[int], None] | None = None,
) -> None:
    """Writes the shards in `work`. Raises PackError. Calls `report` with the number of samples that were
    written since its last call, and `keep` with the number of each shard that is finished."""

    def prepare(chunk: tuple[int, Listing]) -> list[Packed]:
        samples = [changes.apply(source.read(item)) for item in chunk[1]]
        images = examine([sample.image for sample, _ in samples])
        return [
            Packed(sample, *shards.encode(sample), image, note)
            for (sample, note), image in zip(samples, images, strict=True)
        ]

    with closing(in_order(prepare, _chunks(work), workers)) as stream:
        for shard, chunks in groupby(stream, key=lambda pair: pair[0][0]):
            with shards.writing(shard) as add:
                for _, samples in chunks:
                    add(samples)
                    report(len(samples))
            if keep is not None:
                keep(shard)


def _build_shard(
    source: Input,
    changes: Changes,
    destination: Destination,
    threads: int,
    version: str,
    shard: int,
    items: Listing,
) -> None:
    """Makes one shard on any node. Raises PackError."""
    node, here = socket.gethostname(), ffi.build_info()["version"]
    if version != here:  # another one may pack other bytes
        raise PackError(f"{node} has Headrace {here}, and {version} is wanted there.")
    try:
        with destination.building() as folder:
            shards = TarShards(folder, list)
            write_shards(source, changes, shards, [(shard, items)], threads, lambda _: None)
            destination.keep(folder, shard)
    except OSError as error:
        raise PackError(f"shard {shard}, on {node}: {error}") from error


def _chunks(work: Work) -> Iterator[tuple[int, Listing]]:
    """`work`, with each shard cut into bounded parts."""
    for shard, items in work:
        first, filled = 0, 0
        for number, size in enumerate(items.sizes()):
            if number - first == CHUNK or (number > first and filled + size > CHUNK_BYTES):
                yield shard, items[first:number]
                first, filled = number, 0
            filled += size
        yield shard, items[first:]
