"""The cost of the doctor's watching: epochs of a training loop with its samplers and without, in turns.

    python benchmarks/watching.py --data DIR [--rounds 5] [--json FILE]

Real JPEGs (DIR/pictures-2000, `make pictures`), torchvision's transforms in worker processes, a small
convolutional net on the CPU with one thread. Each epoch begins its own workers; the first batches, which wait
for these, aren't counted. Two loads: "loader", where the step waits for two workers that compute all the
time, and "step", where the step computes all the time. Wall time a step, and processor time of all processes;
the median of the ratios of pairs is shown, and their middle half.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

import machine
from headrace_doctor.measure.outside import Outside
from headrace_doctor.measure.sampler import sampled

SKIP = 20
# Over the images, to an epoch: that starting workers, watched or not, doesn't weigh.
PASSES = 4


def epoch(folder: Path, width: int, workers: int) -> tuple[float, float]:
    """Seconds of a step after the first ones, and processor seconds of one of all, workers included."""
    steps = transforms.Compose([transforms.RandomResizedCrop(128), transforms.ToTensor()])
    dataset = ConcatDataset([ImageFolder(str(folder), steps)] * PASSES)
    loader = DataLoader(dataset, batch_size=16, num_workers=workers)
    model = nn.Sequential(
        nn.Conv2d(3, width, 5, stride=4),
        nn.ReLU(),
        nn.Conv2d(width, width, 3),
        nn.Flatten(),
        nn.LazyLinear(10),
    )
    optimizer = None
    before, start, count = processor_seconds(), 0.0, 0
    for number, (images, labels) in enumerate(loader):
        if number == SKIP:
            start = time.perf_counter()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.01)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count += number >= SKIP
    seconds = (time.perf_counter() - start) / count
    return seconds, (processor_seconds() - before) / len(loader)


def processor_seconds() -> float:
    """Sums the processor time of this process and its children that have ended, as workers have."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def watched(folder: Path, width: int, workers: int) -> tuple[float, float]:
    """The same, watched from inside and from outside."""
    with tempfile.TemporaryDirectory() as name, sampled(Path(name)) as announce:
        outside = Outside(os.getpid(), Path(name))
        announce("actual")
        try:
            return epoch(folder, width, workers)
        finally:
            outside.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = arguments.data / "pictures-2000"
    results: dict[str, dict[str, dict[str, object]]] = {}
    for load, width, workers in (("loader", 4, 2), ("step", 96, 1)):
        epoch(folder, width, workers)  # reads the images into the page cache
        pairs = []
        for number in range(arguments.rounds):
            first, second = (epoch, watched) if number % 2 else (watched, epoch)
            times = {first: first(folder, width, workers), second: second(folder, width, workers)}
            pairs.append((times[epoch], times[watched]))
        results[load] = {}
        for what, column in (("wall", 0), ("processor", 1)):
            plain = statistics.median(alone[column] for alone, _ in pairs)
            ratios = [watching[column] / alone[column] for alone, watching in pairs]
            low, middle, high = statistics.quantiles(ratios, n=4)
            results[load][what] = {"step_ms": 1e3 * plain, "ratio": middle, "quartiles": [low, high]}
            print(
                f"{load}: {1e3 * plain:.1f} ms of {what} time a step, watched {middle:.3f} times as much"
                f" (middle half of pairs {low:.3f} to {high:.3f})"
            )
    if arguments.json:
        machine.keep({"machine": machine.describe(), "loads": results}, arguments.json)


if __name__ == "__main__":
    main()
