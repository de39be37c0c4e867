"""Packs a data set: reads, checks and indexes samples in parallel, and writes them in their order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from torch.utils.data import Dataset

from headrace._native import ffi
from headrace.errors import ConfigError
from headrace.measure.machine import usable_cores
from headrace.packs.assemble import write_index
from headrace.packs.build import Job, build
from headrace.packs.changes import Changes, Encoding
from headrace.packs.destinations import Destination, FolderDestination, StoreDestination
from headrace.packs.inputs.detect import open_input
from headrace.packs.lmdb_shards import TRANSACTION_BYTES, LmdbShards
from headrace.packs.pipeline import write_shards
from headrace.packs.records import DEFAULT_SHARD_SIZE, Plan, Progress, Record, make_plan
from headrace.packs.tar_shards import TarShards
from headrace.remote.urls import is_url
from headrace.sources.pack_index import FILE_NAME, PackAbout, PackIndex

Format = Literal["tar", "lmdb"]

# Threads beyond the cores: at any time one waits for the disk, or for the interpreter's lock; of reads from
# a store (True), each waits for the network.
_READERS_BEYOND = {False: 1, True: 33}


@dataclass(frozen=True)
class PackSummary:
    """What was packed.

    Attributes:
        path: of the pack; a store's URL.
        samples, shards: in it.
        reused: shards that an earlier, interrupted run had finished.
        source_bytes: of the images and other fields.
        pack_bytes: of the shards and the index.
        kept: (key, why) of images that were to be changed and are kept as they were.
        notes: what else to know, for people.
    """

    path: Path | str
    samples: int
    shards: int
    reused: int
    source_bytes: int
    pack_bytes: int
    kept: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def pack(
    src: str | os.PathLike[str] | Dataset[Any],
    dest: str | os.PathLike[str],
    *,
    format: Format = "tar",
    optimize: bool = False,
    strip: bool = False,
    reencode: Encoding | None = None,
    max_side: int | None = None,
    quality: int | None = None,
    workers: int | None = None,
    shard_size: int = DEFAULT_SHARD_SIZE,
    shuffle: int | None = None,
    ray: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> PackSummary:
    """Packs images and labels into few large files with an index, without changing a byte of them.

    The result is a folder: tar shards that every WebDataset reader opens (or an LMDB), and ``index.arrow``,
    which says where each sample lies, its checksum, size and label, and holds the entry points that let
    `headrace.DataLoader` decode a crop without what is before it. Read it by `headrace.PackedDataset`.

    The work is done in ``DEST.partial``, which becomes `dest` once it is complete. Interrupted at any moment,
    the same call goes on after the last finished shard, and the pack is the same byte for byte; so it is for
    any number of workers, and for shards built by a cluster.

    Source and destination may lie in object stores (``pip install 'headrace[remote]'``): a URL as of
    `headrace.PackedDataset`. There the index, which is written last, makes the shards a pack.

    Args:
        src: a folder as ImageFolder gets it, or its URL; a pack, or its URL; an ILSVRC2012 train or val tar
            file (the devkit beside the latter); a WebDataset tar file or a folder of them; an LMDB of msgpack
            (bytes, label); or a torch Dataset that is an ImageFolder, has `samples` as one, or gives (PIL
            image, label), which needs `reencode`.
        dest: the folder to make, or its URL; its last part must not exist, or be an empty folder.
        format: "tar", or "lmdb" (needs ``pip install headrace[lmdb]``).
        optimize: rewrite JPEGs without loss: optimised Huffman tables, and restart markers that let any
            decoder begin in the middle; about 2.6 % smaller, and three times the work. Pixels don't change.
            Files that can't be transcoded without loss are kept as they are, and named in `kept`.
        strip: drop EXIF, ICC profiles and comments on the way. Needs `optimize`.
        reencode: "png" (without loss) or "jpeg" (lossy) for images that aren't JPEGs. None: as they are.
        max_side: lossy: images whose longer side has more pixels are scaled down to it, and encoded anew.
        quality: lossy: of JPEGs that are encoded anew, 1 to 100; None: 95.
        workers: threads; None: one more than the cores that this process may use, and 32 more where the
            source is in a store. With `ray`: cores that a shard takes; None: 1.
        shard_size: bytes of the source in a shard, at most; a larger sample has one for itself. An LMDB is
            one file; there it is what an interruption may cost, and is in memory at once: 64 MB at most.
        shuffle: a seed: samples lie in a random order, which depends on it and their keys only. None: in the
            source's order.
        ray: shards are built by tasks of a Ray cluster (``pip install 'headrace[ray]'``): its address, "auto"
            for the one that this machine is part of, "local" for this machine alone. Source and destination
            must be where all nodes reach them: in stores, or in folders that they share. A shard whose node
            dies is built again on another, up to 5 times. A cluster that this process has joined already is
            used whatever the address. None: no cluster.
        storage_options: of the stores; see `headrace.PackedDataset`.
        progress: called with (samples done, samples in all), now and then, from the caller's thread.

    Raises:
        ConfigError: an option that can't be obeyed.
        PackError: the source can't be read or has changed meanwhile, `dest` exists, the disk is too small or
            full, or ``DEST.partial`` was begun with other options. The message names the file.
        RemoteError: a store can't be read or written. The message names the URL.

    Example:
        >>> import headrace
        >>> headrace.pack("imagenet/train", "train.pack")  # doctest: +SKIP
        >>> train = headrace.PackedDataset("train.pack", transform)  # doctest: +SKIP
    """
    changes = Changes(optimize, strip, reencode, max_side, quality)
    destination = _destination(dest, storage_options)
    _check(format, workers, shard_size, shuffle)
    if format == "lmdb":
        shard_size = min(shard_size, TRANSACTION_BYTES)
        if ray is not None or isinstance(destination, StoreDestination):
            raise ConfigError("format='lmdb' is one file on a local disk: by ray or to a URL, pack as 'tar'.")
    if ray is not None and isinstance(src, (str, os.PathLike)) and not is_url(src):
        src = os.path.abspath(src)  # nodes work in folders of their own
    source = open_input(src, changes, storage_options)
    plan = make_plan(source.records(), shard_size, shuffle)
    made = {
        "headrace": ffi.build_info()["version"],
        "format": format,
        "source": source.kind,
        "records": plan.listing,
        "shard_size": shard_size,
        "shuffle": shuffle,
        **vars(changes),
    }
    with destination.workplace(made, plan) as folder:
        shards = TarShards(folder) if format == "tar" else LmdbShards(folder, plan)
        finished = destination.finished(shards, plan)
        if not (folder / FILE_NAME).exists():
            beyond = _READERS_BEYOND[is_url(src)]
            missing = [(shard, plan.of(shard)) for shard in range(plan.shards) if shard not in finished]
            tell = _counting(progress, missing, len(plan.records))
            if ray is None and isinstance(destination, FolderDestination):
                write_shards(source, changes, shards, missing, workers or usable_cores() + beyond, tell)
            else:
                cores = workers or (1 if ray is not None else usable_cores())
                job = Job(source, changes, destination, cores + beyond, made["headrace"])
                build(job, missing, ray, cores, tell)
            shards.complete()
            parts = destination.parts(shards, plan)
            kept = [note for part in parts for note in part.notes]
            about = PackAbout(format, shards.shards(parts), source.classes, {**made, "kept": kept})
            write_index(folder, parts, about, shards.begins())
        return _summary(destination, folder, plan, len(finished), source.notes())


def _destination(dest: str | os.PathLike[str], options: Mapping[str, Any] | None) -> Destination:
    if is_url(dest):
        return StoreDestination(str(dest), options)
    return FolderDestination(Path(os.path.abspath(dest)))


def _counting(
    progress: Progress | None, missing: Sequence[tuple[int, Sequence[Record]]], total: int
) -> Callable[[int], None]:
    """Tells `progress` of samples as they are written, those of earlier runs included."""
    done = total - sum(len(records) for _, records in missing)

    def tell(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    return tell


def _check(format_: str, workers: int | None, shard_size: int, shuffle: int | None) -> None:
    if format_ not in get_args(Format):
        raise ConfigError(f"format ({format_!r}) must be 'tar' or 'lmdb'.")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers ({workers}) must be at least 1, or None for the usable cores.")
    if shard_size < 1:
        raise ConfigError(f"shard_size ({shard_size}) must be a number of bytes, 1 or more.")
    if shuffle is not None and not isinstance(shuffle, int):
        raise ConfigError(
            f"shuffle ({shuffle!r}) must be an int, the seed of the order, or None for no shuffling."
        )


def _summary(
    destination: Destination, folder: Path, plan: Plan, reused: int, notes: list[str]
) -> PackSummary:
    index = PackIndex(folder / FILE_NAME)
    return PackSummary(
        path=destination.path,
        samples=len(index),
        shards=plan.shards,
        reused=reused,
        source_bytes=plan.source_bytes,
        pack_bytes=sum(shard.size for shard in index.about.shards) + index.path.stat().st_size,
        kept=tuple((key, why) for key, why in index.about.made["kept"]),
        notes=tuple(notes),
    )
