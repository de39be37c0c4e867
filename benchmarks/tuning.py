"""Self-tuning against the best of a full sweep, on four loads that want different settings.

    python benchmarks/tuning.py --data DIR [--rounds 3] [--seconds 4] [--json FILE]

- native: JPEGs of DIR/pictures-2000 (`make pictures`), RandomResizedCrop(224): decode threads count;
- gil: 2 ms of pure Python a sample: processes;
- sleeping: 5 ms of waiting a sample: many threads;
- tiny: a row of 32 floats: no workers at all.

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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import headrace


class Gil(Dataset[int]):
    """2 ms of Python that never lets go of the GIL."""

    def __len__(self) -> int:
        return 40_000

    def __getitem__(self, index: int) -> int:
        total = 0
        for i in range(40_000):
            total += i
        return index + total - total


class Sleeping(Dataset[Any]):
    """5 ms of waiting."""

    def __init__(self) -> None:
        self.rows = torch.randn(400_000, 64)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.005)
        return self.rows[index], index


class Tiny(Dataset[Any]):
    """A row of a tensor; a class of its own, so that it isn't recognised as one."""

    def __init__(self) -> None:
        self.rows = torch.randn(4_000_000, 32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], index


def native(data: Path) -> Dataset[Any]:
    paths = sorted(map(str, (data / "pictures-2000").rglob("*.jpg"))) * 100
    steps = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    return headrace.ImageDataset(paths, [0] * len(paths), v2.Compose(steps))


# Batches that the sweep doesn't count: while the first one was waited for, others were made.
SKIP = 20
# (batch size, settings of the sweep)
THREADS = [{"worker_kind": "thread", "num_workers": n} for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
PROCESSES = [{"worker_kind": "process", "num_workers": n} for n in (1, 2, 3, 4, 8)]
HERE = [{"num_workers": 0}]
LOADS: dict[str, tuple[int, list[dict[str, Any]]]] = {
    "native": (64, [{"num_workers": n} for n in (1, 2, 3, 4, 6)]),
    "gil": (16, [*HERE, *THREADS[:4], *PROCESSES]),
    "sleeping": (64, [*HERE, *THREADS, *PROCESSES]),
    "tiny": (256, [*HERE, *THREADS[:3], *PROCESSES[:4]]),
}


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


def tuned(dataset: Dataset[Any], batch_size: int, seconds: float) -> tuple[float, str]:
    """Headrace with nothing said, and what it settled at."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        loader = headrace.DataLoader(dataset, batch_size)
        skip = len(loader) // 20
        measured = rate(loader, batch_size, seconds, skip)
        return measured, loader.workers_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", choices=LOADS, action="append")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # torch's, of more workers than cores
    makers: dict[str, Callable[[], Dataset[Any]]] = {
        "native": lambda: native(arguments.data),
        "gil": Gil,
        "sleeping": Sleeping,
        "tiny": Tiny,
    }
    results = {}
    for load in arguments.only or LOADS:
        batch_size, sweep = LOADS[load]
        dataset, rates, text = makers[load](), {}, ""
        for _ in range(arguments.rounds):
            measured, text = tuned(dataset, batch_size, arguments.seconds)
            rates.setdefault("tuned", []).append(measured)
            for setting in sweep:
                loader = headrace.DataLoader(dataset, batch_size, prefetch_factor=_ahead(setting), **setting)
                name = f"{setting.get('worker_kind', 'threads' if load == 'native' else 'caller')}"
                name += f" {setting['num_workers']}"
                rates.setdefault(name, []).append(rate(loader, batch_size, arguments.seconds, SKIP))
                del loader
            for workers in (0, 1, 2, 4):
                torchs = DataLoader(dataset, batch_size, num_workers=workers)
                rates.setdefault(f"torch {workers}", []).append(
                    rate(torchs, batch_size, arguments.seconds, SKIP)
                )
                del torchs
        medians = {name: round(statistics.median(values), 1) for name, values in rates.items()}
        best = max((v, n) for n, v in medians.items() if n != "tuned" and not n.startswith("torch"))
        share = medians["tuned"] / best[0]
        results[load] = {"medians": medians, "best": best[1], "share": round(share, 4), "settled": text}
        print(f"{load}: tuned {medians['tuned']:,.0f}/s = {share:.1%} of the best ({best[1]}); {text}")
        for name, value in sorted(medians.items(), key=lambda item: -item[1]):
            print(f"    {name:<14} {value:>12,.0f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"torch": torch.__version__, "loads": results}, indent=1) + "\n")


def _ahead(setting: dict[str, Any]) -> int | None:
    return None if setting["num_workers"] == 0 else max(1, 8 // setting["num_workers"])


if __name__ == "__main__":
    main()
