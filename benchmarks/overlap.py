"""The effect of overlapping loading with training, on samples that wait.

    python benchmarks/overlap.py [--rounds 3] [--items 1024] [--device cpu] [--json FILE]

Items of 3×224×224 float32 in memory, each of which sleeps for 5 ms when it is asked for, as
one that comes over a network would; batches of 64; a linear layer with Adam; 10 ms of further compute,
simulated by sleeping, after every fifth batch. Loaded item by item that takes 5.1 s of sleeping alone; the
floor is the time with all batches ready in memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

import machine
from headrace import DataLoader
from headrace.config import WorkerKind

SHAPE = (3, 224, 224)
CLASSES = 10
ITEM_SECONDS = 0.005
EXTRA_SECONDS = 0.010
EXTRA_EVERY = 5
TORCH_WORKERS = (2, 4, 8, 16)
# Items that wait 5 ms come no sooner from more threads on two cores.
THREADS = 24


class SlowItems(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """`items` random images in memory; asking for one takes 5 ms of sleep."""

    def __init__(self, items: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pictures = torch.randn(items, *SHAPE, generator=generator)
        self.labels = torch.randint(CLASSES, (items,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(ITEM_SECONDS)
        return self.pictures[index], self.labels[index]


class _Quiet(TorchDataLoader[Any]):
    """torch's loader, which says nothing of more workers than cores: they are the point here."""

    def check_worker_number_rationality(self) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Row:
    """One way to load.

    Attributes:
        name: of it.
        seconds: of each round: from iter() to the last step's end.
    """

    name: str
    seconds: list[float]

    @property
    def median(self) -> float:
        """Seconds of the middle round."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Overlap:
    """The results of the experiment.

    Attributes:
        items, batch_size, device: what it was run with.
        rows: the floor first, Headrace on threads last.
        plan: what `explain()` says of Headrace's workers.
    """

    items: int
    batch_size: int
    device: str
    rows: list[Row]
    plan: str

    @property
    def over_floor(self) -> float:
        """Time of Headrace on threads as a multiple of the floor's."""
        return self.rows[-1].median / self.rows[0].median

    @property
    def over_torch(self) -> float:
        """Time of torch's best number of workers as a multiple of that of Headrace on threads."""
        torchs = [row.median for row in self.rows if row.name.startswith("torch")]
        return min(torchs) / self.rows[-1].median

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return {**asdict(self), "over_floor": self.over_floor, "over_torch": self.over_torch}


def run(items: int, batch_size: int, rounds: int, device: str) -> Overlap:
    """Runs the experiment: every way in turn, `rounds` times, each with new workers."""
    dataset = SlowItems(items)
    last: list[DataLoader] = []
    loaders = _loaders(dataset, batch_size, torch.device(device), last)
    seconds: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(rounds):
        for name, batches in loaders.items():
            last.clear()  # a loader's memory and threads aren't the next one's business
            seconds[name].append(_train(batches, torch.device(device)))
    rows = [Row(name, times) for name, times in seconds.items()]
    return Overlap(items, batch_size, device, rows, f"workers: {last[-1].workers_text()}")


def _loaders(
    dataset: SlowItems, batch_size: int, device: torch.device, last: list[DataLoader]
) -> dict[str, Callable[[], Iterable[Any]]]:
    pinned, items = device.type != "cpu", len(dataset)
    pictures, labels = dataset.pictures.to(device), dataset.labels.to(device)

    def ready() -> Iterator[Any]:
        places = range(0, items, batch_size)
        return iter([(pictures[i : i + batch_size], labels[i : i + batch_size]) for i in places])

    def torchs(workers: int) -> Iterable[Any]:
        return _Quiet(dataset, batch_size, num_workers=workers, pin_memory=pinned)

    def ours(workers: int, kind: WorkerKind) -> Iterable[Any]:
        loader = DataLoader(dataset, batch_size, num_workers=workers, worker_kind=kind, device=device)
        last.append(loader)
        return loader

    loaders: dict[str, Callable[[], Iterable[Any]]] = {
        "floor (batches in memory)": ready,
        "torch, num_workers=0": lambda: torchs(0),
    }
    for workers in TORCH_WORKERS:
        loaders[f"torch, num_workers={workers}"] = lambda workers=workers: torchs(workers)
    for workers in TORCH_WORKERS:
        loaders[f"headrace, num_workers={workers}"] = lambda workers=workers: ours(workers, "process")
    loaders[f"headrace, {THREADS} threads"] = lambda: ours(THREADS, "thread")
    return loaders


def _train(batches: Callable[[], Iterable[Any]], device: torch.device) -> float:
    """Seconds for one epoch."""
    torch.manual_seed(0)
    model = torch.nn.Linear(SHAPE[0] * SHAPE[1] * SHAPE[2], CLASSES).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    def step(pictures: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pictures.flatten(1)), labels).backward()
        optimizer.step()

    # The first step makes the optimizer's state, and starts torch's own threads.
    step(torch.zeros(64, *SHAPE, device=device), torch.zeros(64, dtype=torch.int64, device=device))
    _finish(device)
    start = time.perf_counter()
    for number, (pictures, labels) in enumerate(batches(), start=1):
        step(pictures.to(device, non_blocking=True), labels.to(device, non_blocking=True))
        if number % EXTRA_EVERY == 0:
            time.sleep(EXTRA_SECONDS)
    _finish(device)
    return time.perf_counter() - start


def _finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="repetitions; medians are shown")
    parser.add_argument("--items", type=int, default=1024, help="of an epoch, 1.2 MB of memory each")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cpu", help="of the model")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    result = run(arguments.items, arguments.batch_size, arguments.rounds, arguments.device)
    floor = result.rows[0].median
    print(f"{'loader':<28}{'seconds':>9}{'times the floor':>17}  rounds")
    for row in result.rows:
        rounds = " ".join(f"{seconds:.3f}" for seconds in row.seconds)
        print(f"{row.name:<28}{row.median:>9.3f}{row.median / floor:>17.2f}  {rounds}")
    print(
        f"\nHeadrace on threads takes {result.over_floor:.2f} times the floor's time, and is"
        f" {result.over_torch:.2f} times as fast as torch's best.\n{result.plan}"
    )
    if arguments.json is not None:
        machine.keep({"machine": machine.describe(), **result.to_json()}, arguments.json)


if __name__ == "__main__":
    main()
