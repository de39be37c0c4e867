"""Answering claims within one transaction of the index: who uses the cache, and what is evicted."""

from __future__ import annotations

import fcntl
import math
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import NamedTuple

from headrace.cache import files
from headrace.cache.records import Record, State
from headrace.errors import CacheError, ConfigError

BOOT = Path("/proc/sys/kernel/random/boot_id")  # another one each time that the machine starts
CHECK_SECONDS = 1.0
FORGOTTEN_AT_ONCE = 1000
CLOCK = "SELECT clock FROM clients WHERE id = ?"
ADVANCE = "UPDATE clients SET clock = max(clock, ?) WHERE id = ?"


class Clients:
    """The clients of the cache whose files are under `root`.

    Attributes:
        own: the number of this process's client, which needs no proof that it lives; 0 before it has joined.
    """

    def __init__(self, root: str) -> None:
        self.own = 0
        self._root = root
        self._checked_at = 0.0

    def join(self, connection: Connection, capacity: int) -> tuple[int, int]:
        """A new client's number, and a descriptor: as long as it is open, the client lives.

        Raises:
            ConfigError: another client lives that uses another capacity.
        """
        self.remove_dead(connection)
        (present,) = connection.execute("SELECT capacity FROM space").fetchone()
        other = connection.execute("SELECT pid FROM clients WHERE gone = 0").fetchone()
        if other and present != capacity:
            raise ConfigError(
                f"capacity ({capacity:,}) must be {present:,} bytes, with which process {other[0]} uses the"
                f" cache in {os.path.dirname(self._root)} now. Name the same capacity, or another folder."
            )
        connection.execute("UPDATE space SET capacity = ?", [capacity])
        if not other:
            self._remove_strays(connection)
        number = int(connection.execute("INSERT INTO clients (pid) VALUES (?)", [os.getpid()]).lastrowid or 0)
        os.makedirs(os.path.dirname(self._path(number)), exist_ok=True, mode=0o700)
        lock = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise CacheError(
                f"The cache can't lock {self._path(number)} ({error.strerror}). Its folder must be on a local"
                " disk."
            ) from error
        self.own = number
        return number, lock

    def _remove_strays(self, connection: Connection) -> None:
        """Files that the index doesn't know: a power failure can take its latest changes back, not those of
        the folders."""
        boot = BOOT.read_text() if BOOT.exists() else ""
        (before,) = connection.execute("SELECT boot FROM space").fetchone()
        if before and before != boot:
            for number in files.numbers_there(self._root):
                if not connection.execute("SELECT 1 FROM records WHERE id = ?", [number]).fetchone():
                    self.remove_file(number)
        connection.execute("UPDATE space SET boot = ?", [boot])

    def lives(self, number: int) -> bool:
        """Whether client `number` is open, in a process that lives."""
        try:
            lock = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def remove_dead(self, connection: Connection) -> bool:
        """Take back what dead clients have pinned or are fetching; whether there was one."""
        self._checked_at = time.monotonic()
        clients = connection.execute("SELECT id FROM clients WHERE gone = 0").fetchall()
        dead = [number for (number,) in clients if number != self.own and not self.lives(number)]
        for number in dead:
            self.release_client(connection, number)
        return bool(dead)

    def remove_dead_at_times(self, connection: Connection) -> None:
        """`remove_dead`, unless it was done a moment ago."""
        if time.monotonic() - self._checked_at > CHECK_SECONDS:
            self.remove_dead(connection)

    def release_client(self, connection: Connection, number: int) -> None:
        """Unpin what client `number` has pinned and remove what it was fetching. `forget` does the rest."""
        for (record,) in connection.execute("SELECT id FROM records WHERE fetcher = ?", [number]).fetchall():
            self.remove_file(record)
        connection.execute("DELETE FROM records WHERE fetcher = ?", [number])
        connection.execute("UPDATE uses SET pins = 0 WHERE client = ? AND pins > 0", [number])
        connection.execute("UPDATE clients SET gone = 1 WHERE id = ?", [number])
        files.remove(self._path(number))

    def remove_file(self, record: int) -> None:
        """That of record `record`, where it is there."""
        files.remove(files.path_of(self._root, record))

    def _path(self, number: int) -> str:
        return f"{self._root}/clients/{number}"


def forget(connection: Connection) -> bool:
    """Forget some of what clients need that are gone; whether there was any. A few at a time: it can be
    millions, and nobody else gets at the index meanwhile."""
    gone = connection.execute("SELECT id FROM clients WHERE gone = 1 LIMIT 1").fetchone()
    if gone is None:
        return False
    if not _delete_uses(connection, gone[0], 1 << 62, FORGOTTEN_AT_ONCE):
        connection.execute("DELETE FROM clients WHERE id = ?", gone)
    return True


