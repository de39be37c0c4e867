"""Answering claims, within one transaction of the index."""

from __future__ import annotations

from sqlite3 import Connection
from typing import NamedTuple

from headrace.cache import files
from headrace.cache.clients import ADVANCE, Clients, forget, forget_passed
from headrace.cache.eviction import Victim, victims
from headrace.cache.records import Record, State

PIN = """
INSERT INTO uses VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET position = excluded.position, pins = pins + excluded.pins
"""
UNPIN_KEY = (
    "UPDATE uses SET pins = pins - 1 WHERE client = ? AND record = (SELECT id FROM records WHERE key = ?)"
)
UNPIN = "UPDATE uses SET pins = pins - 1 WHERE record = ? AND client = ?"


class Wish(NamedTuple):
    """A record that is claimed, by the digest of its key, and the position that it is needed at."""

    key: bytes
    record: Record
    position: int


class Answer(NamedTuple):
    """What becomes of a wish.

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

    def answer(self, wishes: list[Wish], damaged: set[int]) -> list[Answer]:
        """One for each. `damaged`: numbers of records that were "ready" for these very wishes, but whose
        files turned out to be damaged."""
        clock = min(wish.position for wish in wishes)
        self._run(ADVANCE, [clock, self._number])
        forget(self._connection)
        if damaged:
            self._connection.executemany(UNPIN_KEY, [(self._number, wish.key) for wish in wishes])
        # All that is there is pinned before anything is evicted.
        answers = [self._find(wish, damaged) for wish in wishes]
        if None in answers:
            forget_passed(self._connection, self._number, 2 * len(wishes))
            self._clients.bury_at_times(self._connection)
            self._reserve(wishes, answers)
            if None in answers and self._clients.bury(self._connection):
                self._reserve(wishes, answers)
        return [answer or Answer("full") for answer in answers]

    def _find(self, wish: Wish, damaged: set[int]) -> Answer | None:
        """Pin the record; None: it isn't there."""
        row = self._run(
            "SELECT id, size, checksum, fetcher FROM records WHERE key = ?", [wish.key]
        ).fetchone()
        if row is None:
            return None
        number, size, checksum, fetcher = row
        if fetcher is not None:
            if fetcher == self._number:
                return Answer("other")
            if not self._clients.lives(fetcher):
                self._clients.dismiss(self._connection, fetcher)
                return None
            # Not pinned, but known to be needed once it is there.
            self._run(PIN, [number, self._number, wish.position, 0])
            return Answer("other")
        expected = (wish.record.size, checksum if wish.record.checksum is None else wish.record.checksum)
        if number in damaged or (size, checksum) != expected:
            (pins,) = self._run("SELECT max(pins) FROM uses WHERE record = ?", [number]).fetchone()
            if pins:
                return Answer("full")
            self._remove(number)
            self.dropped += 1
            return None
        self._run(PIN, [number, self._number, wish.position, 1])
        return Answer("ready", number, checksum)

    def _reserve(self, wishes: list[Wish], answers: list[Answer | None]) -> None:
        """Answer those not answered yet by "mine", or "other" where a record comes again, as far as there is
        room."""
        capacity, taken, clock = self._run(
            "SELECT capacity, bytes, clock FROM space, clients WHERE id = ?", [self._number]
        ).fetchone()
        free = capacity - taken
        mine = {wishes[row].key for row, answer in enumerate(answers) if answer and answer.state == "mine"}
        rows = [row for row, answer in enumerate(answers) if answer is None]
        rows.sort(key=lambda row: wishes[row].position)
        candidates = victims(self._connection, len(rows))
        victim: Victim | None = None
        for row in rows:
            key, record, position = wishes[row]
            if key in mine:
                answers[row] = Answer("other")
                continue
            room = files.room(record.size)
            if room > capacity:
                continue
            while free < room:
                # One that was too good to be taken for a record is kept for the next.
                victim = victim or next(candidates, None)
                if victim is None or victim.distance <= position - clock:
                    break
                self._remove(victim.record)
                self.evictions += 1
                free += victim.room
                victim = None
            else:
                free -= room
                answers[row] = Answer("mine", self._insert(wishes[row], room))
                mine.add(key)

    def _insert(self, wish: Wish, room: int) -> int:
        inserted = self._run(
            "INSERT INTO records (key, size, room, checksum, fetcher) VALUES (?, ?, ?, ?, ?)",
            [wish.key, wish.record.size, room, wish.record.checksum, self._number],
        )
        number = int(inserted.lastrowid or 0)
        self._run(PIN, [number, self._number, wish.position, 1])
        return number

    def _remove(self, number: int) -> None:
        # Within the transaction: whoever is given the room finds it free. If the transaction fails, the index
        # has a record without a file, which the next claim of it notices.
        self._clients.remove_file(number)
        self._run("DELETE FROM records WHERE id = ?", [number])
