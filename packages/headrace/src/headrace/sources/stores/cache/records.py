"""Plain data of the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple


class Record(NamedTuple):
    """Bytes that can be fetched again from where they came.

    Attributes:
        dataset: what the bytes belong to. A cache keeps them as long as a live process uses records of the
            same dataset.
        key: the identity of the bytes within the dataset, in every process of the node: object, version
            (ETag), first byte. Records of equal keys are taken for equal.
        size: the number of bytes.
        checksum: the CRC-32 (zlib's) of the bytes, or None if it isn't known. Then what `Cache.add` is given
            counts as right, and its checksum is kept to recognize it by.
    """

    dataset: str
    key: str
    size: int
    checksum: int | None


class Claim(NamedTuple):
    """The result of claiming a record.

    Attributes:
        state: "ready": the file at `path` begins with it, and stays as long as the `Cache` isn't closed.
            "mine": it isn't there. The caller fetches it and ends the claim by `Cache.add` or
            `Cache.give_up`; until then all others wait for the caller.
            "other": it is being fetched under another claim, by whichever process. Claim it again.
            "full": it isn't there and there is no room. Fetch it without keeping it.
        path: the file of a "ready" record, else None.
    """

    state: Literal["ready", "mine", "other", "full"]
    path: str | None = None


@dataclass(frozen=True)
class CacheStats:
    """The contents of a cache now, and what this `Cache` did since it was made.

    Attributes:
        capacity: the bound on `bytes`.
        bytes: the bytes that are kept or reserved by all processes of the node, in whole blocks of 4,096.
        records: the number of records that all processes of the node keep or are fetching.
        hits: the number of claims that were answered by "ready".
        misses: the number of claims that were answered by "mine" or "full".
        evictions: the number of records that were removed to make room for this one's.
        damaged: the number of records that were dropped because their file was changed.
        not_kept: the number of records that were not written because the disk was full.
    """

    capacity: int
    bytes: int
    records: int
    hits: int
    misses: int
    evictions: int
    damaged: int
    not_kept: int