def forget_passed(connection: Connection, number: int, at_most: int) -> int:
    """Forget uses that client `number` named and has passed since: those of other ranks of its job, or of an
    epoch that was left. Returns how many."""
    (clock,) = connection.execute(CLOCK, [number]).fetchone()
    return _delete_uses(connection, number, clock, at_most)


def _delete_uses(connection: Connection, number: int, before: int, at_most: int) -> int:
    deleted = connection.execute(
        "DELETE FROM uses WHERE client = ?1 AND record IN (SELECT record FROM uses WHERE client = ?1"
        " AND pins = 0 AND position < ?2 ORDER BY position LIMIT ?3)",
        [number, before, at_most],
    )
    return deleted.rowcount


IDLE_AT_ONCE = 64
CANDIDATES = 256


class EvictionCandidate(NamedTuple):
    """A record to do without: its number, its bytes on disk, and after how many samples it is needed;
    infinite where no client is known to need it."""

    record: int
    room: int
    distance: float


def eviction_candidates(connection: sqlite3.Connection, wanted: int) -> Iterator[EvictionCandidate]:
    """What to evict, in this order. Whoever takes one removes it before taking the next. `wanted`: how many
    will be taken, roughly."""
    while True:
        yield from _idle(connection)
        if forget(connection):
            continue
        found = _needed_last(connection, wanted)
        if not found:
            return
        yield from found


def _idle(connection: sqlite3.Connection) -> Iterator[EvictionCandidate]:
    """Records that no client is known to need, the longest unused first."""
    while True:
        rows = connection.execute(
            "SELECT id, room FROM records WHERE users = 0 AND fetcher IS NULL ORDER BY touched LIMIT ?",
            [IDLE_AT_ONCE],
        ).fetchall()
        for record, room in rows:
            yield EvictionCandidate(record, room, math.inf)
        if len(rows) < IDLE_AT_ONCE:
            return


