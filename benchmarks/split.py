"""Images per second where steps of the transform have no native form, beside torch's DataLoader with PIL.

Both run the same transform in the same number of worker processes, which stay from epoch to epoch. Each run
is a fresh process, going round all rows; one pass warms up, the median of the timed ones counts.

    python benchmarks/split.py --data data
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
import machine
import pictures

HERE = Path(__file__).resolve().parent
BATCH_SIZE = 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP = (v1.RandomResizedCrop(224), v1.RandomHorizontalFlip())
END = (v1.ToTensor(), v1.Normalize(MEAN, STD))
END_V2 = (v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD))

ROWS = {
    "RandAugment": (*CROP, v1.RandAugment(), *END),
    "RandAugment, v2": (v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.RandAugment(), *END_V2),
    "ColorJitter(0.4, 0.4, 0.4)": (*CROP, v1.ColorJitter(0.4, 0.4, 0.4), *END),
    "TrivialAugmentWide, RandomErasing(0.1)": (*CROP, v1.TrivialAugmentWide(), *END, v1.RandomErasing(0.1)),
    "Resize(256), RandAugment, RandomCrop(224)": (v1.Resize(256), v1.RandAugment(), v1.RandomCrop(224), *END),
    "ColorJitter(0.4) before the crop": (v1.ColorJitter(0.4), *CROP, *END),
}
LOADERS = {"torch": torch.utils.data.DataLoader, "headrace": headrace.DataLoader}


def rate(folder: Path, row: str, loader: str, workers: int, epochs: int) -> float:
    """Images per second of one loader in this process."""
    dataset = ImageFolder(str(folder), v1.Compose(list(ROWS[row])))
    options = {"num_workers": workers, "persistent_workers": workers > 0}
    batches = LOADERS[loader](dataset, BATCH_SIZE, shuffle=True, **options)
    rates = []
    for _ in range(epochs + 1):
        start = time.perf_counter()
        images = sum(len(images) for images, _ in batches)
        rates.append(images / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, dict[str, list[float]]]:
    """By row and loader: images per second of each repetition."""
    found = {row: {loader: [] for loader in LOADERS} for row in arguments.rows}
    for _ in range(arguments.repetitions):
        for row in arguments.rows:
            for loader in LOADERS:
                command = [sys.executable, __file__, "--one", row, loader, "--folder", str(folder)]
                command += ["--workers", str(arguments.workers), "--epochs", str(arguments.epochs)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[row][loader].append(float(done.stdout))
    return found


def show(found: dict[str, dict[str, list[float]]]) -> None:
    table = Table(title="images per second", title_justify="left")
    for heading in ("transform", *LOADERS, "ratio"):
        table.add_column(heading, justify="left" if heading == "transform" else "right")
    for row, rates in found.items():
        torchs, ours = (statistics.median(rates[loader]) for loader in LOADERS)
        table.add_row(row, f"{torchs:,.0f}", f"{ours:,.0f}", f"{ours / torchs:.2f}")
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="where pictures are kept or made")
    parser.add_argument("--count", type=int, default=2000, help="pictures (2000)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes; 0: the calling thread (2)")
    parser.add_argument("--epochs", type=int, default=3, help="timed passes of a run (3)")
    parser.add_argument("--repetitions", type=int, default=3, help="runs of each row (3)")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--out", type=Path, default=HERE / "work", help="split.json goes here")
    parser.add_argument("--one", nargs=2, metavar=("ROW", "LOADER"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(rate(arguments.folder, *arguments.one, arguments.workers, arguments.epochs))
        return
    folder = arguments.data / f"pictures-{arguments.count}"
    manifest = pictures.ensure(folder, arguments.count, cache=arguments.data / "cache")
    load = machine.foreign_load()
    found = measure(arguments, folder)
    show(found)
    result = {
        "machine": machine.describe(),
        "foreign_cores_before": round(load, 2),
        "pictures": manifest,
        "workers": arguments.workers,
        "images_per_second": found,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "split.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
