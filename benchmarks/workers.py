"""Batches of a Python dataset from worker processes: Headrace against torch, with the same number of workers.

Samples of 1 kB, 150 kB and 2 MB that cost next to nothing to make, so that what is measured is transport: the
worst case for a loader. Epochs of both loaders alternate in one process; the medians of each are given, and
the median of the ratios of neighbours. "First batch" is the time from iter() to the first batch, with the
start of the workers; "steady" is the rate from the third batch on.

    python benchmarks/workers.py [--rounds 7] [--output benchmarks/results/workers.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import headrace

WORKERS, BATCH = 2, 32
SIZES = {"1 kB": 1000, "150 kB": 150_000, "2 MB": 2_000_000}
BATCHES = {"1 kB": 400, "150 kB": 120, "2 MB": 24}


class Rows(Dataset[Any]):
    """Samples of `nbytes` bytes, copied from memory."""

    def __init__(self, nbytes: int, size: int) -> None:
        self.row = torch.zeros(nbytes, dtype=torch.uint8)
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.row.clone(), index


def epoch(loader: Any) -> tuple[float, float]:
    """Seconds to the first batch; batches a second from the third on."""
    start = time.perf_counter()
    first, third, count = 0.0, 0.0, 0
    for count, (images, labels) in enumerate(loader, 1):
        now = time.perf_counter() - start
        first = first or now
        if count == 3:
            third = now
        assert images[0, 0] == 0
        assert int(labels[0]) == (count - 1) * BATCH
        last = now
    return first, (count - 3) / (last - third)


def compare(sample: str, method: str, rounds: int) -> dict[str, Any]:
    """One row of the table."""
    dataset = Rows(SIZES[sample], BATCH * BATCHES[sample])
    options: dict[str, Any] = {
        "batch_size": BATCH,
        "num_workers": WORKERS,
        "multiprocessing_context": method,
    }
    loaders = {
        "headrace": headrace.DataLoader(dataset, **options),
        "torch": DataLoader(dataset, **options),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
    for i in range(rounds):
        for name in sorted(loaders, reverse=i % 2 == 1):
            times[name].append(epoch(loaders[name]))
    row: dict[str, Any] = {"sample": sample, "start": method}
    for name, measured in times.items():
        row[name] = {
            "first_batch_s": statistics.median(first for first, _ in measured),
            "batches_per_s": statistics.median(rate for _, rate in measured),
        }
    pairs = list(zip(times["headrace"], times["torch"], strict=True))
    row["first_batch_speedup"] = statistics.median(theirs[0] / ours[0] for ours, theirs in pairs)
    row["steady_speedup"] = statistics.median(ours[1] / theirs[1] for ours, theirs in pairs)
    row["steady_speedup_range"] = [f(ours[1] / theirs[1] for ours, theirs in pairs) for f in (min, max)]
    return row


def main() -> None:
    """Measures, prints a table, and keeps the figures where --output says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--start", nargs="+", default=["fork", "spawn"])
    parser.add_argument("--samples", nargs="+", default=list(SIZES))
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    print(f"{'sample':8} {'start':6} {'ours/s':>9} {'torch/s':>9} {'steady':>8} {'first batch':>12}")
    for method in arguments.start:
        for sample in arguments.samples:
            row = compare(sample, method, arguments.rounds if method == "fork" else 3)
            rows.append(row)
            print(
                f"{sample:8} {method:6} {row['headrace']['batches_per_s']:9.1f}"
                f" {row['torch']['batches_per_s']:9.1f} {row['steady_speedup']:7.2f}x"
                f" {row['first_batch_speedup']:11.2f}x",
                flush=True,
            )
    if arguments.output is not None:
        kept = {"torch": torch.__version__, "workers": WORKERS, "batch_size": BATCH, "rows": rows}
        arguments.output.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
