"""How often the cache has what is needed: `python benchmarks/cache_hits.py`.

Real caches on disk, with records of one block each, driven by the orders of `headrace.order`: shuffled
epochs, each with a new key. The first epoch fills the cache; the rates are over those after it. Three are
compared at equal size: a cache that is told each record's next use, as Headrace's prefetcher does; one that
isn't, and so evicts what was unused the longest (LRU); and the bound that no cache can pass, counted apart.
Next to the shuffle stand the same shared by four ranks, each with its share of every epoch; a local shuffle,
within a tenth of 40 shards; two jobs that share one cache, each with a shuffle of its own, which say ten
times an epoch what they need of what is there (`Cache.expect`); and a job that is begun again for each epoch,
or, what comes to the same, one without a seed, which knows an epoch's order only once that begins: it says at
its beginning what it needs, or doesn't.
"""

from __future__ import annotations

import argparse
import heapq
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from headrace.cache import Cache, Record
from headrace.order import LocalShuffled, Order, Shuffled
from machine import describe

SHARES = (0.10, 0.25, 0.50, 0.75)
BLOCK = 4096
TOLD = 10  # times an epoch that each of several jobs says what it needs of what is there


def stream(order: Order, samples: int, epochs: int, seed: int) -> tuple[Any, Any]:
    """The samples of all epochs, and where each is needed next."""
    positions = np.arange(samples)
    needed = np.concatenate([order.at(positions, seed, epoch)[0] for epoch in range(epochs)])
    return needed, next_uses(needed, samples)


def next_uses(needed: Any, samples: int) -> Any:
    """For each place in `needed`, the next with the same sample; -1: none."""
    following = np.full(len(needed), -1)
    last = np.full(samples, -1)
    for position in range(len(needed) - 1, -1, -1):
        following[position] = last[needed[position]]
        last[needed[position]] = position
    return following


def hit_rate(
    streams: list[tuple[Any, Any]], samples: int, share: float, batch: int, ranks: int, known: bool
) -> float:
    """Of one cache that all `streams` share, taking turns, after their first epochs; the batches of each are
    shared among `ranks`."""
    hits = claims = 0
    with tempfile.TemporaryDirectory() as folder:
        capacity = int(samples * share) * BLOCK
        caches = [[Cache(folder, capacity) for _ in range(ranks)] for _ in streams]
        for begin in range(0, len(streams[0][0]), batch):
            for job, (needed, following) in zip(caches, streams, strict=True):
                cache = job[begin // batch % ranks]
                if known and len(streams) > 1 and begin // batch % (samples // batch // TOLD) == 0:
                    # Soonest last: it counts where a record comes twice.
                    ahead = range(min(begin + samples, len(needed)) - 1, begin - 1, -1)
                    cache.expect([Record(str(needed[p]), 1, None) for p in ahead], ahead)
                records = [Record(str(sample), 1, None) for sample in needed[begin : begin + batch]]
                states = [c.state for c in cache.claim(records, range(begin, begin + len(records)))]
                mine = [r for r, state in zip(records, states, strict=True) if state == "mine"]
                cache.add(mine, [b"."] * len(mine))
                held = [i for i, state in enumerate(states) if state in ("mine", "ready")]
                uses = [int(following[begin + i]) if known else -1 for i in held]
                cache.release([records[i] for i in held], [None if use < 0 else use for use in uses])
                if begin >= samples:
                    hits += states.count("ready")
                    claims += len(states)
        for cache in (cache for job in caches for cache in job):
            cache.close()
    return hits / claims


def begun_again(needed: Any, samples: int, share: float, batch: int, known: bool) -> float:
    """Of a cache whose job ends after each epoch; another goes on with what it left. After the first."""
    hits = 0
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(0, len(needed), samples):
            cache = Cache(folder, int(samples * share) * BLOCK)
            records = [Record(str(sample), 1, None) for sample in needed[epoch : epoch + samples]]
            if known:
                cache.expect(records, range(samples))
            for begin in range(0, samples, batch):
                some = records[begin : begin + batch]
                states = [c.state for c in cache.claim(some, range(begin, begin + len(some)))]
                mine = [r for r, state in zip(some, states, strict=True) if state == "mine"]
                cache.add(mine, [b"."] * len(mine))
                held = [r for r, state in zip(some, states, strict=True) if state in ("mine", "ready")]
                cache.release(held, [None] * len(held))
                hits += epoch > 0 and states.count("ready")
            cache.close()
    return hits / (len(needed) - samples)


def most_hits(streams: list[tuple[Any, Any]], samples: int, share: float, batch: int) -> float:
    """Of any cache that keeps what it fetches until the next (Belady's MIN); jobs take turns by the batch."""
    turns = [needed[at : at + batch] for at in range(0, len(streams[0][0]), batch) for needed, _ in streams]
    needed = np.concatenate(turns)
    following = next_uses(needed, samples)
    first = samples * len(streams)
    capacity, hits, held = int(samples * share), 0, set[int]()
    heap: list[tuple[int, int]] = []
    due: dict[int, int] = {}
    for position, (sample, after) in enumerate(zip(needed.tolist(), following.tolist(), strict=True)):
        if sample in held:
            hits += position >= first
        else:
            while len(held) >= capacity:
                use, old = heapq.heappop(heap)
                if due.get(old) == -use:
                    held.discard(old)
                    due.pop(old)
            held.add(sample)
        due[sample] = after if after >= 0 else len(needed)
        heapq.heappush(heap, (-due[sample], sample))
    return hits / (len(needed) - first)


def measure(
    name: str, orders: list[tuple[Order, int]], args: Any, ranks: int = 1, again: bool = False
) -> list[dict[str, Any]]:
    """A row for each size of cache; `orders`: with the seed, of each job. `again`: it ends after an epoch."""

    def rate(share: float, known: bool) -> float:
        if again:
            return begun_again(streams[0][0], args.samples, share, args.batch, known)
        return hit_rate(streams, args.samples, share, args.batch, ranks, known)

    streams = [stream(order, args.samples, args.epochs, seed) for order, seed in orders]
    rows = []
    for share in SHARES:
        row = {
            "order": name,
            "cache": share,
            "headrace": rate(share, known=True),
            "lru": rate(share, known=False),
            "bound": most_hits(streams, args.samples, share, args.batch),
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
    print(f"{'order':<28}{'cache':>8}{'known uses':>12}{'LRU':>10}{'bound':>10}")
    rows = [
        *measure("shuffle", [(Shuffled(args.samples), 0)], args),
        *measure("shuffle, 4 ranks", [(Shuffled(args.samples), 0)], args, ranks=4),
        *measure("local shuffle", [(local, 0)], args),
        *measure("shuffle, begun again", [(Shuffled(args.samples), 0)], args, again=True),
        *measure("two jobs, own shuffles", [(Shuffled(args.samples), 1), (Shuffled(args.samples), 2)], args),
    ]
    if args.json:
        about = {**vars(args), "json": str(args.json)}
        args.json.write_text(
            json.dumps({"about": about, "machine": describe(), "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
