"""The contents of a pack, from its index alone."""

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
from headrace.sources.stores.client import is_url

Histogram = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PackInfo:
    """The contents of a pack.

    Attributes:
        path: the pack's folder, or its URL.
        kind: "tar" or "lmdb".
        samples, labelled: the number of samples, and of those that have a label.
        classes: the classes' names by label; empty if they are not known.
        shards: the number of shards.
        shard_bytes, index_bytes, image_bytes: the size of the shards, of the index, and of the images alone,
            in bytes.
        formats: (extension in lower case, number of samples), the most frequent first.
        sides: (pixels, number of samples) for the images whose longer side has at most so many pixels, and
            more than the entry before; 0 pixels: images that can't be opened.
        sizes: (bytes, number of samples), likewise for the images' sizes.
        with_entries: the number of samples that have entry points.
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
    made: dict[str, Any]


def info(path: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> PackInfo:
    """Describes the pack in the folder `path`, or at that URL; for `storage_options` see `PackedDataset`.
    Raises PackError if its index can't be read."""
    index = StoredPack.open(path, storage_options).index
    _, begins, ends = index.entries()
    counts = pc.value_counts(pc.utf8_lower(index.checked(index.batch["extension"]))).to_pylist()
    sides = np.maximum(index.numbers("width"), index.numbers("height"))
    return PackInfo(
        path=str(path) if is_url(path) else Path(path),
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
        made=index.about.made,
    )


def _histogram(values: npt.NDArray[np.unsignedinteger[Any]]) -> Histogram:
    """Counts by powers of two; 0 by itself."""
    powers = np.where(values > 0, np.ceil(np.log2(np.maximum(values, 1))), -1).astype(np.int64)
    distinct, counts = np.unique(powers, return_counts=True)
    return tuple((0 if p < 0 else 1 << int(p), int(n)) for p, n in zip(distinct, counts, strict=True))
