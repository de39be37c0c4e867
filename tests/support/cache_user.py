"""A process that uses a cache as a loader does, for the tests: run as a script.

    cache_user.py FOLDER CAPACITY RECORDS BATCH SEED EPOCHS FETCHED

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


def need(
    cache: Cache, numbers: Sequence[int], positions: list[int], following: list[int], fetched: int
) -> None:
    """Get the records, look at them, and release them."""
    left = list(range(len(numbers)))
    while left:
        records = [record(numbers[i], size(numbers[i])) for i in left]
        claims = cache.claim(records, [positions[i] for i in left])
        mine = [(i, r) for i, r, claim in zip(left, records, claims, strict=True) if claim.state == "mine"]
        for i, _ in mine:
            os.write(fetched, f"{numbers[i]}\n".encode())
        paths = cache.add([r for _, r in mine], [content(numbers[i], size(numbers[i])) for i, _ in mine])
        ready = [(i, claim.path) for i, claim in zip(left, claims, strict=True) if claim.state == "ready"]
        ready += [(i, path) for (i, _), path in zip(mine, paths, strict=True)]
        for i, path in ready:
            assert path is not None
            assert Path(path).read_bytes() == content(numbers[i], size(numbers[i])), path
        cache.release(
            [record(numbers[i], size(numbers[i])) for i, _ in ready], [following[i] for i, _ in ready]
        )
        left = [i for i, claim in zip(left, claims, strict=True) if claim.state == "other"]
        if left:
            time.sleep(0.001)


def run(cache: Cache, records: int, batch: int, seed: int, epochs: int, fetched: int) -> None:
    orders = [Random(1000 * seed + epoch).sample(range(records), records) for epoch in range(epochs + 1)]
    for epoch in range(epochs):
        places = {number: (epoch + 1) * records + p for p, number in enumerate(orders[epoch + 1])}
        for begin in range(0, records, batch):
            numbers = orders[epoch][begin : begin + batch]
            positions = [epoch * records + begin + i for i in range(len(numbers))]
            need(cache, numbers, positions, [places[number] for number in numbers], fetched)


def main() -> None:
    folder, fetched = sys.argv[1], sys.argv[7]
    capacity, records, batch, seed, epochs = map(int, sys.argv[2:7])
    log = os.open(fetched, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    cache = Cache(Path(folder), capacity)
    sys.stdout.write("open\n")
    sys.stdout.flush()
    run(cache, records, batch, seed, epochs, log)
    cache.close()


if __name__ == "__main__":
    main()
