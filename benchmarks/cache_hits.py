"""Measures how often the cache has what is needed: `python benchmarks/cache_hits.py`.

Real caches on disk, with records of one block each, driven by the orders of `headrace.order`: shuffled
epochs, each with a new key. The first epoch fills the cache; the rates are over those after it. Three are
compared at equal size: Headrace's cache, which fills up and then keeps what it has; one that evicts what was
unused the longest (LRU), simulated; and the bound that no cache can pass, counted apart. Next to the shuffle
stand the same shared by four ranks, each with its share of every epoch; a local shuffle, within a tenth of 40
shards; a job that is started again for each epoch; and two jobs that share one cache, each with a shuffle of
its own.
"""

from __future__ import annotations

import argparse
import heapq
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from headrace.cache import Cache, Record
from headrace.order import LocalShuffled, Order, Shuffled
from machine import describe, keep

SHARES = (0.10, 0.25, 0.50, 0.75)
BLOCK = 4096


def stream(order: Order, args: Any, seed: int) -> Any:
    """The samples of all epochs."""
    positions = np.arange(args.samples)
    return np.concatenate([order.at(positions, seed, epoch)[0] for epoch in range(args.epochs)])


def hits_of(cache: Cache, samples: Any) -> int:
    """The records of a batch that the cache has; it is given the others."""
    records = [Record("data", str(sample), 1, None) for sample in samples]
    states = [claim.state for claim in cache.claim(records)]
    mine = [record for record, state in zip(records, states, strict=True) if state == "mine"]
    cache.add(mine, [b"."] * len(mine))
    return states.count("ready")


def hit_rate(streams: list[Any], share: float, args: Any, ranks: int, again: bool) -> float:
    """The rate of one cache that all `streams` share, taking turns, after their first epochs. The batches of
    each are shared among `ranks`; `again`: a job ends after each epoch, and another one begins."""
    hits = claims = 0
    with tempfile.TemporaryDirectory() as folder:
        capacity = int(args.samples * share) * BLOCK
        jobs = [[Cache(folder, capacity) for _ in range(ranks)] for _ in streams]
        for begin in range(0, len(streams[0]), args.batch):
            if again and begin % args.samples == 0:
                for cache in jobs[0]:
                    cache.close()
                jobs[0] = [Cache(folder, capacity) for _ in range(ranks)]
            for job, needed in zip(jobs, streams, strict=True):
                batch = needed[begin : begin + args.batch]
                found = hits_of(job[begin // args.batch % ranks], batch)
                if begin >= args.samples:
                    hits += found
                    claims += len(batch)
        for cache in (cache for job in jobs for cache in job):
            cache.close()
    return hits / claims


def turns(streams: list[Any], batch: int) -> Any:
    """Returns what all jobs need, which take turns by the batch."""
    return np.concatenate(
        [needed[at : at + batch] for at in range(0, len(streams[0]), batch) for needed in streams]
    )


def lru_hits(needed: Any, capacity: int, first: int) -> float:
    """The rate of a cache that evicts what was unused the longest, from place `first` on."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for place, sample in enumerate(needed.tolist()):
        if sample in held:
            held.move_to_end(sample)
            hits += place >= first
        else:
            if len(held) >= capacity:
                held.popitem(last=False)
            held[sample] = None
    return hits / (len(needed) - first)


def most_hits(needed: Any, capacity: int, first: int) -> float:
    """The rate of any cache that keeps what it fetches until the next (Belady's MIN)."""
    following = np.full(len(needed), len(needed))
    last: dict[int, int] = {}
    for place in range(len(needed) - 1, -1, -1):
        following[place] = last.get(needed[place], len(needed))
        last[needed[place]] = place
    hits, heap = 0, list[tuple[int, int]]()
    due: dict[int, int] = {}
    for place, (sample, after) in enumerate(zip(needed.tolist(), following.tolist(), strict=True)):
        if sample in due:
            hits += place >= first
        while sample not in due and len(due) >= capacity:
            use, old = heapq.heappop(heap)
            if due.get(old) == -use:
                del due[old]
        due[sample] = after
        heapq.heappush(heap, (-after, sample))
    return hits / (len(needed) - first)


def measure(
    name: str, orders: list[tuple[Order, int]], args: Any, ranks: int = 1, again: bool = False
) -> list[dict[str, Any]]:
    """A row for each size of cache; `orders`: with the seed, of each job."""
    streams = [stream(order, args, seed) for order, seed in orders]
    needed, first = turns(streams, args.batch), args.samples * len(streams)
    rows = []
    for share in SHARES:
        capacity = int(args.samples * share)
        row = {
            "order": name,
            "cache": share,
            "headrace": hit_rate(streams, share, args, ranks, again),
            "lru": lru_hits(needed, capacity, first),
            "bound": most_hits(needed, capacity, first),
        }
        print(
            f"{name:<28}{share:>8.0%}{row['headrace']:>12.1%}{row['lru']:>10.1%}{row['bound']:>10.1%}",
            flush=True,
        )
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16, help="records claimed at a time")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    args = parser.parse_args()
    boundaries = range(0, args.samples + 1, args.samples // 40)
    local = LocalShuffled(list(boundaries), window=args.samples // 10)
    print(f"{'order':<28}{'cache':>8}{'headrace':>12}{'LRU':>10}{'bound':>10}")
    rows = [
        *measure("shuffle", [(Shuffled(args.samples), 0)], args),
        *measure("shuffle, 4 ranks", [(Shuffled(args.samples), 0)], args, ranks=4),
        *measure("local shuffle", [(local, 0)], args),
        *measure("shuffle, begun again", [(Shuffled(args.samples), 0)], args, again=True),
        *measure("two jobs, own shuffles", [(Shuffled(args.samples), 1), (Shuffled(args.samples), 2)], args),
    ]
    if args.json:
        about = {**vars(args), "json": str(args.json)}
        keep({"about": about, "machine": describe(), "rows": rows}, args.json)


if __name__ == "__main__":
    main()