def _needed_last(connection: sqlite3.Connection, wanted: int) -> list[EvictionCandidate]:
    """Records that are there and not pinned, that which is needed last first; empty: there are none."""
    clients = connection.execute("SELECT id, clock FROM clients WHERE gone = 0").fetchall()
    each = max(wanted, CANDIDATES // len(clients)) if len(clients) > 1 else wanted
    found: dict[int, EvictionCandidate] = {}
    # Whatever isn't among the candidates is needed sooner than this by any client that needs it.
    horizon = -math.inf
    for client, clock in clients:
        rows = connection.execute(CANDIDATE_ROWS, [client, clock, each]).fetchall()
        for record, room, fetcher, pins, distance, _ in rows:
            if fetcher is None and not pins:
                found[record] = EvictionCandidate(record, room, distance)
        if len(rows) == each:
            horizon = max(horizon, min(row[-1] for row in rows) - clock)
    ranked = sorted(found.values(), key=lambda candidate: candidate.distance, reverse=True)
    certain = sum(candidate.distance >= horizon for candidate in ranked)
    return ranked[: max(certain, -(-len(ranked) // 4))]


# Of the records that client ?1 needs last: who has them pinned, the distance of the soonest use by any
# client, and the position of this client's.
CANDIDATE_ROWS = """
WITH far (record, position) AS (
    SELECT record, position FROM uses WHERE client = ?1 AND pins = 0 AND position >= ?2
    ORDER BY position DESC LIMIT ?3
)
SELECT records.id, records.room, records.fetcher,
    MAX(uses.pins),
    MIN(CASE WHEN uses.position >= clients.clock THEN uses.position - clients.clock END),
    far.position
FROM far
JOIN records ON records.id = far.record
JOIN uses ON uses.record = far.record
JOIN clients ON clients.id = uses.client
WHERE clients.gone = 0
GROUP BY records.id
"""


PIN = """
INSERT INTO uses VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET position = excluded.position, pins = pins + excluded.pins
"""
UNPIN_KEY = (
    "UPDATE uses SET pins = pins - 1 WHERE client = ? AND record = (SELECT id FROM records WHERE key = ?)"
)
UNPIN = "UPDATE uses SET pins = pins - 1 WHERE record = ? AND client = ?"


class Request(NamedTuple):
    """A record that is claimed, by the digest of its key, and the position that it is needed at."""

    key: bytes
    record: Record
    position: int


class Answer(NamedTuple):
    """What becomes of a request.

    Attributes:
        state: see `Claim`.
        number: of the record, with "ready" and "mine"; else 0.
        checksum: CRC-32 that the file must have, with "ready".
    """

    state: State
    number: int = 0
    checksum: int | None = None


class Claiming:
    """The claims of client `number`, answered through `connection`.

    Attributes:
        evictions: records that were removed to make room.
        dropped: records that were removed because they aren't what they should be.
    """

    def __init__(self, connection: Connection, clients: Clients, number: int) -> None:
        self._connection = connection
        self._run = connection.execute
        self._clients = clients
        self._number = number
        self.evictions = 0
        self.dropped = 0

    def answer(self, requests: list[Request], damaged: set[int]) -> list[Answer]:
        """One for each. `damaged`: numbers of records that were "ready" for these very requests, but whose
        files turned out to be damaged."""
        clock = min(request.position for request in requests)
        self._run(ADVANCE, [clock, self._number])
        forget(self._connection)
        if damaged:
            self._connection.executemany(UNPIN_KEY, [(self._number, request.key) for request in requests])
        # All that is there is pinned before anything is evicted.
        answers = [self._find(request, damaged) for request in requests]
        if None in answers:
            forget_passed(self._connection, self._number, 2 * len(requests))
            self._clients.remove_dead_at_times(self._connection)
            self._reserve(requests, answers)
            if None in answers and self._clients.remove_dead(self._connection):
                self._reserve(requests, answers)
        return [answer or Answer("full") for answer in answers]

    def _find(self, request: Request, damaged: set[int]) -> Answer | None:
        """Pin the record; None: it isn't there."""
        row = self._run(
            "SELECT id, size, checksum, fetcher FROM records WHERE key = ?", [request.key]
        ).fetchone()
        if row is None:
            return None
        number, size, checksum, fetcher = row
        if fetcher is not None:
            if fetcher == self._number:
                return Answer("other")
            if not self._clients.lives(fetcher):
                self._clients.release_client(self._connection, fetcher)
                return None
            # Not pinned, but known to be needed once it is there.
            self._run(PIN, [number, self._number, request.position, 0])
            return Answer("other")
        expected = (
            request.record.size,
            checksum if request.record.checksum is None else request.record.checksum,
        )
        if number in damaged or (size, checksum) != expected:
            (pins,) = self._run("SELECT max(pins) FROM uses WHERE record = ?", [number]).fetchone()
            if pins:
                return Answer("full")
            self._remove(number)
            self.dropped += 1
            return None
        self._run(PIN, [number, self._number, request.position, 1])
        return Answer("ready", number, checksum)

    def _reserve(self, requests: list[Request], answers: list[Answer | None]) -> None:
        """Answer those not answered yet by "mine", or "other" where a record comes again, as far as there is
        room."""
        capacity, taken, clock = self._run(
            "SELECT capacity, bytes, clock FROM space, clients WHERE id = ?", [self._number]
        ).fetchone()
        free = capacity - taken
        mine = {requests[row].key for row, answer in enumerate(answers) if answer and answer.state == "mine"}
        rows = [row for row, answer in enumerate(answers) if answer is None]
        rows.sort(key=lambda row: requests[row].position)
        candidates = eviction_candidates(self._connection, len(rows))
        candidate: EvictionCandidate | None = None
        for row in rows:
            key, record, position = requests[row]
            if key in mine:
                answers[row] = Answer("other")
                continue
            room = files.room(record.size)
            if room > capacity:
                continue
            while free < room:
                # One that was too good to be taken for a record is kept for the next.
                candidate = candidate or next(candidates, None)
                if candidate is None or candidate.distance <= position - clock:
                    break
                self._remove(candidate.record)
                self.evictions += 1
                free += candidate.room
                candidate = None
            else:
                free -= room
                answers[row] = Answer("mine", self._insert(requests[row], room))
                mine.add(key)

    def _insert(self, request: Request, room: int) -> int:
        inserted = self._run(
            "INSERT INTO records (key, size, room, checksum, fetcher) VALUES (?, ?, ?, ?, ?)",
            [request.key, request.record.size, room, request.record.checksum, self._number],
        )
        number = int(inserted.lastrowid or 0)
        self._run(PIN, [number, self._number, request.position, 1])
        return number

    def _remove(self, number: int) -> None:
        # Within the transaction: whoever is given the room finds it free. If the transaction fails, the index
        # has a record without a file, which the next claim of it notices.
        self._clients.remove_file(number)
        self._run("DELETE FROM records WHERE id = ?", [number])
