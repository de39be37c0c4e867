"""The cache as its callers see it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.cache.records import CacheStats, Claim, Record


class Cache:
    """A cache of records on local disk. All processes of the node that name one folder share it; threads may
    share a Cache, and a forked child goes on with one of its own.

    A *position* counts the samples that this Cache's user needs, one after the other, from 0 when the Cache
    was made, through all epochs. Positions only tell what is needed sooner; they come from the order, which
    is known in advance. Where several ranks of a job on this node are in step, the position of a record's next
    use may be that of its next use by any of them.

    Args:
        folder: on a local disk. Made where it is missing; files in it that the cache didn't write are left
            alone.
        capacity: bytes that the records may take on disk, in blocks of 4096. The index comes on top.

    Raises:
        ConfigError: `capacity` isn't positive, or a live process uses the folder with another capacity.
        CacheError: the folder can't be used, or its index is damaged.
    """

    def __init__(self, folder: Path, capacity: int) -> None:
        raise NotImplementedError

    def expect(self, records: Sequence[Record], positions: Sequence[int]) -> None:
        """Tell where records are needed that may be there already, from an earlier epoch, job or another rank,
        so that they are kept for it. Those that aren't there are passed over. About 5 µs a record: call it
        once an epoch, with the samples that this user needs in it, some thousands at a time."""
        raise NotImplementedError

    def claim(self, records: Sequence[Record], positions: Sequence[int]) -> list[Claim]:
        """Pin what is there, and divide among the processes who fetches what isn't: `positions[i]` is where
        `records[i]` is needed. Call it in order of use, with a batch's records or more at a time. What is
        "ready" has been checked: by its checksum the first time that this process sees it, by its size later.

        To make room, records are evicted: first those that no process is known to need, the longest unused
        first; then that which is needed last; never one in use, nor one that is needed sooner than the
        record that wants its room.
        """
        raise NotImplementedError

    def add(self, records: Sequence[Record], data: Sequence[bytes]) -> list[str | None]:
        """End claims that were "mine" with the records' bytes. Returns the path of each, pinned as if "ready"; None where
        it couldn't be written as the disk is full: go on without keeping it.

        Raises:
            DamagedError: bytes don't have their record's size or checksum. Nothing was added; `error.records`
                says which to fetch again.
        """
        raise NotImplementedError

    def give_up(self, records: Sequence[Record]) -> None:
        """End claims that were "mine", of records that couldn't be fetched."""
        raise NotImplementedError

    def release(self, records: Sequence[Record], positions: Sequence[int | None]) -> None:
        """Unpin records that were "ready" or added, once for each time that they were. `positions[i]`: where
        `records[i]` is needed next; None: not as far as is known."""
        raise NotImplementedError

    def stats(self) -> CacheStats:
        """See `CacheStats`."""
        raise NotImplementedError

    def close(self) -> None:
        """Unpin everything, give up what is being fetched, and let the others forget what this one needs. Also
        done, by the others, for a process that was killed."""
        raise NotImplementedError
