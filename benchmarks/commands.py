"""Seconds and memory of commands as users type them, and what `headrace run --compare` prints.

    python benchmarks/commands.py data/pictures-2000               (about 5 minutes on 2 cores)

Memory is the most that a command and its processes held together: what they share counts once. Of the rounds'
comparisons, the one with the median ratio is printed and kept.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

import machine

TRAIN = """\
import sys

from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

transform = transforms.Compose(
    [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
    ]
)
train = ImageFolder(sys.argv[1], transform)
loader = DataLoader(train, batch_size=64, shuffle=True, num_workers=2)
for _epoch in range(3):
    for _images, _labels in loader:
        pass
"""
HEADRACE = "-m headrace"
COMPARE = f"{HEADRACE} run --compare 10 train.py FOLDER"
# Arguments of Python, by what the page calls them.
COMMANDS = {
    "python -c 'import torch, torchvision'": "-c 'import torch, torchvision'",
    "python -c 'import headrace'": "-c 'import headrace'",
    "headrace --help": f"{HEADRACE} --help",
    "headrace explain train.py": f"{HEADRACE} explain train.py FOLDER",
    "python train.py": "train.py FOLDER",
    "headrace run train.py": f"{HEADRACE} run train.py FOLDER",
}


def shared_memory(process: psutil.Process) -> int:
    """The bytes that a process and its descendants hold now; each page counts once."""
    total = 0
    for each in [process, *process.children(recursive=True)]:
        try:
            total += each.memory_full_info().pss
        except psutil.Error:  # it has ended
            continue
    return total


def measured(arguments: str, folder: Path, place: Path) -> dict[str, Any]:
    """The seconds that a command takes, and the most memory that it holds."""
    start, most = time.perf_counter(), 0
    command = f"{sys.executable} {arguments.replace('FOLDER', str(folder))}"
    with subprocess.Popen(f"exec {command}", shell=True, cwd=place, stdout=subprocess.DEVNULL) as running:
        process = psutil.Process(running.pid)
        while running.poll() is None:
            try:
                most = max(most, shared_memory(process))
            except psutil.Error:  # it has ended
                break
            with suppress(subprocess.TimeoutExpired):
                running.wait(0.01 if time.perf_counter() - start < 0.1 else 0.2)  # a look is slow
    if running.returncode:
        sys.exit(f"{command} ended with {running.returncode}")
    return {"seconds": time.perf_counter() - start, "bytes": most}


def times_as_fast(output: str) -> float:
    """The ratio that `headrace run --compare` has printed."""
    found = re.search(r"([\d.]+) times as fast", output)
    if found is None:
        sys.exit(f"{COMPARE} has printed no ratio: {output}")
    return float(found[1])


def main() -> None:
    """Measures and prints all commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="class folders of JPEGs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    record = {"machine": machine.describe(), "foreign_cores_before": round(machine.foreign_load(), 2)}
    with tempfile.TemporaryDirectory() as place:
        Path(place, "train.py").write_text(TRAIN)
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in COMMANDS}
        compared: list[str] = []
        command = f"{sys.executable} {COMPARE.replace('FOLDER', str(given.folder.resolve()))}"
        for _ in range(given.rounds):
            for name, arguments in COMMANDS.items():
                runs[name].append(measured(arguments, given.folder.resolve(), Path(place)))
            done = subprocess.run(command, shell=True, cwd=place, capture_output=True, text=True, check=True)
            compared.append(done.stdout)
    compared.sort(key=times_as_fast)
    middle = compared[len(compared) // 2]
    for name, each in runs.items():
        seconds, memory = (statistics.median(run[key] for run in each) for key in ("seconds", "bytes"))
        print(f"{name:40} {seconds:7.2f} s {memory / 1e6:7.0f} MB")
    print(middle)
    if given.json:
        ratios = [times_as_fast(each) for each in compared]
        kept = {**record, "runs": runs, "compare": middle.splitlines(), "compare_ratios": ratios}
        machine.keep(kept, given.json)


if __name__ == "__main__":
    main()
