"""Loading, copying and computing at the same time, on the simulated accelerator of tests/accelerator.

    python benchmarks/simulated_overlap.py [--steps 20] [--rounds 3] [--scale 1] [--json FILE]

A batch takes as long to load, to copy and to train on as is stated for a card, by sleeping, whatever this
machine is. What is measured is who waits for whom; it says nothing of a GPU's speed.

`synchronous` has no workers (`num_workers=0`): it loads a batch, copies it, trains, and only then loads the
next. `torch` loads ahead in two worker processes, each as fast as that one, and copies without waiting, on
the stream of the step; Headrace has as many workers. Ideal is the slowest of the three alone: the supply of
all workers, the copies or the steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import accelerator
import machine
from headrace import DataLoader

WORKERS = 2
RATIOS = ("headrace / ideal", "torch / ideal", "synchronous / headrace")
ITEMS = 1 << 18  # float32, of a simulated batch: its size is in the rate of copying


@dataclass(frozen=True)
class Card:
    """A card as it is assumed to be: ResNet-50 in bf16 with batches of 256 images of 224×224 in float32.

    Attributes:
        name: of the card.
        step: seconds that a training step takes.
        copy: seconds that a batch takes from pinned memory.
    """

    name: str
    step: float
    copy: float


# 2,500 and 5,000 images/s; 154 MB a batch at 25 and 50 GB/s (PCIe 4 and 5). Assumed, not measured here.
CARDS = [
    Card("A100", 0.100, 0.006),
    Card("H100", 0.050, 0.003),
    Card("H100, copies as long as steps", 0.050, 0.050),
]
SUPPLIES = {"fast": 0.5, "as fast as the step": 1.0, "slow": 2.0}


@dataclass(frozen=True)
class Row:
    """Seconds of an epoch in simulated time, by way of loading, for one card and supply."""

    card: str
    supply: str
    load: float
    copy: float
    step: float
    ideal: float
    headrace: float
    torch: float
    synchronous: float


class Batches(Dataset[torch.Tensor]):
    """`count` batches, each of which takes `seconds` to load, by sleeping."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((ITEMS,), float(index))


def epoch(batches: Callable[[], Iterable[Any]], simulated: Any, step: float, *, blocking: bool) -> float:
    """Seconds of an epoch. The loss is read after every tenth step; `blocking` after each."""
    device = torch.device("simulated")
    torch.accelerator.synchronize()
    start = time.perf_counter()
    losses = []
    for number, batch in enumerate(batches()):
        there = batch.to(device, non_blocking=not blocking)
        losses.append(there[0, 0] * 1)
        simulated.busy(step)
        if blocking or number % 10 == 9:
            torch.accelerator.current_stream().synchronize()
    torch.accelerator.synchronize()
    seconds = time.perf_counter() - start
    if [int(loss) for loss in losses] != list(range(len(losses))):
        raise RuntimeError("the batches are not those of the dataset")
    return seconds


def run(card: Card, supply: str, arguments: argparse.Namespace, simulated: Any) -> Row:
    """One card and one supply, each way of loading in turn; the middle of all rounds."""
    step, copy = card.step * arguments.scale, card.copy * arguments.scale
    load = step * SUPPLIES[supply]
    simulated.configure(copy_bytes_per_second=4 * ITEMS / copy)
    ahead = Batches(arguments.steps, load * WORKERS)
    ways: dict[str, tuple[Callable[[], Iterable[Any]], bool]] = {
        "headrace": (
            lambda: DataLoader(ahead, num_workers=WORKERS, worker_kind="thread", device="simulated"),
            False,
        ),
        "torch": (lambda: TorchDataLoader(ahead, num_workers=WORKERS, pin_memory=True), False),
        "synchronous": (lambda: TorchDataLoader(ahead), True),
    }
    rounds = [
        {name: epoch(make, simulated, step, blocking=blocking) for name, (make, blocking) in ways.items()}
        for _ in range(arguments.rounds)
    ]
    simulated.configure()
    seconds = {name: statistics.median(each[name] for each in rounds) for name in ways}
    return Row(card.name, supply, load, copy, step, arguments.steps * max(load, copy, step), **seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="of an epoch")
    parser.add_argument("--rounds", type=int, default=3, help="of which the middle one counts")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of all times; small ones are sleep's own error"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    simulated = accelerator.load()
    torch.set_num_threads(1)
    rows = [run(card, supply, arguments, simulated) for card in CARDS for supply in SUPPLIES]
    print(f"Simulated accelerator, simulated time, {arguments.steps} steps. No figure of a GPU.\n")
    headings = ("simulated card", "supply", "load, copy, step (ms)", *RATIOS)
    print("| " + " | ".join(headings) + " |\n" + "|---" * len(headings) + "|")
    for row in rows:
        times = ", ".join(f"{1e3 * seconds:.0f}" for seconds in (row.load, row.copy, row.step))
        print(
            f"| {row.card} | {row.supply} | {times} | {row.headrace / row.ideal:.2f} |"
            f" {row.torch / row.ideal:.2f} | {row.synchronous / row.headrace:.2f} × |"
        )
    if arguments.json is not None:
        facts = {
            "machine": machine.describe(),
            "simulated": True,
            "steps": arguments.steps,
            "rounds": arguments.rounds,
            "scale": arguments.scale,
        }
        machine.keep({**facts, "rows": [asdict(row) for row in rows]}, arguments.json)


if __name__ == "__main__":
    main()
