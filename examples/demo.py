"""torch's DataLoader and Headrace side by side: the same real JPEGs, the same transform, the same pixels.

    make demo                                   (or: python examples/demo.py --count 3000)

Prints Headrace's plan, verifies on some images that its pixels equal torchvision's, times both loaders,
trains a small network on both, and draws demo-output/comparison.png.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from demo_figure import draw
from headrace.testing import replay

ROOT = Path(__file__).resolve().parent.parent
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAIN = transforms.Compose(
    [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(MEAN, STD),
    ]
)
SEED = 2026

# A log has no width of its own; a terminal keeps its own.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)


@dataclass
class Result:
    """The result of one loader. Rates in images per second, one for each pass; losses by step."""

    name: str
    rates: list[float] = field(default_factory=list)
    training_rate: float = 0.0
    waited: float = 0.0
    losses: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        return max(self.rates)


def bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


def pictures(data: Path, count: int) -> ImageFolder:
    """The data set, made first where it isn't there."""
    folder = data / f"pictures-{count}"
    script = ROOT / "benchmarks" / "pictures.py"
    command = [sys.executable, str(script), "--out", str(folder), "--count", str(count)]
    if subprocess.run([*command, "--cache", str(data / "cache")], check=False).returncode:
        sys.exit(1)  # the script has printed why
    return ImageFolder(folder, TRAIN)


def check_pixels(dataset: ImageFolder, count: int, threads: int) -> tuple[int, list]:
    """Compares `count` samples with torchvision's; gives the number of differing values, and pairs to draw.

    Headrace tells what it drew for a sample (box, flip); `replay` gives those to torchvision and Pillow.
    """
    chosen = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(SEED))[:count].tolist()
    loader = headrace.DataLoader(dataset, batch_size=50, sampler=chosen, num_workers=threads, seed=SEED)
    differing, pairs = 0, []
    with bar() as progress:
        task = progress.add_task("Comparing with torchvision", total=count)
        position = 0
        for images, _ in loader:
            for image in images:
                expected = replay(loader, chosen[position], 0)
                differing += int((image != expected).sum())
                if len(pairs) < 6:
                    pairs.append((image.clone(), expected))
                position += 1
                progress.advance(task)
    return differing, pairs


def time_loaders(loaders: dict[str, Iterable], results: dict[str, Result], passes: int) -> None:
    """Whole passes, taking turns; the first pass of each starts its workers and is not counted."""
    total = sum(len(loader) for loader in loaders.values()) * (passes + 1)
    with bar() as progress:
        task = progress.add_task("Iterating both", total=total)
        for number in range(passes + 1):
            for name, loader in loaders.items():
                start, images = time.perf_counter(), 0
                for batch, _ in loader:
                    images += len(batch)
                    progress.advance(task)
                if number:
                    results[name].rates.append(images / (time.perf_counter() - start))


def small_network(classes: int) -> nn.Module:
    """About 25,000 parameters, and cheap enough that a CPU can keep up with a loader."""
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.AvgPool2d(4),
        nn.Conv2d(3, 16, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


def train(loader: Iterable, result: Result, steps: int, classes: int, advance: Callable[[], None]) -> None:
    """A few steps of the same network; how fast they went, and how long they waited for data."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = small_network(classes).to(device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    start, images_seen, waited = time.perf_counter(), 0, 0.0
    iterator = iter(loader)
    for _ in range(steps):
        asked = time.perf_counter()
        images, labels = next(iterator)
        waited += time.perf_counter() - asked
        loss = nn.functional.cross_entropy(network(images.to(device)), labels.to(device))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        result.losses.append(loss.item())
        images_seen += len(images)
        advance()
    seconds = time.perf_counter() - start
    result.training_rate, result.waited = images_seen / seconds, waited / seconds


def train_both(loaders: dict[str, Iterable], results: dict[str, Result], classes: int, steps: int) -> None:
    with bar() as progress:
        task = progress.add_task("Training on both", total=steps * len(loaders))
        for name, loader in loaders.items():
            train(loader, results[name], steps, classes, lambda: progress.advance(task))


def side_by_side(results: list[Result], differing: int, compared: int) -> Table:
    """The last thing shown."""
    ours, theirs = results[-1], results[0]
    table = Table(title="Side by side", title_justify="left", title_style="bold")
    table.add_column("")
    for result in results:
        table.add_column(result.name, justify="right")
    table.add_column("ratio", justify="right", style="bold")
    losses = [f"{r.losses[0]:.2f} → {sum(r.losses[-5:]) / len(r.losses[-5:]):.2f}" for r in results]
    equal = "no difference" if differing == 0 else f"{differing:,} values differ"
    rows = [
        ("images/s, loading only (best pass)", [f"{r.best:,.0f}" for r in results], ours.best / theirs.best),
        (
            "images/s, training a small network",
            [f"{r.training_rate:,.0f}" for r in results],
            ours.training_rate / theirs.training_rate,
        ),
        ("of training, waiting for data", [f"{r.waited:.0%}" for r in results], None),
        (
            "loss, first step → last five",
            losses,
            None,
        ),
        (f"pixels of {compared} images", ["the reference", equal], None),
    ]
    for label, cells, ratio in rows:
        table.add_row(label, *cells, "" if ratio is None else f"{ratio:.2f}×")
    return table


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="where images are stored (data)")
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    parser.add_argument("--count", type=int, default=3000, help="number of images (3000)")
    parser.add_argument("--passes", type=int, default=2, help="timed passes of each loader (2)")
    parser.add_argument("--steps", type=int, default=40, help="training steps on each loader (40)")
    parser.add_argument(
        "--compare", type=int, default=200, help="number of images compared with torchvision (200)"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    threads = len(os.sched_getaffinity(0))
    dataset = pictures(arguments.data, arguments.count)
    common = {"batch_size": 64, "shuffle": True, "drop_last": True, "num_workers": threads}
    theirs = torch.utils.data.DataLoader(dataset, persistent_workers=True, **common)
    ours = headrace.DataLoader(dataset, **common)
    loaders = {"torch DataLoader": theirs, "Headrace": ours}
    results = {name: Result(name) for name in loaders}

    console.rule("The plan")
    console.print(ours.explain(), markup=False, soft_wrap=True)
    console.rule("The pixels")
    compared = min(arguments.compare, len(dataset))
    differing, pairs = check_pixels(dataset, compared, threads)
    verdict = "all are torchvision's, bit for bit" if differing == 0 else f"{differing:,} values DIFFER"
    console.print(f"{compared} images, {compared * 3 * 224 * 224:,} float32 values: {verdict}")
    console.rule(f"The speed, {threads} workers and {threads} threads")
    time_loaders(loaders, results, arguments.passes)
    console.print(str(ours.stats()), markup=False, soft_wrap=True)
    console.rule("The training")
    steps = min(arguments.steps, len(ours))
    train_both(loaders, results, len(dataset.classes), steps)

    arguments.out.mkdir(parents=True, exist_ok=True)
    figure = arguments.out / "comparison.png"
    draw(pairs, list(results.values()), figure)
    console.print(f"Chart: {figure}")
    console.print(side_by_side(list(results.values()), differing, compared))
    if differing:
        sys.exit("Headrace's pixels are not torchvision's: please report this, with the output above.")


if __name__ == "__main__":
    main()
