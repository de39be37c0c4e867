"""Batches of a Python dataset from worker processes: Headrace against torch, with the same number of workers.

Samples of 1 kB, 150 kB and 2 MB that cost next to nothing to make, so that what is measured is transport: the
worst case for a loader. Epochs of both loaders alternate in one process; the medians of each are given, and
the median of the ratios of neighbours. "First batch" is the time from iter() to the first batch, with the
start of the workers; "steady" is the rate from the third batch on.

    python benchmarks/workers.py [--rounds 7] [--output benchmarks/results/workers.json]
    python benchmarks/workers.py --overhead

The second measures what a loader adds to samples that are numbers, in microseconds of processor time, which
depends little on what else the machine does: for each batch in the calling process, and for each sample in a
worker. What the dataset and collation take by themselves is measured alike, and subtracted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate, default_convert

import headrace
import machine

LOADERS = {"headrace": headrace.DataLoader, "torch": DataLoader}
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


class Numbers(Dataset[int]):
    """The cheapest samples there are."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def bare_seconds(dataset: Numbers, batch_size: int | None) -> float:
    """Processor time of an epoch without any loader."""
    start = time.process_time()
    if batch_size is None:
        for index in range(len(dataset)):
            default_convert(dataset[index])
    else:
        for first in range(0, len(dataset), batch_size):
            default_collate([dataset[i] for i in range(first, first + batch_size)])
    return time.process_time() - start


def used_seconds(kind: Any, dataset: Numbers, batch_size: int | None, workers: int) -> tuple[float, float]:
    """Processor time of a second epoch, in this process and in its workers."""
    kept: dict[str, Any] = {"persistent_workers": True, "multiprocessing_context": "fork"} if workers else {}
    loader = kind(dataset, batch_size=batch_size, num_workers=workers, **kept)
    for _ in loader:
        pass
    processes = [process.pid for process in multiprocessing.active_children()]
    here, there = time.process_time(), sum(map(run_seconds, processes))
    for _ in loader:
        pass
    return time.process_time() - here, sum(map(run_seconds, processes)) - there


def run_seconds(pid: int | None) -> float:
    """Processor time of the main thread of a process."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def overhead(rounds: int) -> None:
    """Prints what each loader adds, in microseconds of processor time: medians over the rounds."""
    few, many = Numbers(40_000), Numbers(400 * 1024)
    small, large = Numbers(4_000), Numbers(200 * 1024)
    found: dict[str, dict[str, list[float]]] = {}
    for i in range(rounds):
        bare_one, bare_row = bare_seconds(few, None), bare_seconds(many, 1024)
        for name, kind in sorted(LOADERS.items(), reverse=i % 2 == 1):
            unbatched = used_seconds(kind, few, None, 0)[0] - bare_one
            in_caller = used_seconds(kind, many, 1024, 0)[0] - bare_row
            front, _ = used_seconds(kind, small, 1, WORKERS)
            _, in_workers = used_seconds(kind, large, 1024, WORKERS)
            measured = {
                "a sample, unbatched, in the caller": unbatched / len(few),
                "a sample of a batch of 1,024, in the caller": in_caller / len(many),
                "a batch of 1, in the caller, of 2 workers": front / len(small),
                "a sample of a batch of 1,024, in a worker": in_workers / len(large) - bare_row / len(many),
            }
            for what, seconds in measured.items():
                found.setdefault(what, {}).setdefault(name, []).append(1e6 * seconds)
    print(f"{'added, in µs of processor time':45}" + "".join(f"{name:>20}" for name in LOADERS))
    for what, by_loader in found.items():
        cells = (
            f"{statistics.median(v):.2f} ({min(v):.2f}-{max(v):.2f})"
            for v in map(by_loader.get, LOADERS)
            if v
        )
        print(f"{what:45}" + "".join(f"{cell:>20}" for cell in cells))


def main() -> None:
    """Measures, prints a table, and keeps the figures where --output says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--start", nargs="+", default=["fork", "spawn"])
    parser.add_argument("--samples", nargs="+", default=list(SIZES))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--overhead", action="store_true", help="what a loader adds to tiny samples")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.overhead:
        torch.set_num_threads(1)
        overhead(arguments.rounds)
        return
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
        facts = {
            "machine": machine.describe(),
            "torch": torch.__version__,
            "workers": WORKERS,
            "batch_size": BATCH,
        }
        machine.keep({**facts, "rows": rows}, arguments.output)


if __name__ == "__main__":
    main()
