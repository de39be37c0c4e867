"""The needs of large machines and clusters: `python benchmarks/scale.py` prints the tables of docs/scale.md.

Arithmetic on figures that this repository measured (the newest records of `results/`) and on assumptions,
which are the arguments: change them, and the page with it (`--write`). Nothing here was run at that scale.
Prices are what Amazon lists for S3 Standard in us-east-1; requests per second and prefix are those of its
manual.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from typing import Any

import numpy as np

from headrace.order import Shuffled
from machine import ROOT, newest

PAGE = ROOT / "docs" / "scale.md"
BLOCK = re.compile(
    r"(?P<start><!-- table: benchmarks/scale\.py (?P<name>\w+) -->\n).*?(?P<end><!-- end of table -->)",
    re.DOTALL,
)
# Pipelines of `pipelines.py`: the cheapest native one, a costly one, an own dataset on the deferred rung.
PIPELINES = ("RandomResizedCrop, flip", "crop, RandAugment", "list dataset, Image.open")
LOADERS = ("torch", "headrace")
CORES = (16, 32, 64, 96, 128, 192)
CROP_BYTES = 3 * 224 * 224  # of a uint8 sample on its way to a GPU
LATENCY = 0.03  # seconds of a request


def measured() -> dict[str, float]:
    """Per image, from `results/`."""
    loaders = newest("loaders")
    index = newest("index-size")["index_bytes"]
    cache = newest("cache-rate-memory")["rows"]
    packing = newest("packing")["rows"][0]["runs"]
    rows = {(r["row"]["peer"], r["row"]["dtype"], r["row"]["threads"]): r for r in loaders["rows"]}
    pack = rows["headrace_pack", "uint8", 2]
    return {
        "bytes": loaders["pictures"]["mean_bytes"],
        "index": sum(size for name, size in index.items() if name != "entries"),
        "entries": index["entries"],
        "per_core": pack["median"] / pack["row"]["threads"],
        "pack_ms": statistics.median(run["cpu_ms_per_image"] for run in packing),
        "cache_us": max(r["claim_us"] for r in cache if r["epoch"] == 1),
    }


def per_core(name: str, loader: str) -> float:
    """Images per second and core of a pipeline, whose benchmark keeps all cores of its machine busy."""
    record = newest("pipelines")
    rate = statistics.median(record["pipelines"][name][loader])
    return float(rate / record["machine"]["cores_usable"])


def needs(args: Any) -> list[list[str]]:
    """Rows: a pipeline, its rate per core, and the cores that the GPUs of a machine need."""
    demand = args.gpus_per_node * args.rate
    rows = []
    for name in PIPELINES:
        rates = [per_core(name, loader) for loader in LOADERS]
        cores = [demand / (rate * args.efficiency) for rate in rates]
        rows.append([name, *(f"{each:,.0f}" for each in (*rates, *cores))])
    return rows


def machines(args: Any) -> list[list[str]]:
    """Rows: a machine's cores, and the images per second and GPU that those left over can load."""
    rows = []
    for cores in CORES:
        left = max(0, cores - args.gpus_per_node * args.cores_per_gpu)
        share = left * args.efficiency / args.gpus_per_node
        rates = [[f"{per_core(name, loader) * share:,.0f}" for loader in LOADERS] for name in PIPELINES]
        rows.append([str(cores), str(left), *map(" → ".join, rates)])
    return rows


def flows(args: Any) -> list[list[str]]:
    """Rows: what a machine moves per second for its GPUs, for some rates of a GPU."""
    rows = []
    for rate in sorted({args.rate, 2500, 5000}):
        images = rate * args.gpus_per_node
        read, copied = images * measured()["bytes"] / 1e9, images * CROP_BYTES / 1e9
        waiting = args.batches * 256 * CROP_BYTES * args.gpus_per_node / 1e9
        rows.append(
            [
                f"{rate:,}",
                f"{images:,}",
                f"{read:.2f} GB/s ({8 * read:.0f} Gbit/s)",
                f"{images * LATENCY:,.0f}",
                f"{copied:.2f} GB/s (float32: {4 * copied:.2f})",
                f"{waiting:.1f} GB (float32: {4 * waiting:.1f})",
            ]
        )
    return rows


def seen_before(nodes: int, epochs: int, samples: int = 125_000) -> float:
    """The share of a node's requests, over all epochs of a full shuffle, for samples that it had before."""
    order, had = Shuffled(samples), np.zeros(samples, bool)
    again = total = 0
    for epoch in range(epochs):
        mine, _ = order.at(np.arange(0, samples, nodes), 0, epoch)
        again += int(had[mine].sum())
        total += len(mine)
        had[mine] = True
    return again / total


