"""Does the recipe learn, and as well with Headrace as with torch's DataLoader?

    python benchmarks/recipe.py digits --data DIR [--seeds 3] [--json FILE]
    python benchmarks/recipe.py stamps --data DIR …
    python benchmarks/recipe.py digits --data DIR --augment RandAugment …

Trains the same network on the same images with both loaders, from several seeds, each run in a fresh
process. The loaders draw other crops from the same distribution, so that accuracies agree within noise and
not to the digit: shown are each seed's, their means, and the difference in standard errors. Hold-out images
are read by Headrace in both: they are the same to the bit.

Seconds are of the training by the wall clock, evaluation included. Processor seconds are of the process and
its workers, imports included; `others` is how many cores other processes kept busy meanwhile. On a busy
machine compare processor seconds. --json is written after each run; those that it holds are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torchvision import transforms

from headrace.recipes import Recipe, parts, train
from headrace.recipes.parts import datasets, loaders
from learning_sets import make
from machine import Clock, describe, keep

# What differs from the recipe's defaults, by set.
SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"size": 64, "val_resize": 64, "epochs": 60},
    "stamps": {"size": 96, "val_resize": 112, "epochs": 40, "batch_size": 16, "lr": 1e-3},
}
SAME = {
    "arch": "shufflenet_v2_x0_5",
    "batch_size": 64,
    "optimizer": "adamw",
    "lr": 4e-3,
    "warmup_epochs": 4,
    "ema": 0.98,
    "log_every": 1000,
}
LOADERS = ("torch", "headrace")


class TorchLoader(torch.utils.data.DataLoader[Any]):
    """torch's own, with the few more methods that the recipe calls; it can't resume."""

    def set_epoch(self, epoch: int) -> None:
        """Each epoch's order is drawn from the generator anyway."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def stats(self) -> Any:
        return SimpleNamespace(epochs=())


def torch_loaders(
    recipe: Recipe, train_set: Any, val_set: Any, world_size: int, device: torch.device
) -> tuple[TorchLoader, Any]:
    """Makes torch's loader for training, in place of `headrace.recipes.parts.loaders`."""
    generator = torch.Generator().manual_seed(recipe.seed)
    loader = TorchLoader(
        train_set,
        recipe.part_size(world_size),
        shuffle=True,
        drop_last=True,
        num_workers=recipe.workers or 0,
        persistent_workers=True,
        generator=generator,
    )
    return loader, loaders(recipe, train_set, val_set, world_size, device)[1]


def augmented_datasets(recipe: Recipe) -> tuple[Any, Any]:
    """The recipe's, RandAugment after crop and flip of the training images."""
    train_set, val_set = datasets(recipe)
    train_set.transform.transforms.insert(2, transforms.RandAugment())
    return train_set, val_set


def one(args: argparse.Namespace, folder: Path, loader: str, seed: int) -> dict[str, Any]:
    """A run in this process."""
    if loader == "torch":
        parts.loaders = torch_loaders
    if args.augment:
        parts.datasets = augmented_datasets
    settings = {**SAME, **SETTINGS[args.name], "workers": args.workers}
    with tempfile.TemporaryDirectory() as out:
        recipe = Recipe(data=folder, out=Path(out), seed=seed, device="cpu", **settings)
        start = time.perf_counter()
        outcome = train(recipe)
        seconds = time.perf_counter() - start
    return {
        "loader": loader,
        "seed": seed,
        "top1": outcome.top1,
        "seconds": seconds,
        "threads": torch.get_num_threads(),
    }


def measured(command: list[str]) -> dict[str, Any]:
    """Runs `one` in a process of its own, and adds its share of the machine."""
    clock, start = Clock(), time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    others = (sum(clock.elapsed()) - own) / (time.perf_counter() - start)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**row, "cpu_seconds": own, "others_cores": others}


def difference(rows: list[dict[str, Any]]) -> float:
    """Returns the difference of mean accuracies in its standard error (Welch); 0 if nothing varies."""
    torchs, ours = ([row["top1"] for row in rows if row["loader"] == name] for name in LOADERS)
    error = math.sqrt(sum(statistics.variance(each) / len(each) for each in (torchs, ours)))
    return (statistics.mean(ours) - statistics.mean(torchs)) / error if error else 0.0


def write(path: Path | None, result: dict[str, Any]) -> None:
    if path is not None:
        keep(result, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=SETTINGS)
    parser.add_argument("--data", type=Path, required=True, help="folder in which the sets are kept")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="of each loader")
    parser.add_argument("--augment", choices=["RandAugment"], help="after crop and flip")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("LOADER", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    folder = make(args.name, args.data / args.name)
    if args.one:
        print(json.dumps(one(args, folder, args.one[0], int(args.one[1]))))
        return
    rows: list[dict[str, Any]] = []
    result = {
        "machine": describe(),
        "torch": torch.__version__,
        "set": args.name,
        "settings": {**SAME, **SETTINGS[args.name], "workers": args.workers, "augment": args.augment},
        "runs": rows,
    }
    if args.json is not None and args.json.exists():
        kept = json.loads(args.json.read_text())
        if (kept["set"], kept["settings"]) != (args.name, result["settings"]):
            raise SystemExit(f"{args.json} holds runs of other settings: name another file, or remove it")
        rows += kept["runs"]
    for seed in range(args.seeds):
        for loader in LOADERS:
            if any((row["loader"], row["seed"]) == (loader, seed) for row in rows):
                continue
            row = measured([sys.executable, *sys.argv, "--one", loader, str(seed)])
            rows.append(row)
            print(
                f"{loader:9} seed {seed}: top-1 {row['top1']:.2%}, {row['seconds']:.0f} s,"
                f" {row['cpu_seconds']:.0f} s of the processor, others {row['others_cores']:.1f} cores",
                flush=True,
            )
            write(args.json, result)
    for loader in LOADERS:
        top1 = [row["top1"] for row in rows if row["loader"] == loader]
        print(f"{loader:9} mean {statistics.mean(top1):.2%}, from {min(top1):.2%} to {max(top1):.2%}")
    if args.seeds > 1:
        result["standard_errors_apart"] = difference(rows)
        print(f"difference of the means: {result['standard_errors_apart']:+.1f} standard errors")
        write(args.json, result)


if __name__ == "__main__":
    main()
