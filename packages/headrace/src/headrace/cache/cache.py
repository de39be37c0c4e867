"""The cache as its callers see it."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from headrace.cache import files
from headrace.cache.claiming import (
    ADVANCE,
    CLOCK,
    FORGOTTEN_AT_ONCE,
    UNPIN,
    UNPIN_KEY,
    Answer,
    Claiming,
    Request,
    forget_passed,
)
from headrace.cache.index import REMOVE, DiskFullError, Member
from headrace.cache.records import CacheStats, Claim, Record
from headrace.errors import CacheError, ConfigError, DamagedError

# A use that was named before counts unless it is passed, or later.
EXPECT = """
INSERT INTO uses SELECT id, ?1, ?2, 0 FROM records WHERE key = ?3 AND ?2 >= ?4
ON CONFLICT DO UPDATE SET position = excluded.position
    WHERE pins = 0 AND (position < ?4 OR position > excluded.position)
"""


class Cache:
    """A cache of records on local disk. All processes of the node that name one folder share it; threads may
    share a Cache, and a forked child continues with one of its own.

    A *position* counts the samples that this Cache's user needs, one after the other, from 0 when the Cache
    was made, through all epochs. Positions only state what is needed sooner; they come from the order, which
    is known in advance. Where several ranks of a job on this node are in step, the position of a record's
    next use may be that of its next use by any of them.

    Args:
        folder: on a local disk. Made where it is missing; files in it that the cache didn't write are left
            alone.
        capacity: bytes that the records may take on disk, in blocks of 4096. The index comes on top, some
            300 bytes a record.

    Raises:
        ConfigError: `capacity` is less than a block, or a live process uses the folder with another.
        CacheError: the folder can't be used, or its index is damaged.
    """

    def __init__(self, folder: Path | str, capacity: int) -> None:
        if capacity < files.BLOCK:
            raise ConfigError(f"capacity ({capacity:,}) must be {files.BLOCK:,} bytes or more.")
        self._folder = Path(folder).absolute()
        self._capacity = capacity
        self._begin()
        self._member = Member(self._folder, capacity, self._begin)
        with self._member.transaction():
            pass  # an unusable folder is an error now

    def _begin(self) -> None:
        """With nothing claimed."""
        self._held: dict[bytes, tuple[int, int]] = {}  # number of the record, pins
        self._fetching: dict[bytes, int] = {}
        self._verified = bytearray()  # a bit for each number of a record
        self._counts = dict.fromkeys(("hits", "misses", "evictions", "damaged", "not_kept"), 0)

    def expect(self, records: Sequence[Record], positions: Sequence[int]) -> None:
        """Announce where records are needed that may be there already, from an earlier epoch or job or from
        another rank, so that they are kept for it. Those that aren't there, or whose positions are passed,
        are passed over. It takes about 5 µs a record: call it at the beginning of an epoch with the samples
        that this user needs in it, some hundreds at a time; where jobs with orders of their own share the
        cache, some ten times an epoch. Of a record that comes several times, the soonest use counts."""
        requests = _requests(records, positions)
        with self._member.transaction() as connection:
            (clock,) = connection.execute(CLOCK, [self._member.number]).fetchone()
            connection.executemany(
                EXPECT,
                [(self._member.number, request.position, request.key, clock) for request in requests],
            )

    def skip(self, position: int) -> bool:
        """Announce that what was expected before `position` won't be claimed: some thousand uses are
        forgotten. Returns whether there may be more; call it again then."""
        with self._member.transaction() as connection:
            connection.execute(ADVANCE, [position, self._member.number])
            return forget_passed(connection, self._member.number, FORGOTTEN_AT_ONCE) > 0

    def claim(self, records: Sequence[Record], positions: Sequence[int]) -> list[Claim]:
        """Pin what is there, and divide among the processes who fetches what isn't: `positions[i]` is where
        `records[i]` is needed. Call it in order of use, with a batch's records or more at a time. What is
        "ready" has been checked: by its checksum the first time that this process sees it, by its size later.

        To make room, records are evicted: first those that no process is known to need, the longest unused
        first; then that which is needed last; never one in use, nor one that is needed sooner than the
        record that wants its room.

        Raises:
            CacheError: the index or the folder can't be used. On a full disk the answer is "full" instead.
        """
        requests = _requests(records, positions)
        answers = self._answer(requests, set())
        damaged = self._damaged(requests, answers)
        if damaged:
            again = [row for row, answer in enumerate(answers) if answer.number in damaged]
            second = self._answer([requests[row] for row in again], damaged)
            for row, answer in zip(again, second, strict=True):
                answers[row] = answer
        with self._member.lock:
            for answer in answers:
                self._counts["hits"] += answer.state == "ready"
                self._counts["misses"] += answer.state in ("mine", "full")
        return [
            Claim(answer.state, self._member.path(answer.number) if answer.state == "ready" else None)
            for answer in answers
        ]

    def _answer(self, requests: list[Request], damaged: set[int]) -> list[Answer]:
        """Claim them. `damaged`: numbers of records that were "ready" for these requests, but are not."""
        if not requests:
            return []
        try:
            with self._member.lock:
                with self._member.transaction() as connection:
                    claiming = Claiming(connection, self._member.clients, self._member.number)
                    answers = claiming.answer(requests, damaged)
                self._counts["evictions"] += claiming.evictions
                self._counts["damaged"] += claiming.dropped
                if damaged:
                    self._forget_pins(request.key for request in requests)
                for request, answer in zip(requests, answers, strict=True):
                    if answer.state == "ready":
                        pins = self._held.get(request.key, (0, 0))[1]
                        self._held[request.key] = answer.number, pins + 1
                    elif answer.state == "mine":
                        self._fetching[request.key] = answer.number
        except DiskFullError:
            if damaged:
                self._forget_pins(request.key for request in requests)
                self._member.change(
                    [(UNPIN_KEY, [(self._member.number, request.key) for request in requests])]
                )
            return [Answer("full")] * len(requests)
        return answers

    def _damaged(self, requests: list[Request], answers: list[Answer]) -> set[int]:
        """Numbers of those "ready" whose file isn't what was written."""
        damaged = set()
        for request, (state, number, checksum) in zip(requests, answers, strict=True):
            if state != "ready" or number in damaged:
                continue
            path = self._member.path(number)
            if not files.has_size(path, request.record.size):
                damaged.add(number)
            elif not self._is_verified(number):
                if files.has_checksum(path, checksum):
                    self._set_verified(number)
                else:
                    damaged.add(number)
        return damaged

    def add(self, records: Sequence[Record], data: Sequence[files.Bytes]) -> list[str | None]:
        """End claims that were "mine" with the records' bytes. Returns the path of each, pinned as if
        "ready"; None where it couldn't be written as the disk is full: continue without keeping it.

        Raises:
            ConfigError: a record isn't claimed.
            DamagedError: bytes don't have their record's size or checksum. Nothing was added; `error.keys`
                says which to fetch again.
            CacheError: the folder can't be written. Nothing was added.
        """
        keys = [_digest(record) for record in records]
        unclaimed = [
            record.key for record, key in zip(records, keys, strict=True) if key not in self._fetching
        ]
        if unclaimed:
            raise ConfigError(f"add() of a record that this Cache has no claim to fetch: {unclaimed[0]}.")
        checksums = _checked(records, data)
        numbers = [self._fetching[key] for key in keys]
        paths: list[str | None] = []
        try:
            for number, content in zip(numbers, data, strict=True):
                place = self._member.path(number)
                paths.append(place if files.write(place, content) else None)
            there = [
                (checksum, number)
                for checksum, number, path in zip(checksums, numbers, paths, strict=True)
                if path
            ]
            gone = [(number,) for number, path in zip(numbers, paths, strict=True) if not path]
            with self._member.transaction() as connection:
                connection.executemany("UPDATE records SET fetcher = NULL, checksum = ? WHERE id = ?", there)
                connection.executemany(REMOVE, gone)
        except CacheError as error:
            for written in filter(None, paths):
                files.remove(written)
            if not isinstance(error, DiskFullError):
                raise
            self._member.change([(REMOVE, [(number,) for number in numbers])])
            paths = [None] * len(numbers)
        with self._member.lock:
            for key, number, path in zip(keys, numbers, paths, strict=True):
                del self._fetching[key]
                if path:
                    self._held[key] = number, 1
                    self._set_verified(number)
                else:
                    self._counts["not_kept"] += 1
        return paths

    def give_up(self, records: Sequence[Record]) -> None:
        """End claims that were "mine", of records that couldn't be fetched. Others are passed over."""
        with self._member.lock:
            numbers = [self._fetching.pop(_digest(record), 0) for record in records]
            self._member.change([(REMOVE, [(number,) for number in numbers if number])])

    def release(self, records: Sequence[Record], positions: Sequence[int | None]) -> None:
        """Unpin records that were "ready" or added, once for each time that they were. `positions[i]`: where
        `records[i]` is needed next; None: not as far as is known.

        Raises:
            ConfigError: a record isn't pinned.
        """
        again: list[tuple[Any, ...]] = []
        last: list[tuple[Any, ...]] = []
        with self._member.lock:
            keys = [_digest(record) for record in records]
            for key, times in Counter(keys).items():
                if self._held.get(key, (0, 0))[1] < times:
                    record = records[keys.index(key)]
                    raise ConfigError(f"release() of a record that this Cache hasn't pinned: {record.key}.")
            for key, position in zip(keys, positions, strict=True):
                number = self._held[key][0]
                if position is None:
                    last.append((number, self._member.number))
                else:
                    again.append((position, number, self._member.number))
            self._forget_pins(keys)
            self._member.change(
                [
                    ("UPDATE space SET ticks = ticks + 1", [()]),
                    (
                        "UPDATE uses SET pins = pins - 1, position = ? WHERE record = ? AND client = ?",
                        again,
                    ),
                    (UNPIN, last),
                    ("DELETE FROM uses WHERE record = ? AND client = ? AND pins = 0", last),
                ]
            )

    def stats(self) -> CacheStats:
        """See `CacheStats`."""
        with self._member.transaction() as connection:
            capacity, taken, records = connection.execute(
                "SELECT capacity, bytes, records FROM space"
            ).fetchone()
            return CacheStats(capacity=capacity, bytes=taken, records=records, **self._counts)

    def close(self) -> None:
        """Unpin everything, give up what is being fetched, and let the others forget what this one needs. For
        a process that was killed, the others do the same."""
        self._member.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # In another process: the same cache, another client.
        return type(self), (self._folder, self._capacity)

    def _forget_pins(self, keys: Iterable[bytes]) -> None:
        """One of each."""
        for key in keys:
            number, pins = self._held.pop(key)
            if pins > 1:
                self._held[key] = number, pins - 1

    def _is_verified(self, number: int) -> bool:
        return number >> 3 < len(self._verified) and bool(self._verified[number >> 3] >> (number & 7) & 1)

    def _set_verified(self, number: int) -> None:
        with self._member.lock:
            missing = (number >> 3) + 1 - len(self._verified)
            if missing > 0:
                self._verified += bytes(missing + len(self._verified) // 8)
            self._verified[number >> 3] |= 1 << (number & 7)


def _digest(record: Record) -> bytes:
    return blake2b(record.key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _requests(records: Sequence[Record], positions: Sequence[int]) -> list[Request]:
    return [
        Request(_digest(record), record, position)
        for record, position in zip(records, positions, strict=True)
    ]


def _checked(records: Sequence[Record], data: Sequence[files.Bytes]) -> list[int]:
    """The checksums of the data."""
    checksums = [zlib.crc32(content) for content in data]
    damaged = []
    for record, content, checksum in zip(records, data, checksums, strict=True):
        size = memoryview(content).nbytes
        if size != record.size:
            damaged.append((record, f"{size:,} bytes instead of {record.size:,}"))
        elif record.checksum is not None and checksum != record.checksum:
            damaged.append((record, f"CRC-32 {checksum:08x} instead of {record.checksum:08x}"))
    if damaged:
        raise DamagedError(
            f"{len(damaged)} of {len(records)} records came damaged, as {damaged[0][0].key}: {damaged[0][1]}."
            " Fetch again; if that doesn't help, the source has changed or is damaged.",
            tuple(record.key for record, _ in damaged),
        )
    return checksums
