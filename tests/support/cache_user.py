"""A process that uses a cache as a loader does, for the tests: run as a script.

    cache_user.py FOLDER CAPACITY RECORDS BATCH SEED EPOCHS FETCHED [DATASET]

Each epoch needs all records in an order of its own. What it fetches is added to the file FETCHED, a line
each. Whatever is there is compared, byte by byte.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from headrace.cache import Cache
from support.cache_records import content, record

SIZES = (1, 3000, 4096, 9000)


def size(number: int) -> int:
    return SIZES[number % len(SIZES)]


def need(cache: Cache, numbers: Sequence[int], fetched: int, dataset: str) -> None:
    """Gets the records, and compares them."""
    missing = list(numbers)
    while missing:
        records = [record(number, size(number), dataset=dataset) for number in missing]
        claims = cache.claim(records)
        for number, claim in zip(missing, claims, strict=True):
            if claim.state in ("mine", "full"):
                os.write(fetched, f"{number}\n".encode())
        mine = [r for r, claim in zip(records, claims, strict=True) if claim.state == "mine"]
        cache.add(mine, [content(int(r.key), r.size) for r in mine])
        for number, claim in zip(missing, claims, strict=True):
            if claim.path is not None:
                assert Path(claim.path).read_bytes() == content(number, size(number)), claim.path
        missing = [n for n, claim in zip(missing, claims, strict=True) if claim.state == "other"]
        if missing:
            time.sleep(0.001)


def main() -> None:
    folder, fetched = sys.argv[1], sys.argv[7]
    capacity, records, batch, seed, epochs = map(int, sys.argv[2:7])
    dataset = sys.argv[8] if len(sys.argv) > 8 else "memory"
    log = os.open(fetched, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    cache = Cache(Path(folder), capacity)
    sys.stdout.write("open\n")
    sys.stdout.flush()
    for epoch in range(epochs):
        order = Random(1000 * seed + epoch).sample(range(records), records)
        for begin in range(0, records, batch):
            need(cache, order[begin : begin + batch], log, dataset)
    cache.close()


if __name__ == "__main__":
    main()
