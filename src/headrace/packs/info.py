"""What a pack holds, from its index alone (and, for restart markers, from the beginnings of some images)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace._arrow import pc
from headrace.packs.stored import StoredPack
from headrace.sources.folder import JPEG_EXTENSIONS
from headrace.sources.pack_index import PackIndex

# JPEGs without entry points whose beginnings are read, at most: the rest is estimated.
LOOKED_AT = 1000

# Enough of a JPEG to reach its image data past EXIF and ICC segments.
HEAD = 1 << 17

Histogram = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PackInfo:
    """What a pack holds.

    Attributes:
        path: the pack's folder, or its URL.
        kind: "tar" or "lmdb".
        samples, labelled: the number of samples, and of those that have a label.
        classes: the classes' names by label; empty: not known.
        shards: the number of shards.
        shard_bytes, index_bytes, image_bytes: the size of the shards, of the index, and of the images alone,
            in bytes.
        formats: (extension in lower case, number of samples), the most frequent first.
        sides: (pixels, number of samples) for the images whose longer side has at most so many pixels, and
            more than the entry before; 0 pixels: images that can't be opened.
        sizes: (bytes, number of samples), likewise for the images' sizes.
        with_entries: the number of samples that have entry points.
        with_restarts: the share of the JPEGs that have restart markers; estimated where there are many.
        made: the options that the pack was made with; see `PackAbout`.
    """

    path: Path | str
    kind: str
    samples: int
    labelled: int
    classes: tuple[str, ...]
    shards: int
    shard_bytes: int
    index_bytes: int
    image_bytes: int
    formats: tuple[tuple[str, int], ...]
    sides: Histogram
    sizes: Histogram
    with_entries: int
    with_restarts: float
    made: dict[str, Any]


def info(path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> PackInfo:
    """Describes the pack in the folder `path`, or at that URL; `storage_options` as of `PackedDataset`.

    Raises:
        PackError: its index can't be read.
        OSError: a shard can't.
    """
    pack = StoredPack.open(path, storage_options)
    index = pack.index
    _, begins, ends = index.entries()
    jpegs = _are_jpegs(index)
    bare = np.flatnonzero(jpegs & (begins == ends))
    counts = pc.value_counts(pc.utf8_lower(index.checked(index.batch["extension"]))).to_pylist()
    sides = np.maximum(index.numbers("width"), index.numbers("height"))
    return PackInfo(
        path=Path(path) if pack.store is None else str(path),
        kind=index.about.kind,
        samples=len(index),
        labelled=int((index.numbers("label") >= 0).sum()),
        classes=index.about.classes,
        shards=len(index.about.shards),
        shard_bytes=sum(shard.size for shard in index.about.shards),
        index_bytes=index.path.stat().st_size,
        image_bytes=int(index.numbers("size").sum()),
        formats=tuple(sorted(((c["values"], c["counts"]) for c in counts), key=lambda c: (-c[1], c[0]))),
        sides=_histogram(sides),
        sizes=_histogram(index.numbers("size")),
        with_entries=int((ends > begins).sum()),
        with_restarts=_restart_share(pack, bare) * len(bare) / max(1, int(jpegs.sum())),
        made=index.about.made,
    )


def restart_interval(head: bytes) -> int:
    """MCUs between restart markers of the JPEG that begins with `head`; 0: it has none, or isn't one."""
    at, interval = 2, 0
    while at + 4 <= len(head) and head[at] == 0xFF:
        marker, length = head[at + 1], int.from_bytes(head[at + 2 : at + 4], "big")
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == 0xDD:
            interval = int.from_bytes(head[at + 4 : at + 6], "big")
        if marker == 0xDA:
            return interval
        at += 2 + length
    return 0


def _are_jpegs(index: PackIndex) -> npt.NDArray[np.bool_]:
    extensions = pc.utf8_lower(index.checked(index.batch["extension"]))
    names = pc.is_in(extensions, pc.cast([name[1:] for name in JPEG_EXTENSIONS], extensions.type))
    jpegs: npt.NDArray[np.bool_] = names.to_numpy(zero_copy_only=False)
    return jpegs


def _restart_share(pack: StoredPack, rows: npt.NDArray[np.int64]) -> float:
    """The share of `rows` that have restart markers, from at most LOOKED_AT of them."""
    looked_at = rows[:: max(1, -(-len(rows) // LOOKED_AT))]
    found = sum(restart_interval(pack.image(int(row), HEAD)) > 0 for row in looked_at)
    return found / max(1, len(looked_at))


def _histogram(values: npt.NDArray[np.unsignedinteger[Any]]) -> Histogram:
    """Counts by powers of two; 0 by itself."""
    powers = np.where(values > 0, np.ceil(np.log2(np.maximum(values, 1))), -1).astype(np.int64)
    found, counts = np.unique(powers, return_counts=True)
    return tuple((0 if p < 0 else 1 << int(p), int(n)) for p, n in zip(found, counts, strict=True))
