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


def record(number: int, size: int = 3000, *, checksum: bool = True, dataset: str = "memory") -> Record:
    """Record `number`."""
    return Record(dataset, f"{number}", size, zlib.crc32(content(number, size)) if checksum else None)


def put(cache: Cache, numbers: list[int], dataset: str = "memory") -> list[str | None]:
    """Claims records that aren't there, and adds them; their paths."""
    records = [record(number, dataset=dataset) for number in numbers]
    assert states(cache, *records) == ["mine"] * len(numbers)
    return cache.add(records, [content(number) for number in numbers])


def states(cache: Cache, *records: Record) -> list[str]:
    """The states of claims."""
    return [claim.state for claim in cache.claim(records)]


def bytes_on_disk(folder: Path) -> int:
    """The bytes of the records, in whole blocks."""
    total = 0
    for path in folder.glob("datasets/*/*/*"):
        try:
            if path.suffix != ".claim":
                total += max(1, -(-path.stat().st_size // BLOCK)) * BLOCK
        except FileNotFoundError:
            continue  # evicted meanwhile
    return total
