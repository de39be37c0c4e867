"""Packs a data set: reads, checks and indexes samples in parallel, and writes them in their order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args

from torch.utils.data import Dataset

from headrace._native import ffi
from headrace.errors import ConfigError
from headrace.measure.machine import usable_cores
from headrace.packs.assemble import write_index
from headrace.packs.changes import Changes, Encoding
from headrace.packs.inputs.detect import open_input
from headrace.packs.records import Input, Plan, make_plan
from headrace.packs.rows import Facts, Packed, Part
from headrace.packs.tar_shards import TarShards
from headrace.packs.workplace import workplace
from headrace.sources.pack_index import FILE_NAME, PackAbout, PackIndex

Format = Literal["tar", "lmdb"]

# Large enough to be read at a disk's full rate, small enough that an interruption costs seconds.
DEFAULT_SHARD_SIZE = 500_000_000

# What a thread is given at a time: enough that handing it over costs nothing, and bounded in bytes.
_CHUNK = 16
_CHUNK_BYTES = 4_000_000

Progress = Callable[[int, int], None]


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
            latter); a WebDataset tar file or a folder of them; an LMDB of msgpack (bytes, label); a pack; or a
            torch Dataset that is an ImageFolder, has `samples` as one, or gives (PIL image, label), which
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
        workers: threads; None: the cores that this process may use.
        shard_size: bytes of the source in a shard, at most; a larger sample has one for itself.
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
    source = open_input(src, changes)
    plan = make_plan(source.records(), shard_size, shuffle)
    made = {
        "headrace": ffi.build_info()["version"],
        "source": source.kind,
        "records": plan.listing,
        "shard_size": shard_size,
        "shuffle": shuffle,
        **vars(changes),
    }
    dest = Path(os.path.abspath(dest))
    with workplace(dest, made, plan) as folder:
        shards = _open_shards(format, folder, plan)
        finished = {i: part for i in range(plan.shards) if (part := shards.part(i)) is not None}
        if not (folder / FILE_NAME).exists():
            run = _Run(source, changes, shards, plan, workers or usable_cores(), progress)
            run.write([i for i in range(plan.shards) if i not in finished])
            parts = [_written(shards, i) for i in range(plan.shards)]
            about = PackAbout(format, shards.shards(parts), source.classes, made)
            write_index(folder, parts, about, shards.begins())
    return _summary(dest, plan, len(finished), source.notes())
