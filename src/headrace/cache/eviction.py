"""What to do without first: what is needed last (Belady: "A study of replacement algorithms for a
virtual-storage computer", IBM Systems Journal 1966), by the soonest use of all clients; and before that, what
no client is known to need.

With one client, or clients that each need other records next (the ranks of a job), the record found is the
one that is needed last of all. Where many clients need the same records in different orders it is the best
of some hundred candidates, those that one of them needs last: finding the very last would mean to look at
most of the index.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from headrace.cache.clients import forget

IDLE_AT_ONCE = 64
CANDIDATES = 256


class Victim(NamedTuple):
    """A record to do without: its number, its bytes on disk, and after how many samples it is needed;
    infinite where no client is known to need it."""

    record: int
    room: int
    distance: float


def victims(connection: sqlite3.Connection, wanted: int) -> Iterator[Victim]:
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


def _idle(connection: sqlite3.Connection) -> Iterator[Victim]:
    """Records that no client is known to need, the longest unused first."""
    while True:
        rows = connection.execute(
            "SELECT id, room FROM records WHERE users = 0 AND fetcher IS NULL ORDER BY touched LIMIT ?",
            [IDLE_AT_ONCE],
        ).fetchall()
        for record, room in rows:
            yield Victim(record, room, math.inf)
        if len(rows) < IDLE_AT_ONCE:
            return


def _needed_last(connection: sqlite3.Connection, wanted: int) -> list[Victim]:
    """Records that are there and not in hand, that which is needed last first; empty: there are none."""
    clients = connection.execute("SELECT id, clock FROM clients WHERE gone = 0").fetchall()
    each = max(wanted, CANDIDATES // len(clients)) if len(clients) > 1 else wanted
    found: dict[int, Victim] = {}
    # Whatever isn't among the candidates is needed sooner than this by any client that needs it.
    horizon = -math.inf
    for client, clock in clients:
        rows = connection.execute(CANDIDATE_ROWS, [client, clock, each]).fetchall()
        for record, room, fetcher, pins, distance, _ in rows:
            if fetcher is None and not pins:
                found[record] = Victim(record, room, distance)
        if len(rows) == each:
            horizon = max(horizon, min(row[-1] for row in rows) - clock)
    ranked = sorted(found.values(), key=lambda victim: victim.distance, reverse=True)
    certain = sum(victim.distance >= horizon for victim in ranked)
    return ranked[: max(certain, -(-len(ranked) // 4))]


# Of the records that client ?1 needs last: who has them in hand, the distance of the soonest use by any
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
