"""What is asked of `headrace.pack`, and what it reports."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace.packs.changes import Changes

Format = Literal["tar", "lmdb"]


@dataclass(frozen=True)
class PackSummary:
    """What was packed.

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


@dataclass(frozen=True)
class PackRequest:
    """The checked arguments of `pack`."""

    src: Any
    dest: str | os.PathLike[str]
    format: Format
    changes: Changes
    workers: int | None
    shard_size: int
    shuffle: int | None
    ray: str | None
    storage_options: Mapping[str, Any] | None
