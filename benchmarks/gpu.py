"""Everything that needs a GPU, in one command: at most 25 minutes on a machine with one, without a network.

    python benchmarks/gpu.py [--data FOLDER] [--out benchmarks/work/gpu] [--minutes 25]
                             [--only PART …] [--quick]

It runs the tests marked `gpu`, and measures: rates of copies, whether copies overlap a step, how many images
torch's loader supplies, and Headrace's from a folder and from a pack with its entry points, ResNets trained
on all three, a script under `headrace run`, what is supplied on fewer cores, time and memory of a step by
precision, and what the doctor says of scripts that starve their GPU.

OUT/gpu.json is written after each part, OUT/tests.txt is what pytest prints, and OUT/gpu.md, a page for
people, is written at the end. A part that fails is noted and the others still run; no part starts once the
time is over. The exit code is 0 if every part ran.

FOLDER holds images in folders of classes; without it 2,000 are drawn. With fewer minutes rates are measured
for a shorter time. `--quick` takes small numbers everywhere, to try this script.
HEADRACE_ACCELERATOR=simulated runs it on the simulated accelerator of tests/accelerator, on a machine without
a GPU; the measurements then mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from torchvision import models
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import amp
import headrace
from machine import describe, keep

Rows = list[dict[str, Any]]

ROOT = Path(__file__).parents[1]
MINUTES = 25.0
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# What is trained, in which precision. A ResNet-18 takes several times as many images as a ResNet-50.
TRAINED = [("resnet50", "bf16"), ("resnet50", "fp32"), ("resnet18", "bf16")]
STARVED = """
import time, torch
from torch.utils.data import DataLoader, Dataset
{load}

class Slow(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.zeros(3, 64, 64), index % 10

device = torch.accelerator.current_accelerator()
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for images, labels in DataLoader(Slow(), batch_size=16):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
    optimizer.step()
"""

UNCHANGED = """
import os, sys, time, torch
from torch.utils.data import DataLoader, RandomSampler
from torchvision import models, transforms
from torchvision.datasets import ImageFolder
{load}

folder, size, name, batch_size, count = sys.argv[1], {size}, "{model}", {batch_size}, {count}
normalize = transforms.Normalize({mean}, {std})
crop = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
images = ImageFolder(folder, transforms.Compose([*crop, normalize]))
device = torch.accelerator.current_accelerator()
model = models.get_model(name).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
order = RandomSampler(images, replacement=True, num_samples=count)
workers = len(os.sched_getaffinity(0))
loader = DataLoader(
    images, batch_size, sampler=order, num_workers=workers, pin_memory={pin}, persistent_workers=True
)
for epoch in range({epochs}):
    start = time.perf_counter()
    for pixels, labels in loader:
        pixels, labels = pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(pixels), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.accelerator.synchronize()
    print(count / (time.perf_counter() - start), flush=True)
"""


class Run:
    """The parts, what they need, and when the time is over."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        device = torch.accelerator.current_accelerator(check_available=True)
        if device is None:
            sys.exit("this machine has no accelerator that torch can use")
        self.device = torch.device(device.type, torch.accelerator.current_device_index())
        self.quick: bool = arguments.quick
        self.out: Path = arguments.out
        self.out.mkdir(parents=True, exist_ok=True)
        self.minutes: float = arguments.minutes
        self.end = time.monotonic() + 60 * self.minutes
        self.images: Path = arguments.data or self._drawn()
        sizes = [path.stat().st_size for path in self.images.glob("*/*.*")]
        self.facts: dict[str, Any] = {
            "machine": describe(),
            "device": self._name(),
            "simulated": self.device.type == "simulated",
            "torch": torch.__version__,
            "images": {"count": len(sizes), "mean_bytes": round(statistics.mean(sizes))},
            "parts": {},
        }

    def seconds_left(self) -> float:
        return self.end - time.monotonic()

    def seconds(self, most: float) -> float:
        """For how long a rate is measured: `most` if this script may take its 25 minutes."""
        return 2.0 if self.quick else most * min(1.0, self.minutes / MINUTES)

    def part(self, name: str, work: Callable[[Run], Rows]) -> None:
        """Runs one part, if there is time, and writes the file again."""
        print(f"{name} …", flush=True)
        start = time.monotonic()
        part: dict[str, Any] = {}
        if self.seconds_left() < 0:
            part["failed"] = "left out, as the time was over"
        else:
            try:
                part["rows"] = work(self)
            except Exception:
                part["failed"] = traceback.format_exc(limit=-3)
        part["seconds"] = round(time.monotonic() - start, 1)
        self.facts["parts"][name] = part
        self.facts["minutes"] = round(self.minutes - self.seconds_left() / 60, 1)
        keep(self.facts, self.out / "gpu.json")

    def load(self) -> str:
        """The line with which a script loads the simulated accelerator, if it is used."""
        line = "import sys; sys.path.insert(0, 'tests'); import accelerator; accelerator.load()"
        return line if self.facts["simulated"] else ""

    def command(self, *command: object, limit: float) -> subprocess.CompletedProcess[str]:
        """Runs a command in the repository; one that takes too long is an error."""
        limit = max(10.0, min(limit, self.seconds_left()))
        texts = [str(each) for each in command]
        return subprocess.run(texts, cwd=ROOT, capture_output=True, text=True, timeout=limit)

    def _name(self) -> str:
        module = torch.get_device_module(self.device)
        name = getattr(module, "get_device_name", str)
        return str(name(self.device))

    def _drawn(self) -> Path:
        """Images made here, of the size of ImageNet's."""
        from support.jpegs import image_folder

        folder = self.out / ("images-quick" if self.quick else "images")
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            image_folder(unfinished, 100 if self.quick else 2000, side=96 if self.quick else 400)
            unfinished.rename(folder)
        return folder


def tests(run: Run) -> Rows:
    """The tests marked `gpu`, none of which is skipped for want of a device."""
    os.environ["HEADRACE_REQUIRE_GPU"] = "1"
    folders = ["packages/headrace/tests/device"] if run.quick else ["packages", "tests"]
    options = ["-q", "-m", "gpu", "-p", "no:cacheprovider"]
    done = run.command(sys.executable, "-m", "pytest", *options, *folders, limit=420)
    (run.out / "tests.txt").write_text(done.stdout)
    lines = done.stdout.splitlines()
    if done.returncode != 0:
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        raise RuntimeError("\n".join([*failed, *lines[-1:], done.stderr[-500:]]))
    return [{"tests": lines[-1]}]


def copies(run: Run) -> Rows:
    """Copies to the device from page-locked (pinned) and from other memory."""
    nbytes = 1 << (20 if run.quick else 28)
    rows = []
    for pinned in (True, False):
        host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned)
        host.to(run.device)
        torch.accelerator.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            host.to(run.device, non_blocking=True)
        torch.accelerator.synchronize()
        rate = 10 * nbytes / (time.perf_counter() - start) / 1e9
        rows.append({"from": "pinned memory" if pinned else "other memory", "GB_per_second": rate})
    return rows


