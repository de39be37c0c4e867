"""Packs a data set: reads, checks and indexes samples in parallel, and writes them in their order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch.utils.data import Dataset

from headrace.errors import ConfigError
from headrace.packs import DEFAULT_SHARD_SIZE

if TYPE_CHECKING:  # only packing needs pyarrow
    from headrace.packs.build import PackSummary
    from headrace.packs.changes import Encoding

Format = Literal["tar", "lmdb"]


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
    progress: Callable[[int, int], None] | None = None,
) -> PackSummary:
    """Packs images and labels into few large files with an index, without changing a byte of them.

    The result is a folder: tar shards that every WebDataset reader opens (or an LMDB), and ``index.arrow``,
    which says where each sample lies, its checksum, size and label, and holds the entry points that let
    `headrace.DataLoader` decode a crop without what is before it. Read it by `headrace.PackedDataset`. Both
    need ``pip install 'headrace[packs]'``.

    The work is done in ``DEST.partial``, which becomes `dest` once it is complete. Interrupted at any moment,
    the same call continues after the last finished shard, and the pack is the same byte for byte; so it is
    for any number of workers, and for shards built by a cluster. If `dest` is the finished pack of the
    same call, and no file of the source was added, removed or modified since, nothing is written.

    Source and destination may lie in object stores (``pip install 'headrace[remote]'``): a URL as of
    `headrace.PackedDataset`. There the index, which is written last, makes the shards a pack.

    Args:
        src: a folder as ImageFolder gets it, or its URL; a pack, or its URL; an ILSVRC2012 train or val tar
            file (val with the devkit in the same folder, and scipy); a WebDataset tar file or a folder of
            them; an LMDB of msgpack (bytes, label); or a torch Dataset that is an ImageFolder, has `samples`
            as one, or gives (PIL image, label), which needs `reencode`.
        dest: the folder to make, or its URL: one that doesn't exist, an empty one, or the same call's pack.
        format: "tar", or "lmdb" (needs ``pip install headrace[lmdb]``).
        optimize: rewrite JPEGs without loss: optimized Huffman tables, and restart markers that let any
            decoder begin in the middle; about 2.6 % smaller, and three times the work. Pixels don't change.
            Files that can't be transcoded without loss are kept as they are, and named in `kept`.
        strip: drop EXIF, ICC profiles and comments on the way. Needs `optimize`.
        reencode: "png" (without loss) or "jpeg" (lossy) for images that aren't JPEGs, or None to keep them.
        max_side: lossy: images whose longer side has more pixels are scaled down to it, and re-encoded.
        quality: lossy: of JPEGs that are re-encoded, 1 to 100, or None for 95.
        workers: threads, or None for one more than the cores that this process may use, and 32 more if the
            source is in a store. With `ray`: cores that a shard takes, or None for 1.
        shard_size: bytes of the source in a shard, at most; a larger sample has one for itself. An LMDB is
            one file; there it is what an interruption may cost, and is in memory at once: 64 MB at most.
        shuffle: a seed: samples lie in a random order, which depends on it and their keys only, or None for
            the source's order.
        ray: shards are built by tasks of a Ray cluster (``pip install 'headrace[ray]'``): its address, "auto"
            for the one that this machine is part of, "local" for this machine alone. Source and destination
            must be where all nodes reach them: in stores, or in folders that they share. A shard whose node
            dies is built again on another, up to 5 times. A cluster that this process has joined already is
            used whatever the address. Without an address, no cluster is used.
        storage_options: of the stores; see `headrace.PackedDataset`.
        progress: called with (samples done, samples in all), now and then, from the caller's thread.

    Raises:
        ConfigError: an option is invalid.
        PackError: the source can't be read or has changed meanwhile, `dest` holds anything else than the same
            call's pack, the disk is too small or full, or ``DEST.partial`` was started with other options.
            The message names the file.
        RemoteError: a store can't be read or written. The message names the URL.

    Examples:
        >>> import headrace
        >>> headrace.pack("imagenet/train", "train.pack")  # doctest: +SKIP
        >>> train = headrace.PackedDataset("train.pack", transform)  # doctest: +SKIP
    """
    from headrace.packs.build import build
    from headrace.packs.changes import Changes

    changes = Changes(optimize, strip, reencode, max_side, quality)
    if format not in get_args(Format):
        raise ConfigError(f"format ({format!r}) must be 'tar' or 'lmdb'.")
    if workers is not None and workers < 1:
        raise ConfigError(f"workers ({workers}) must be at least 1, or None for the usable cores.")
    if shard_size < 1:
        raise ConfigError(f"shard_size ({shard_size}) must be a number of bytes, 1 or more.")
    if shuffle is not None and not isinstance(shuffle, int):
        raise ConfigError(
            f"shuffle ({shuffle!r}) must be an int, the seed of the order, or None for no shuffling."
        )
    return build(
        src,
        dest,
        changes,
        format=format,
        workers=workers,
        shard_size=shard_size,
        shuffle=shuffle,
        ray=ray,
        storage_options=storage_options,
        progress=progress,
    )
