"""Time to the first batch of worker processes that don't start by fork.

The dataset is a list of a million (path, label) pairs, as ImageFolder keeps it, and an array of a million
labels; a sample costs nothing. torch pickles the dataset once for each worker, one after the other, each
through a pipe that is read only once the worker runs; Headrace pickles it once into memory that all of them
read at the same time. Each run is a process of its own: python benchmarks/worker_start.py
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

import machine


class Listed(Dataset[int]):
    def __init__(self, size: int) -> None:
        self.samples = [
            (f"/data/train/n{i % 1000:08}/n{i % 1000:08}_{i:07}.JPEG", i % 1000) for i in range(size)
        ]
        self.labels = np.arange(size)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        return self.samples[index][1]


def first_batch(kind: str, size: int, workers: int, method: str) -> tuple[float, float]:
    """Seconds to the first batch, and to one from every worker."""
    dataset = Listed(size)
    options: dict[str, Any] = {"batch_size": 32, "num_workers": workers, "multiprocessing_context": method}
    if kind == "headrace":
        import headrace

        loader: Any = headrace.DataLoader(dataset, worker_kind="process", **options)
    else:
        loader = torch.utils.data.DataLoader(dataset, **options)
    start = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - start
    for _ in range(workers - 1):
        next(batches)
    return first, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--method", default="spawn", choices=["spawn", "forkserver", "fork"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--one", choices=["torch", "headrace"], help="one run, in this process")
    parser.add_argument("--json", type=Path, help="write all runs here")
    given = parser.parse_args()
    if given.one:
        print(*first_batch(given.one, given.size, given.workers, given.method))
        return
    settings = ["--size", str(given.size), "--workers", str(given.workers), "--method", given.method]
    results: dict[str, list[list[float]]] = {"torch": [], "headrace": []}
    for _ in range(given.runs):  # in turn: what else the machine does falls on both
        for kind, runs in results.items():
            command = [sys.executable, "-W", "ignore", __file__, "--one", kind, *settings]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs.append([float(word) for word in done.stdout.split()])
    print(f"{given.size:,} samples, {given.workers} workers, {given.method}; seconds, median (least to most)")
    for kind, runs in results.items():
        for name, seconds in zip(
            ("first batch", "a batch of each worker"), zip(*runs, strict=True), strict=True
        ):
            print(
                f"{kind:>9} {name:>22}: {statistics.median(seconds):6.2f}"
                f" ({min(seconds):.2f} to {max(seconds):.2f})"
            )
    if given.json:
        about = {"size": given.size, "workers": given.workers, "method": given.method}
        machine.keep({"machine": machine.describe(), **about, "runs": results}, given.json)


if __name__ == "__main__":
    main()
