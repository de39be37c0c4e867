"""The cost of an order: ours at a billion samples beside torch's RandomSampler; and the cost of locality.

python benchmarks/order.py [--out FILE.json]

Each row of the first table runs in a process of its own, five times; medians are printed. Memory is what the
process's peak grows by while the order is made and followed.
"""

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

import machine
from headrace.order import LocalShuffled, Order, Shuffled

BATCH = 4096
BATCHES = 200
REPETITIONS = 5
ROWS = (("headrace", 10**9), ("headrace", 10**7), ("torch", 10**7))

# 1,000 shards of 1,000 samples, in batches of 256.
SHARD, SHARDS, LOCAL_BATCH = 1000, 1000, 256
WINDOWS = (4, 16, 64, 256, SHARDS)


def peak() -> int:
    """Returns the peak memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def batches_of(order: Order, begin: int) -> Iterator[np.ndarray]:
    for first in range(begin, order.pass_size, BATCH):
        yield order.at(np.arange(first, min(first + BATCH, order.pass_size)), 1, 0)[0]


def measure(kind: str, samples: int) -> dict:
    """One row, in this process: milliseconds and megabytes."""
    if kind == "torch":
        from torch.utils.data import BatchSampler, RandomSampler

        def begin(skip: int) -> Iterable:
            sampler = iter(RandomSampler(range(samples)))
            return iter(BatchSampler(itertools.islice(sampler, skip, None), BATCH, False))

    else:

        def begin(skip: int) -> Iterable:
            return batches_of(Shuffled(samples), skip)

    before, start = peak(), time.perf_counter()
    following = iter(begin(0))
    next(following)
    first = time.perf_counter() - start
    times = []
    for _ in range(BATCHES):
        start = time.perf_counter()
        next(following)
        times.append(time.perf_counter() - start)
    memory = peak() - before
    start = time.perf_counter()
    next(iter(begin(samples // 2)))
    resumed = time.perf_counter() - start
    return {
        "first_ms": first * 1e3,
        "batch_ms": statistics.median(times) * 1e3,
        "batch_max_ms": max(times) * 1e3,
        "resume_ms": resumed * 1e3,
        "memory_mb": memory / 1e6,
    }


def locality() -> list[dict]:
    """Measures how well a local shuffle mixes, by the window in shards; the last row is a full shuffle."""
    rows = []
    for window in WINDOWS:
        boundaries = np.arange(SHARDS + 1) * SHARD
        order = LocalShuffled(boundaries, window * SHARD)
        indices = order.at(np.arange(order.pass_size), 1, 0)[0]
        shards = indices // SHARD
        whole = shards[: len(shards) // LOCAL_BATCH * LOCAL_BATCH].reshape(-1, LOCAL_BATCH)
        place = np.empty(len(indices))
        place[indices] = np.arange(len(indices))
        mates = np.abs(np.diff(place.reshape(SHARDS, SHARD)[:, ::7], axis=1)).mean()
        classes = whole * 10 // SHARDS  # shards sorted by class, ten classes
        share = np.stack([(classes == c).mean(axis=1) for c in range(10)])
        rows.append(
            {
                "window_shards": window,
                "shards_in_batch": float(np.mean([len(np.unique(batch)) for batch in whole[::10]])),
                "distance_of_shard_mates": mates / (len(indices) / 3),
                "class_distance": float(np.abs(share - 0.1).sum(axis=0).mean() / 2),
            }
        )
    return rows


def in_a_process(kind: str, samples: int) -> dict:
    command = [sys.executable, __file__, "--row", kind, str(samples)]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(REPETITIONS)
    ]
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {"kind": kind, "samples": samples, **medians, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write everything here as JSON")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        print(json.dumps(measure(given.row[0], int(given.row[1]))))
        return
    rows = [in_a_process(*row) for row in ROWS]
    headings = ("first ms", "4,096 ms", "max ms", "half ms", "MB")
    print(f"{'order':<10} {'samples':>14} {' '.join(f'{heading:>9}' for heading in headings)}")
    for r in rows:
        print(
            f"{r['kind']:<10} {r['samples']:>14,} {r['first_ms']:>9.2f} {r['batch_ms']:>9.3f}"
            f" {r['batch_max_ms']:>9.3f} {r['resume_ms']:>9.2f} {r['memory_mb']:>9.1f}"
        )
    mixed = locality()
    print(f"\n{'window':>7} {'shards in a batch':>18} {'distance of mates':>18} {'class distance':>15}")
    for r in mixed:
        print(
            f"{r['window_shards']:>7} {r['shards_in_batch']:>18.1f} {r['distance_of_shard_mates']:>18.3f}"
            f" {r['class_distance']:>15.3f}"
        )
    if given.out:
        machine.keep({"machine": machine.describe(), "orders": rows, "locality": mixed}, given.out)


if __name__ == "__main__":
    main()
