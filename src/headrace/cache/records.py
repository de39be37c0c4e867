"""Plain data of the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Record(NamedTuple):
    """Bytes that can be fetched again from where they came.

    Attributes:
        key: says which bytes these are, on every process of the node alike: store, object, its version
            (ETag), first byte. Records of equal keys are taken for equal.
        size: in bytes.
        checksum: CRC-32 (zlib's) of the bytes; None: not known. Then what `Cache.add` is given counts as
            right, and its checksum is kept, to know it again by.
    """

    key: str
    size: int
    checksum: int | None


State = Literal["ready", "mine", "other", "full"]


class Claim(NamedTuple):
    """What came of asking for a record.

    Attributes:
        state: "ready": the file at `path` holds it, and stays until it is released.
            "mine": it isn't there. The caller fetches it and ends the claim by `Cache.add` or
            `Cache.give_up`; until then all others wait for the caller.
            "other": it is being fetched under another claim, by whichever process. Ask again.
            "full": it isn't there and there is no room: all that is kept is in use or needed sooner. Fetch it
            without keeping it, or ask again later.
        path: of "ready"; else None.
    """

    state: State
    path: str | None = None


@dataclass(frozen=True)
class CacheStats:
    """What a cache holds now, and what this `Cache` did since it was made.

    Attributes:
        capacity: in bytes.
        bytes: that are kept or reserved, by all processes of the node, in whole blocks of `BLOCK` bytes.
        records: kept, by all processes of the node.
        hits: claims that were answered by "ready".
        misses: claims that were answered by "mine" or "full".
        evictions: records that were removed to make room for this one's.
        damaged: records whose file was missing or no longer what was written, and that were dropped.
        not_kept: records that could not be written, because the disk was full.
    """

    capacity: int
    bytes: int
    records: int
    hits: int
    misses: int
    evictions: int
    damaged: int
    not_kept: int