def overlap(run: Run) -> Rows:
    """An epoch of copies alone, of steps alone that take as long, and of both through the feed, the best of
    three each: the last takes as long as the longer of the others if they overlap, twice as long if not."""
    count, nbytes = 30, 1 << (18 if run.quick else 26)
    data = TensorDataset(torch.zeros(count, nbytes, dtype=torch.uint8))
    side = 64 if run.quick else 4096
    weight = torch.rand(side, side, device=run.device)

    def epoch(copying: bool, steps: int) -> float:
        loader = headrace.DataLoader(data, device=run.device if copying else None, resident=False)
        torch.accelerator.synchronize()
        start = time.perf_counter()
        for _ in loader if copying else range(count):
            for _ in range(steps):
                weight.mm(weight)
        torch.accelerator.synchronize()
        return time.perf_counter() - start

    def best(copying: bool, steps: int) -> float:
        return min(epoch(copying, steps) for _ in range(3))

    epoch(True, 1)
    copied, one = best(True, 0), best(False, 1)
    steps = max(1, round(copied / one))
    computed, both = best(False, steps), best(True, steps)
    row = {"copies_seconds": copied, "steps_seconds": computed, "both_seconds": both}
    return [{**row, "times_the_longer": both / max(copied, computed)}]


def feeds(run: Run, workers: int) -> Iterator[tuple[str, int, Iterable[Any]]]:
    """Random batches of the same images on the device, in one epoch that is longer than any measurement: by
    torch's loader, and by Headrace from the folder and from a pack of it. The number is of batches that are
    ready at about the same time: those of all workers, which start together."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(64 if run.quick else 224),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    batch_size, memory_format = 8 if run.quick else 256, torch.channels_last
    folder = ImageFolder(str(run.images), transform)

    def order(dataset: Any) -> dict[str, Any]:
        return {"sampler": RandomSampler(dataset, replacement=True, num_samples=1_000_000)}

    def copied() -> Iterator[Any]:
        pool = {"num_workers": workers, "prefetch_factor": 4, "pin_memory": not run.facts["simulated"]}
        for images, labels in DataLoader(folder, batch_size, **order(folder), **pool):
            images = images.to(run.device, non_blocking=True).contiguous(memory_format=memory_format)
            yield images, labels.to(run.device, non_blocking=True)

    yield f"torch, folder, {workers} workers", workers, copied()
    pack = run.out / f"{run.images.name}.pack"
    if not pack.exists():
        done = run.command(sys.executable, "-m", "headrace", "pack", run.images, pack, limit=120)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-500:])
    for source, dataset in (("folder", folder), ("pack", headrace.PackedDataset(pack, transform))):
        options = {"device": run.device, "memory_format": memory_format}
        yield f"Headrace, {source}", 1, headrace.DataLoader(dataset, batch_size, **order(dataset), **options)


def rate(
    batches: Iterable[Any], step: Callable[[Any, Any], None], seconds: float, together: int = 1
) -> float:
    """Images/s of steps, for so many seconds after the first ones, which aren't counted: for two seconds, in
    which batches that were fetched ahead are used up, and at least three. If batches come `together`, so many
    at once, only whole groups of them are counted."""
    count, begin, start = 0, time.perf_counter(), 0.0
    for number, (images, labels) in enumerate(batches):
        step(images, labels)
        if start:
            count += len(images)
            if time.perf_counter() - start > seconds and number % together == 0:
                break
        elif number >= 2 and number % together == 0 and time.perf_counter() - begin > min(2.0, seconds):
            torch.accelerator.synchronize()
            start = time.perf_counter()
    torch.accelerator.synchronize()
    return count / (time.perf_counter() - start)


def supply(run: Run) -> Rows:
    """The loader alone: images that it decodes, crops, flips, normalizes and copies to the device. The pack
    has entry points, by which a crop is decoded without all that comes before it."""
    usable = len(os.sched_getaffinity(0))
    rows = []
    for workers in sorted({max(1, usable // 2), usable}):
        for loader, together, batches in feeds(run, workers):
            if workers == usable or loader.startswith("torch"):
                each = rate(batches, lambda *_: None, run.seconds(15.0), together)
                rows.append({"loader": loader, "cores": usable, "images_per_second": each})
    return rows


def cores(run: Run) -> Rows:
    """What is supplied on some of the cores. Two of them may be threads of one physical core."""
    usable = sorted(os.sched_getaffinity(0))
    rows = []
    for count in (1, 4, 8):
        if count >= len(usable):
            break
        out = run.out / f"cores-{count}"
        command = ["taskset", "-c", ",".join(map(str, usable[:count])), sys.executable, __file__]
        options = ["--data", run.images, "--minutes", run.minutes, "--only", "supply", "--out", out]
        done = run.command(*command, *options, *(["--quick"] if run.quick else []), limit=180)
        if done.returncode != 0:
            raise RuntimeError(f"{done.stdout[-500:]}{done.stderr[-500:]}")
        rows += json.loads((out / "gpu.json").read_text())["parts"]["supply"]["rows"]
    return rows


def training(run: Run) -> Rows:
    """ResNets. The GPU is busy for as much of the time as the rate is of that of steps on one batch again and
    again. Peak is of torch's memory."""
    usable = len(os.sched_getaffinity(0))
    rows = []
    for name, precision in TRAINED[-1:] if run.quick else TRAINED:
        step = step_of(run, name, amp.DTYPES[precision])
        module = torch.get_device_module(run.device)
        count, side = (8, 64) if run.quick else (256, 224)
        images = torch.randn(count, 3, side, side, device=run.device).to(memory_format=torch.channels_last)
        kept = images, torch.randint(10, (count,), device=run.device)
        alone = rate(itertools.repeat(kept), step, run.seconds(30.0))
        for loader, together, batches in feeds(run, usable):
            module.reset_peak_memory_stats(run.device)
            fed = rate(batches, step, run.seconds(30.0), together)
            peak = module.max_memory_allocated(run.device)
            row = {"model": name, "precision": precision, "loader": loader, "images_per_second": fed}
            rows.append({**row, "of_steps_alone": alone, "GPU_busy": fed / alone, "peak_MB": peak / 1e6})
    return rows


