"""Self-tuning of the native engine against the best of a full sweep.

    python benchmarks/tuning.py --data DIR [--rounds 3] [--seconds 4] [--json FILE]

JPEGs of DIR/pictures-2000 (`make pictures`), RandomResizedCrop(224), batches of 64.

Each setting is measured for --seconds once its first batch is there, the training step being nothing at all.
"tuned" is Headrace with nothing said, from a cold start (its cache empty): its rate is taken after the first
5 % of an epoch, over the next --seconds. Rounds are interleaved; medians are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import headrace


def native(data: Path) -> Dataset[Any]:
    paths = sorted(map(str, (data / "pictures-2000").rglob("*.jpg"))) * 100
    steps = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    return headrace.ImageDataset(paths, [0] * len(paths), v2.Compose(steps))


BATCH = 64
# Batches that the sweep doesn't count: while the first one was waited for, others were made.
SKIP = 20
DECODE_THREADS = (1, 2, 3, 4, 6)
TORCH_WORKERS = (0, 1, 2, 4)


def rate(batches: Iterable[Any], batch_size: int, seconds: float, skip: int = 1) -> float:
    """Samples per second over `seconds`, after `skip` batches."""
    count, start = 0, 0.0
    for number, _ in enumerate(batches, start=1):
        if number == skip:
            start = time.perf_counter()
        elif number > skip:
            count += 1
            if time.perf_counter() - start > seconds:
                break
    return count * batch_size / (time.perf_counter() - start)


def tuned(dataset: Dataset[Any], seconds: float) -> tuple[float, str]:
    """Headrace with nothing said, and what it settled at."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        loader = headrace.DataLoader(dataset, BATCH)
        measured = rate(loader, BATCH, seconds, len(loader) // 20)
        return measured, loader.workers_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # torch's, of more workers than cores
    dataset = native(arguments.data)
    rates: dict[str, list[float]] = {}
    text = ""
    for _ in range(arguments.rounds):
        measured, text = tuned(dataset, arguments.seconds)
        rates.setdefault("tuned", []).append(measured)
        for threads in DECODE_THREADS:
            ours = headrace.DataLoader(
                dataset, BATCH, num_workers=threads, prefetch_factor=max(1, 8 // threads)
            )
            rates.setdefault(f"threads {threads}", []).append(rate(ours, BATCH, arguments.seconds, SKIP))
            del ours
        for workers in TORCH_WORKERS:
            torchs = DataLoader(dataset, BATCH, num_workers=workers)
            rates.setdefault(f"torch {workers}", []).append(rate(torchs, BATCH, arguments.seconds, SKIP))
            del torchs
    medians = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    best = max((v, n) for n, v in medians.items() if n.startswith("threads"))
    share = medians["tuned"] / best[0]
    print(f"tuned {medians['tuned']:,.0f}/s = {share:.1%} of the best ({best[1]}); {text}")
    for name, value in sorted(medians.items(), key=lambda item: -item[1]):
        print(f"    {name:<14} {value:>12,.0f}")
    if arguments.json:
        result = {"medians": medians, "best": best[1], "share": round(share, 4), "settled": text}
        arguments.json.write_text(json.dumps({"torch": torch.__version__, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
