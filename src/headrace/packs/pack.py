"""Packs a data set: reads, checks and indexes samples in parallel, and writes them in their order."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from torch.utils.data import Dataset

from headrace._native import ffi
from headrace.errors import ConfigError, PackError
from headrace.measure.machine import usable_cores
from headrace.packs.assemble import write_index
from headrace.packs.changes import Changes, Encoding
from headrace.packs.inputs.detect import open_input
from headrace.packs.lmdb_shards import TRANSACTION_BYTES, LmdbShards
from headrace.packs.pipeline import Progress, Shards, write_shards
from headrace.packs.records import DEFAULT_SHARD_SIZE, Plan, make_plan
from headrace.packs.rows import Part
from headrace.packs.tar_shards import TarShards
from headrace.packs.workplace import workplace
from headrace.sources.pack_index import FILE_NAME, PackAbout, PackIndex

Format = Literal["tar", "lmdb"]


@dataclass(frozen=True)
class PackSummary:
    """What was packed.

    Attributes:
        path: of the pack.
        samples, shards: in it.
        reused: shards that an earlier, interrupted run had finished.
        source_bytes: of the images and other fields.
        pack_bytes: of the shards and the index.
        kept: (key, why) of images that were to be changed and are kept as they were.
        notes: what else to know, for people.
    """

    path: Path
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
    progress: Progress | None = None,
) -> PackSummary:
    """Packs images and labels into few large files with an index, without changing a byte of them.

    The result is a folder: tar shards that every WebDataset reader opens (or an LMDB), and ``index.arrow``,
    which says where each sample lies, its checksum, size and label, and holds the entry points that let
    `headrace.DataLoader` decode a crop without what is before it. Read it by `headrace.PackedDataset`.

    The work is done in ``DEST.partial``, which becomes `dest` once it is complete. Interrupted at any moment,
    the same call goes on after the last finished shard, and the pack is the same byte for byte; so it is for
    any number of workers.

    Args:
        src: a folder as ImageFolder gets it; an ILSVRC2012 train or val tar file (the devkit beside the
            latter); a WebDataset tar file or a folder of them; an LMDB of msgpack (bytes, label); a pack; or
            a torch Dataset that is an ImageFolder, has `samples` as one, or gives (PIL image, label), which
            needs `reencode`.
        dest: the folder to make; its last part must not exist, or be an empty folder.
        format: "tar", or "lmdb" (needs ``pip install headrace[lmdb]``).
        optimize: rewrite JPEGs without loss: optimised Huffman tables, and restart markers that let any
            decoder begin in the middle; about 2.6 % smaller, and three times the work. Pixels don't change.
            Files that can't be transcoded without loss are kept as they are, and named in `kept`.
        strip: drop EXIF, ICC profiles and comments on the way. Needs `optimize`.
        reencode: "png" (without loss) or "jpeg" (lossy) for images that aren't JPEGs. None: as they are.
        max_side: lossy: images whose longer side has more pixels are scaled down to it, and encoded anew.
        quality: lossy: of JPEGs that are encoded anew, 1 to 100; None: 95.
        workers: threads; None: one more than the cores that this process may use.
        shard_size: bytes of the source in a shard, at most; a larger sample has one for itself. An LMDB is
            one file; there it is what an interruption may cost, and is in memory at once: 64 MB at most.
        shuffle: a seed: samples lie in a random order, which depends on it and their keys only. None: in the
            source's order.
        progress: called with (samples done, samples in all), now and then, from the caller's thread.

    Raises:
        ConfigError: an option that can't be obeyed.
        PackError: the source can't be read or has changed meanwhile, `dest` exists, the disk is too small or
            full, or ``DEST.partial`` was begun with other options. The message names the file.

    Example:
        >>> import headrace
        >>> headrace.pack("imagenet/train", "train.pack")  # doctest: +SKIP
        >>> train = headrace.PackedDataset("train.pack", transform)  # doctest: +SKIP
    """
    changes = Changes(optimize, strip, reencode, max_side, quality)
    _check(format, workers, shard_size, shuffle)
    if format == "lmdb":
        shard_size = min(shard_size, TRANSACTION_BYTES)
    source = open_input(src, changes)
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
    dest = Path(os.path.abspath(dest))
    kind = TarShards if format == "tar" else LmdbShards
    with workplace(dest, made, plan) as folder:
        shards = kind(folder, plan)
        finished = {i for i in range(plan.shards) if shards.part(i) is not None}
        if not (folder / FILE_NAME).exists():
            missing = [i for i in range(plan.shards) if i not in finished]
            # One more than cores: at any time one waits for the disk, or for the interpreter's lock.
            threads = workers or usable_cores() + 1
            write_shards(source, changes, shards, plan, missing, threads, progress)
            shards.complete()
            parts = [_finished(shards, i) for i in range(plan.shards)]
            kept = [note for part in parts for note in part.notes]
            about = PackAbout(format, shards.shards(parts), source.classes, {**made, "kept": kept})
            write_index(folder, parts, about, shards.begins())
    return _summary(dest, plan, len(finished), source.notes())


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


def _finished(shards: Shards, shard: int) -> Part:
    part = shards.part(shard)
    if part is None:
        raise PackError(
            f"Shard {shard} of the pack has been changed by others while it was made: run it again."
        )
    return part


def _summary(dest: Path, plan: Plan, reused: int, notes: list[str]) -> PackSummary:
    index = PackIndex(dest / FILE_NAME)
    return PackSummary(
        path=dest,
        samples=len(index),
        shards=plan.shards,
        reused=reused,
        source_bytes=plan.source_bytes,
        pack_bytes=sum(shard.size for shard in index.about.shards) + index.path.stat().st_size,
        kept=tuple((key, why) for key, why in index.about.made["kept"]),
        notes=tuple(notes),
    )
