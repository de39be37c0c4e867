"""A loader with nothing given against the best settings that a sweep finds, for several kinds of datasets.

    python benchmarks/tuning.py --data DIR [--loads native tiny] [--rounds 3] [--seconds 4] [--json FILE]

"native" needs JPEGs in DIR/pictures-2000 (`make pictures`): RandomResizedCrop(224), batches of 64. The
others are datasets in Python, of `floor_rows.py`. All loads take about 15 minutes on 2 cores.

Each setting is measured for --seconds after its first batches, without a training step. "auto" is Headrace
with nothing given: as many threads or worker processes as there are cores. "as advised" is the setting of the
sweep that `explain()` then says to try. Rounds are interleaved; medians are shown.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import headrace
import machine
from floor_rows import Arrays, Made, TinyTensors, busy, sleeping


def native(data: Path) -> Dataset[Any]:
    paths = sorted(map(str, (data / "pictures-2000").rglob("*.jpg"))) * 100
    steps = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    return headrace.ImageDataset(paths, [0] * len(paths), v2.Compose(steps))


@dataclass(frozen=True)
class Load:
    """One kind of dataset.

    Attributes:
        make: makes the dataset, of more samples than are measured; gets the folder given as --data.
        batch_size: samples in a batch.
        ours, torchs: values of num_workers in the sweep, of Headrace and of torch.
    """

    make: Callable[[Path], Dataset[Any]]
    batch_size: int
    ours: tuple[int, ...]
    torchs: tuple[int, ...] = (0, 1, 2, 4)


LOADS = {
    "native": Load(native, 64, (1, 2, 3, 4, 6)),
    "GIL": Load(lambda _: Made(1_000_000, busy), 32, (0, 1, 2, 3, 4, 8)),
    "sleeping": Load(lambda _: Made(1_000_000, sleeping), 16, (0, 2, 4, 8, 16), (0, 2, 4, 8, 16)),
    "tiny": Load(lambda _: TinyTensors(100_000_000), 256, (0, 1, 2, 4)),
    "150 kB": Load(lambda _: Arrays(1_000_000, 150_000), 32, (0, 1, 2, 4)),
}
# Batches that aren't counted: while the first one was waited for, others were made.
SKIP = 20


def rate(batches: Iterable[Any], batch_size: int, seconds: float) -> float:
    """Samples per second over `seconds`, after `SKIP` batches."""
    count, start = 0, 0.0
    for number, _ in enumerate(batches, start=1):
        if number == SKIP:
            start = time.perf_counter()
        elif number > SKIP:
            count += 1
            if time.perf_counter() - start > seconds:
                break
    return count * batch_size / (time.perf_counter() - start)


def measure_auto(load: Load, dataset: Dataset[Any], seconds: float) -> tuple[float, str]:
    """The rate of Headrace with nothing given, and the line of `explain()` on its workers."""
    loader = headrace.DataLoader(dataset, load.batch_size)
    measured = rate(loader, load.batch_size, seconds)
    return measured, loader.workers_text()


def sweep(load: Load, dataset: Dataset[Any], seconds: float) -> dict[str, float]:
    """Samples per second of each setting, by its name."""
    found = {}
    for workers in load.ours:
        # As many batches in flight in each setting: what is compared is workers.
        ahead = {"prefetch_factor": max(1, 8 // workers)} if workers else {}
        ours = headrace.DataLoader(dataset, load.batch_size, num_workers=workers, **ahead)
        found[f"headrace {workers}"] = rate(ours, load.batch_size, seconds)
        del ours
    for workers in load.torchs:
        torchs = DataLoader(dataset, load.batch_size, num_workers=workers)
        found[f"torch {workers}"] = rate(torchs, load.batch_size, seconds)
        del torchs
    return found


def compare(load: Load, data: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """One row of the table."""
    dataset = load.make(data)
    rates: dict[str, list[float]] = {}
    text = ""
    for _ in range(rounds):
        auto, text = measure_auto(load, dataset, seconds)
        for name, value in {"auto": auto, **sweep(load, dataset, seconds)}.items():
            rates.setdefault(name, []).append(value)
    medians = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    best = {
        kind: max((name for name in medians if name.startswith(kind)), key=medians.__getitem__)
        for kind in ("headrace", "torch")
    }
    shares = {kind: round(medians["auto"] / medians[name], 4) for kind, name in best.items()}
    advised = re.search(r"try num_workers=(\d+)", text)
    setting = f"headrace {advised[1]}" if advised else "auto"
    return {
        "medians": medians,
        "best": best,
        "share": shares,
        "advised": setting,
        "advised_share": round(medians[setting] / medians[best["headrace"]], 4),
        "workers": text,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--loads", nargs="+", choices=list(LOADS), default=list(LOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=Path, help="kept after every load; loads in it are not measured again")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # torch's, of more workers than cores
    headings = ("load", "auto, samples/s", "of Headrace's best", "of torch's best", "as advised")
    table = Table(*headings, "workers")
    about = {"machine": machine.describe(), "torch": torch.__version__}
    results: dict[str, Any] = machine.continued(arguments.json).get("loads", {}) if arguments.json else {}
    for name in arguments.loads:
        if name not in results:
            results[name] = compare(LOADS[name], arguments.data, arguments.rounds, arguments.seconds)
        found = results[name]
        bests = [f"{found['share'][kind]:.1%} ({best})" for kind, best in found["best"].items()]
        advised = f"{found['advised_share']:.1%} ({found['advised']})"
        auto = f"{found['medians']['auto']:,.0f}"
        table.add_row(name, auto, *bests, advised, found["workers"])
        print(name, found["medians"], flush=True)
        if arguments.json:
            machine.keep({**about, "loads": results}, arguments.json)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