def step_of(run: Run, name: str, dtype: torch.dtype | None) -> Callable[[Any, Any], None]:
    """A step of training: forward, loss, backward and SGD."""
    model = models.get_model(name, weights=None).to(run.device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(run.device.type, dtype=dtype, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def precisions(run: Run) -> Rows:
    """A step on one batch that stays on the device, by precision: its time (the median), what autograd keeps
    for the backward pass, and the peak of torch's memory on CUDA."""
    small = ("resnet18", 4, 64, 2)
    rows = amp.run(*(small if run.quick else ("resnet50", 64, 224, 20)), run.device)
    facts = [asdict(row) for row in rows]
    for row in facts:
        row["seconds"] = statistics.median(row["seconds"]) if row["seconds"] else None
    return facts


def unchanged(run: Run, epochs: int) -> Path:
    """A script that trains a ResNet-50 in bf16 from the folder with torch's loader and as many workers as
    there are cores."""
    size, model, batch_size, count = (64, "resnet18", 8, 64) if run.quick else (224, "resnet50", 256, 20_480)
    facts = {"size": size, "model": model, "batch_size": batch_size, "count": count, "mean": MEAN, "std": STD}
    facts |= {"load": run.load(), "pin": not run.facts["simulated"], "epochs": epochs}
    file = run.out / "train.py"
    file.write_text(UNCHANGED.format(**facts))
    return file


def script(run: Run) -> Rows:
    """A script that trains a ResNet-50 in bf16 from the folder with torch's loader and as many workers as
    there are cores, run by Python, and by `headrace run` without a change: images per second of its last
    epoch, and how long the whole took."""
    rows = []
    for how in ([], ["-m", "headrace", "run"]):
        began = time.monotonic()
        done = run.command(sys.executable, *how, unchanged(run, 2), run.images, limit=120)
        if done.returncode != 0:
            raise RuntimeError(f"{done.stdout[-500:]}{done.stderr[-1000:]}")
        rates = [float(line) for line in done.stdout.splitlines() if line[:1].isdigit()]
        command = " ".join(["python", *how, "train.py"])
        seconds = time.monotonic() - began
        rows.append({"command": command, "images_per_second": rates[-1], "seconds": seconds})
    return rows


def diagnosed(run: Run) -> Rows:
    """What the doctor says of that script, and what it expects of its advice."""
    report = doctor(run, unchanged(run, 100), run.images)
    rows = []
    for cause in report["causes"]:
        advice = [one for one in report["advice"] if one["cause"] == cause["kind"]]
        rows.append({"cause": cause["sentence"], "gain": advice[0]["expected"] if advice else None})
    return rows


def doctor(run: Run, *command: object) -> dict[str, Any]:
    """The doctor's report of a script."""
    options = ["-m", "headrace", "doctor", "run", "--quiet", "--json", "-"]
    done = run.command(sys.executable, *options, *command, limit=180)
    if done.returncode != 0:
        raise RuntimeError(f"{done.stdout[-500:]}{done.stderr[-1000:]}")
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def starved(run: Run) -> Rows:
    """What the doctor says of a script whose samples sleep for 10 ms each."""
    file = run.out / "starved.py"
    file.write_text(STARVED.format(load=run.load()))
    causes = doctor(run, file)["causes"]
    return [{"kind": cause["kind"], "cause": cause["sentence"]} for cause in causes]


PARTS: dict[str, Callable[[Run], Rows]] = {
    "tests": tests,
    "copies": copies,
    "overlap": overlap,
    "supply": supply,
    "training": training,
    "starved": starved,
    "script": script,
    "diagnosed": diagnosed,
    "precisions": precisions,
    "cores": cores,
}


def page(facts: dict[str, Any]) -> str:
    """The facts as a page for people."""
    machine, parts = facts["machine"], facts["parts"]
    failed = [name for name, part in parts.items() if "failed" in part]
    state = f"failed or left out: {', '.join(failed)}" if failed else "every part ran"
    lines = [f"# {facts['device']}, torch {facts['torch']}", ""]
    if facts["simulated"]:
        lines += ["**On the simulated accelerator: the measurements mean nothing.**", ""]
    lines += [f"{facts['minutes']} minutes; {state}.", ""]
    lines += [
        f"{machine['cpu']}, {machine['cores_usable']} cores, {machine['date']}, {machine['commit']}.",
        "",
    ]
    for name, part in parts.items():
        text = " ".join((PARTS[name].__doc__ or "").split())
        shown = ["```text", part["failed"], "```"] if "failed" in part else table(part["rows"])
        lines += [f"## {name} ({part['seconds']} s)", "", text, "", *shown, ""]
    return "\n".join(lines)


def table(rows: Rows) -> list[str]:
    """Rows, which have the same names, as lines of Markdown."""

    def cell(value: Any) -> str:
        if isinstance(value, int | float):
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return "" if value is None else str(value)

    names = [name.replace("_", " ") for name in rows[0]] if rows else ["nothing"]
    cells = [names, ["---"] * len(names), *([cell(value) for value in row.values()] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="images in folders of classes")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/work/gpu")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="that it may take (default: 25)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--quick", action="store_true", help="small numbers, to try this script")
    sys.path.insert(0, str(ROOT / "tests"))
    if os.environ.get("HEADRACE_ACCELERATOR") == "simulated":
        import accelerator

        accelerator.load()
    arguments = parser.parse_args()
    run = Run(arguments)
    for name in arguments.only:
        run.part(name, PARTS[name])
    text = page(run.facts)
    (run.out / "gpu.md").write_text(text)
    print(text)
    sys.exit(any("failed" in part for part in run.facts["parts"].values()))


if __name__ == "__main__":
    main()