def compute(args: Any) -> list[tuple[str, str, str]]:
    """Rows: what, how much, how that comes about."""
    m = measured()
    nodes = math.ceil(args.gpus / args.gpus_per_node)
    data = args.images * m["bytes"]
    rate = args.gpus * args.rate
    node_rate = args.gpus_per_node * args.rate
    epoch_seconds = args.images / rate
    share = data / nodes
    index, entries = args.images * m["index"], args.images * m["entries"]
    line = args.network * 1e9 / 8
    again = seen_before(nodes, args.epochs)
    gets = args.images * args.epochs
    window_gets = args.images / args.run
    egress = data * (args.regions - 1) / args.regions / 1e9 * args.egress_price
    cores = args.rate / m["per_core"]
    return [
        ("data", tb(data), f"{m['bytes']:,.0f} bytes an image"),
        ("shards", f"{data / 500e6:,.0f}", "of 500 MB"),
        (
            "packing",
            f"{args.images * m['pack_ms'] / 3.6e6:,.0f} core-hours",
            f"{m['pack_ms']:.2f} ms an image",
        ),
        ("index, without entry points", tb(index), f"{m['index']:.0f} bytes an image"),
        ("index, entry points", tb(entries), f"{m['entries']:,.0f} bytes an image"),
        ("an epoch", f"{epoch_seconds / 60:,.0f} min", f"{rate:,.0f} images/s over {nodes} nodes"),
        ("decoding", f"{cores:.2f} cores a GPU", f"{m['per_core']:,.0f} images/s a core"),
        (
            "network, cold",
            f"{node_rate * m['bytes'] * 8 / 1e9:.1f} Gbit/s a node",
            f"{node_rate:,} images/s a node",
        ),
        (
            "requests, full shuffle",
            f"{rate:,.0f} /s",
            f"one an image; {rate / args.regions / args.prefix_rate:.0f} prefixes a region at"
            f" {args.prefix_rate:,} /s",
        ),
        ("requests in flight", f"{node_rate * LATENCY:,.0f} a node", f"at {1000 * LATENCY:.0f} ms each"),
        (
            "requests, runs of shards",
            f"{rate / args.run:,.0f} /s",
            f"{args.run} images each: a window of whole shards",
        ),
        (
            "start-up: index without entry points",
            f"{index / line:,.0f} s a node",
            f"at {args.network} Gbit/s a node; with them {(index + entries) / line / 60:,.0f} min",
        ),
        (
            "cache, full shuffle over all nodes",
            f"{again:.1%} hits",
            f"over {args.epochs} epochs, were the cache endless: a node gets 1/{nodes} of the data each",
        ),
        (
            "cache, each node shuffles its own share",
            f"{min(1.0, args.cache * 1e12 / share) * (1 - 1 / args.epochs):.0%} hits",
            f"over {args.epochs} epochs; the share is {tb(share)}, the cache {args.cache} TB",
        ),
        (
            "cache, finding a record",
            f"{node_rate * m['cache_us'] / 1e6:.2f} cores a node",
            f"{m['cache_us']:.0f} µs a record; no process waits for another",
        ),
        (
            "storage",
            f"${args.regions * data / 1e9 * args.storage_price:,.0f} a month",
            f"a copy in each of {args.regions} regions",
        ),
        (
            "requests, cost",
            f"${gets * (1 - again) / 1e6 * args.get_price:,.0f}",
            f"{args.epochs} epochs, one an image; by runs of {args.run}"
            f" ${window_gets * args.epochs / 1e6 * args.get_price:,.0f}; own share, kept"
            f" ${args.images / 1e6 * args.get_price:,.0f}",
        ),
        (
            "between regions",
            f"${egress:,.0f} an epoch",
            f"were there one copy; copying it to the others once: ${egress * args.regions:,.0f}",
        ),
    ]


def tb(count: float) -> str:
    return f"{count / 1e12:,.2f} TB" if count >= 1e12 else f"{count / 1e9:,.0f} GB"


def table(headings: list[str], rows: Any) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows))


def drawn(args: Any) -> dict[str, str]:
    """The tables of the page, by name."""
    gpus = f"{args.gpus_per_node} GPUs at {args.rate:,}"
    need = ["pipeline", "torch, images/s and core", "Headrace", f"torch, cores for {gpus}", "Headrace"]
    have = ["cores", "for loading", *PIPELINES]
    flow = ["images/s and GPU", "images/s", "files from storage", "requests in flight to a store"]
    return {
        "need": table(need, needs(args)),
        "have": table(have, machines(args)),
        "flow": table([*flow, "uint8 crops to the GPUs", "batches in memory"], flows(args)),
        "cost": table(["what", "", "how it comes about"], compute(args)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", 1)[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--images", type=int, default=10**9)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--regions", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--rate", type=int, default=1000, help="images per second and GPU that training takes"
    )
    parser.add_argument("--network", type=float, default=100.0, help="Gbit/s of a node")
    parser.add_argument("--cache", type=float, default=8.0, help="TB of local disk a node")
    parser.add_argument("--run", type=int, default=50, help="images of a ranged read of 4 MB")
    parser.add_argument("--prefix-rate", type=int, default=5500, help="GETs per second and prefix")
    parser.add_argument("--get-price", type=float, default=0.40, help="dollars per million GETs")
    parser.add_argument("--storage-price", type=float, default=0.023, help="dollars per GB and month")
    parser.add_argument("--egress-price", type=float, default=0.02, help="dollars per GB between regions")
    parser.add_argument("--cores-per-gpu", type=int, default=1, help="that training itself keeps busy")
    parser.add_argument("--efficiency", type=float, default=0.8, help="of a core among many, to one of two")
    parser.add_argument("--batches", type=int, default=6, help="of 256 uint8 crops in flight for a GPU")
    parser.add_argument("--write", action="store_true", help="write the tables to docs/scale.md")
    args = parser.parse_args()
    tables = drawn(args)
    if args.write:
        text = BLOCK.sub(lambda m: f"{m['start']}{tables[m['name']]}\n{m['end']}", PAGE.read_text())
        PAGE.write_text(text)
    else:
        print(*tables.values(), sep="\n\n")


if __name__ == "__main__":
    main()
