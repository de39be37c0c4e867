"""Records for the tests of the cache, whose bytes follow from their numbers."""

from __future__ import annotations

import zlib
from pathlib import Path
from random import Random

from headrace.cache import Cache, Record

BLOCK = 4096


def content(number: int, size: int = 3000) -> bytes:
    """The bytes of record `number`."""
    return Random(number).randbytes(size)


def record(number: int, size: int = 3000, *, checksum: bool = True) -> Record:
    """Record `number`."""
    return Record(f"memory/{number}", size, zlib.crc32(content(number, size)) if checksum else None)


def put(cache: Cache, numbers: list[int], position: int = 0, size: int = 3000) -> list[str | None]:
    """Claim records that aren't there, add and keep them in hand; their paths."""
    records = [record(number, size) for number in numbers]
    assert [claim.state for claim in cache.claim(records, [position] * len(numbers))] == ["mine"] * len(
        numbers
    )
    return cache.add(records, [content(number, size) for number in numbers])


def states(cache: Cache, numbers: list[int], position: int = 0) -> list[str]:
    """Of claims, which are undone again."""
    records = [record(number) for number in numbers]
    claims = cache.claim(records, [position] * len(numbers))
    ready = [r for r, claim in zip(records, claims, strict=True) if claim.state == "ready"]
    cache.release(ready, [None] * len(ready))
    cache.give_up(records)
    return [claim.state for claim in claims]


def bytes_on_disk(folder: Path) -> int:
    """Of the records, in whole blocks."""
    total = 0
    for path in folder.glob("headrace-*/[0-9a-f][0-9a-f]/*"):
        try:
            total += max(1, -(-path.stat().st_size // BLOCK)) * BLOCK
        except FileNotFoundError:
            continue  # evicted meanwhile
    return total
