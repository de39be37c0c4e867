"""Measures records per second of the cache: `python benchmarks/cache_rate.py --folder DISK`.

Each process goes through all records in a shuffled order of its own, `--batch` at a time, as a loader does:
claims them, and adds what is its to fetch (the bytes are at hand: no network). The first epoch begins with
an empty cache; the second finds what `--share` allows it to. Rates are those of all processes together, by
the wall clock; the processor's time in microseconds, of a claim per record, of an addition per record added.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import tempfile
import time
import zlib
from pathlib import Path
from random import Random
from typing import Any

from headrace.cache import Cache, Record
from machine import describe, keep

STEPS = ("claim", "add")


def epoch(cache: Cache, records: list[Record], order: list[int], args: Any) -> dict[str, float]:
    """Goes through `order` once; seconds by the clock and of the processor for each step."""
    spent = dict.fromkeys([*STEPS, *(f"{step}_cpu" for step in STEPS)], 0.0)
    data = b"x" * args.size

    def timed(step: str, call: Any, *arguments: Any) -> Any:
        clock, cpu = time.perf_counter(), time.thread_time()
        result = call(*arguments)
        spent[step] += time.perf_counter() - clock
        spent[f"{step}_cpu"] += time.thread_time() - cpu
        return result

    added = 0
    for at in range(0, len(order), args.batch):
        left = list(range(at, min(at + args.batch, len(order))))
        while left:
            batch = [records[order[i]] for i in left]
            claims = timed("claim", cache.claim, batch)
            mine = [record for record, claim in zip(batch, claims, strict=True) if claim.state == "mine"]
            timed("add", cache.add, mine, [data] * len(mine))
            added += len(mine)
            left = [i for i, claim in zip(left, claims, strict=True) if claim.state == "other"]
    return {**spent, "records": len(order), "added": added}


def process(number: int, folder: str, args: Any, barrier: Any, results: Any) -> None:
    """Two epochs."""
    cache = Cache(folder, int(args.records * args.share * -(-args.size // 4096) * 4096))
    checksum = zlib.crc32(b"x" * args.size)
    # As those of a pack on S3.
    records = [
        Record("s3://bucket/imagenet/pack@0123456789abcdef", f"{i // 1000}:{i}", args.size, checksum)
        for i in range(args.records)
    ]
    orders = [Random(10 * number + e).sample(range(args.records), args.records) for e in range(2)]
    for e in range(2):
        barrier.wait()
        begin = time.perf_counter()
        spent = epoch(cache, records, orders[e], args)
        results.put((e, time.perf_counter() - begin, spent))
    barrier.wait()
    cache.close()


def measure(processes: int, args: Any) -> list[dict[str, float]]:
    """A row for each epoch."""
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(processes), context.Queue()
    folder = tempfile.mkdtemp(dir=args.folder)
    try:
        children = [
            context.Process(target=process, args=(number, folder, args, barrier, results))
            for number in range(processes)
        ]
        for child in children:
            child.start()
        found = [results.get(timeout=600) for _ in range(2 * processes)]
        for child in children:
            child.join()
    finally:
        shutil.rmtree(folder)
    return [row(e, processes, found) for e in range(2)]


def row(e: int, processes: int, found: list[Any]) -> dict[str, float]:
    mine = [(seconds, spent) for number, seconds, spent in found if number == e]
    total = {key: sum(spent[key] for _, spent in mine) for key in mine[0][1]}
    seconds = max(seconds for seconds, _ in mine)
    cpu = {
        f"{step}_us": 1e6 * total[f"{step}_cpu"] / max(1, total["added" if step == "add" else "records"])
        for step in STEPS
    }
    return {
        "processes": processes,
        "epoch": e,
        "records_per_second": total["records"] / seconds,
        "added_per_second": total["added"] / seconds,
        "claims_per_second": total["records"] / total["claim"] * processes,
        **cpu,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the cache is made")
    parser.add_argument("--records", type=int, default=5000, help="of the data set")
    parser.add_argument("--size", type=int, default=100_000, help="bytes of a record")
    parser.add_argument("--batch", type=int, default=64, help="records claimed at a time")
    parser.add_argument("--share", type=float, default=0.5, help="of the data that the cache holds")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--json", type=Path, help="also write the figures there")
    args = parser.parse_args()
    rows = [row for processes in args.processes for row in measure(processes, args)]
    columns = list(rows[0])
    print("".join(f"{name:>24}" for name in columns))
    for found in rows:
        print("".join(f"{found[name]:>24,.0f}" for name in columns))
    if args.json:
        about = {**vars(args), "json": str(args.json), "load_before": os.getloadavg()[0]}
        keep({"about": about, "machine": describe(), "rows": rows}, args.json)


if __name__ == "__main__":
    main()
