"""A dataset whose every 50th sample takes 300 ms: how long does a training step wait for it?

    python benchmarks/straggler.py [--steps 150] [--json FILE]

Other samples take 2 ms, all of it waiting; batches of 32; a step of 60 ms. On threads Headrace starts a
batch when the one that is `THREAD_DEPTH` before it is received, so that one step less covers whatever a
sample takes: a step waits at most 300 ms (and the time of the other samples that share its threads) less
that cover. A worker process, torch's or Headrace's, makes a batch's samples one after the other, and the
next batch's after them.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import headrace
import machine
from headrace.build import THREAD_DEPTH

SLOW_EVERY = 50
SLOW_SECONDS = 0.300
SECONDS = 0.002
STEP_SECONDS = 0.060
BATCH = 32
THREADS = 16


class Stragglers(Dataset[int]):
    """Samples that wait, some of them long."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        time.sleep(SLOW_SECONDS if index % SLOW_EVERY == 0 else SECONDS)
        return index


def waits(batches: Any) -> list[float]:
    """Seconds that each step waited."""
    out, epoch = [], iter(batches)
    while True:
        start = time.perf_counter()
        if next(epoch, None) is None:
            return out
        out.append(time.perf_counter() - start)
        time.sleep(STEP_SECONDS)


def summary(name: str, seconds: list[float]) -> dict[str, Any]:
    """Summarizes the steps after the first."""
    rest = sorted(seconds[1:])
    return {
        "loader": name,
        "first_ms": round(seconds[0] * 1e3, 1),
        "median_ms": round(rest[len(rest) // 2] * 1e3, 2),
        "p95_ms": round(rest[int(len(rest) * 0.95)] * 1e3, 1),
        "longest_ms": round(rest[-1] * 1e3, 1),
        "stall_share": round(sum(rest) / (sum(rest) + STEP_SECONDS * len(rest)), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    dataset = Stragglers(arguments.steps * BATCH)
    rows = []
    loader = headrace.DataLoader(dataset, BATCH, num_workers=THREADS, worker_kind="thread")
    row = summary(f"headrace, {THREADS} threads", waits(loader))
    cover = (THREAD_DEPTH - 1) * STEP_SECONDS
    row["cover_ms"] = round(cover * 1e3)
    row["predicted_longest_ms"] = round(max(0.0, SLOW_SECONDS - cover) * 1e3)
    rows.append(row)
    for workers in (2, 4, 8, 16):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torchs = DataLoader(dataset, BATCH, num_workers=workers)
            rows.append(summary(f"torch, {workers} workers", waits(torchs)))
        ours = headrace.DataLoader(dataset, BATCH, num_workers=workers)
        rows.append(summary(f"headrace, {workers} workers", waits(ours)))
    for row in rows:
        print(json.dumps(row))
    if arguments.json:
        record = {"machine": machine.describe(), "torch": torch.__version__, "rows": rows}
        machine.keep(record, arguments.json)


if __name__ == "__main__":
    main()
