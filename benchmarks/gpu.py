"""Everything that needs a GPU, in one command: at most 25 minutes on a machine with one, without a network.

    python benchmarks/gpu.py [--data FOLDER] [--out benchmarks/work/gpu] [--quick]

Runs the tests marked `gpu`, and measures rates of copies, whether copies overlap a step, ResNet-50 trained
from a folder and from a pack with its entry points, in bf16 and fp32, and what the doctor says of a script
that starves its GPU. Writes OUT/gpu.json after each part, and a page, OUT/gpu.md, at the end. A part that
fails is noted, and the others still run; no part starts once the time is over.

FOLDER holds images in folders of classes; without it 2,000 are drawn. `--quick` takes small figures
everywhere, to try the script: with HEADRACE_ACCELERATOR=simulated on the accelerator of tests/accelerator,
whose figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset
from torchvision import models
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
from machine import describe, keep

ROOT = Path(__file__).parents[1]
MINUTES = 25.0
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
DTYPES = {"bf16": torch.bfloat16, "fp32": None}
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
        self.end = time.monotonic() + 60 * MINUTES
        self.images: Path = arguments.data or self._drawn()
        self.facts: dict[str, Any] = {
            "machine": describe(),
            "device": self._name(),
            "simulated": self.device.type == "simulated",
            "torch": torch.__version__,
            "images": str(self.images),
            "parts": {},
        }

    def seconds_left(self) -> float:
        return self.end - time.monotonic()

    def part(self, name: str, work: Callable[[Run], Any]) -> None:
        """Runs one part, if there is time, and writes the file again."""
        if self.seconds_left() < 0:
            self.facts["parts"][name] = {"left out": "the time was over"}
            return
        print(f"{name} …", flush=True)
        start = time.monotonic()
        try:
            result = work(self)
        except Exception:
            result = {"failed": traceback.format_exc(limit=-3)}
        self.facts["parts"][name] = {"seconds": round(time.monotonic() - start, 1), "result": result}
        keep(self.facts, self.out / "gpu.json")

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

        folder = self.out / "images"
        if not folder.exists():
            image_folder(folder, 100 if self.quick else 2000, side=96 if self.quick else 400)
        return folder


def tests(run: Run) -> Any:
    """The tests marked `gpu`: how many passed, and the names of those that failed."""
    os.environ["HEADRACE_REQUIRE_GPU"] = "1"
    folders = ["packages/headrace/tests/device"] if run.quick else ["packages", "tests"]
    options = ["-q", "-m", "gpu", "-p", "no:cacheprovider"]
    done = run.command(sys.executable, "-m", "pytest", *options, *folders, limit=420)
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"code": done.returncode, "summary": lines[-1] if lines else done.stderr[-500:], "failed": failed}


def copies(run: Run) -> Any:
    """GB/s of copies to the device, from pinned and other memory."""
    nbytes = 1 << (20 if run.quick else 28)
    rates = {}
    for name in ("pinned", "pageable"):
        host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=name == "pinned")
        host.to(run.device)
        torch.accelerator.synchronize()
        start = time.perf_counter()
        for _ in range(10):
            host.to(run.device, non_blocking=True)
        torch.accelerator.synchronize()
        rates[name] = 10 * nbytes / (time.perf_counter() - start) / 1e9
    return rates


def overlap(run: Run) -> Any:
    """Seconds of copies alone, steps alone, and both by the feed: near the larger one if they overlap."""
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

    epoch(True, 1)
    copied, one = epoch(True, 0), epoch(False, 1)
    steps = max(1, round(copied / one))
    return {"copies": copied, "steps": epoch(False, steps), "both": epoch(True, steps)}


def images_of(run: Run) -> Iterator[tuple[str, Any]]:
    """The same images from their folder and from a pack."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(64 if run.quick else 224),
            v2.RandomHorizontalFlip(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    yield "folder", ImageFolder(str(run.images), transform)
    pack = run.out / "images.pack"
    if not pack.exists():
        done = run.command(sys.executable, "-m", "headrace", "pack", run.images, pack, limit=120)
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-500:])
    yield "pack", headrace.PackedDataset(pack, transform)


def training(run: Run) -> Any:
    """ResNet-50: images/s with the loader and with one batch again and again, whose ratio is the
    share of time that the GPU is busy, the share of time that the step waits for data, and peak memory."""
    batch_size, seconds = (8, 2.0) if run.quick else (256, 45.0)
    rows = []
    for source, dataset in images_of(run):
        for precision, dtype in DTYPES.items():
            row = train(run, dataset, dtype, batch_size, seconds)
            rows.append({"source": source, "precision": precision, **row})
    return rows


def train(
    run: Run, dataset: Any, dtype: torch.dtype | None, batch_size: int, seconds: float
) -> dict[str, Any]:
    """Trains for about `seconds`, with batches by Headrace, and then on one batch again and again."""
    name = "resnet18" if run.quick else "resnet50"
    model = models.get_model(name, weights=None).to(run.device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    options = {"shuffle": True, "drop_last": True, "memory_format": torch.channels_last}
    loader = headrace.DataLoader(dataset, batch_size, device=run.device, **options)
    module = torch.get_device_module(run.device)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(run.device.type, dtype=dtype, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def timed(batches: Iterator[Any]) -> float:
        """Images/s after three steps that aren't counted."""
        count, start = -3, time.perf_counter()
        for images, labels in batches:
            step(images, labels)
            count += 1
            if count == 0:
                torch.accelerator.synchronize()
                start = time.perf_counter()
            elif count > 0 and time.perf_counter() - start > seconds:
                break
        torch.accelerator.synchronize()
        return count * batch_size / (time.perf_counter() - start)

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    rate = timed(endless())
    kept = next(iter(loader))
    alone = timed(iter(lambda: kept, None))
    peak = module.max_memory_allocated(run.device) if hasattr(module, "max_memory_allocated") else None
    stats = loader.stats().epochs
    return {
        "images_per_second": rate,
        "step_alone_images_per_second": alone,
        "gpu_busy": rate / alone,
        "stall_share": stats[0].stall_share if stats else None,
        "peak_bytes": peak,
    }


def starved(run: Run) -> Any:
    """The doctor's first sentences on a script whose loader is slow."""
    load = "import sys; sys.path.insert(0, 'tests'); import accelerator; accelerator.load()"
    script = run.out / "starved.py"
    script.write_text(STARVED.format(load=load if run.facts["simulated"] else ""))
    done = run.command(
        sys.executable, "-m", "headrace", "doctor", "run", "--quiet", "--json", "-", script, limit=180
    )
    if done.returncode != 0:
        raise RuntimeError(f"{done.stdout[-500:]}{done.stderr[-1000:]}")
    facts = json.loads(done.stdout)
    return [{"kind": cause["kind"], "cause": cause["sentence"]} for cause in facts["causes"]]


def amp(run: Run) -> Any:
    """Time and memory of steps by precision."""
    out = run.out / "amp.json"
    small = ["--arch", "resnet18", "--batch-size", "4", "--size", "64", "--steps", "2"] if run.quick else []
    done = run.command(sys.executable, "benchmarks/amp.py", "--json", out, *small, limit=240)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-1000:])
    return json.loads(out.read_text())["rows"]


PARTS: dict[str, Callable[[Run], Any]] = {
    "tests": tests,
    "copies": copies,
    "overlap": overlap,
    "training": training,
    "amp": amp,
    "starved": starved,
}


def page(facts: dict[str, Any]) -> str:
    """The facts as a page for people."""
    lines = [f"# {facts['device']}, torch {facts['torch']}", ""]
    if facts["simulated"]:
        lines += ["**On the simulated accelerator: the figures mean nothing.**", ""]
    for name, part in facts["parts"].items():
        lines += [f"## {name}", "", f"{part.get('seconds', 0)} s", "", *shown(part.get("result", part)), ""]
    return "\n".join(lines)


def shown(result: Any) -> list[str]:
    """Rows as a table, and anything else as JSON."""
    if not isinstance(result, list) or not result:
        return ["```json", json.dumps(result, indent=1), "```"]
    names = list(result[0])
    rows = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()] for row in result]
    return [f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="images in folders of classes")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/work/gpu")
    parser.add_argument("--quick", action="store_true", help="small figures, to try this script")
    sys.path.insert(0, str(ROOT / "tests"))
    if os.environ.get("HEADRACE_ACCELERATOR") == "simulated":
        import accelerator

        accelerator.load()
    run = Run(parser.parse_args())
    for name, work in PARTS.items():
        run.part(name, work)
    text = page(run.facts)
    (run.out / "gpu.md").write_text(text)
    print(text)
    sys.exit(any("failed" in str(part.get("result", ""))[:12] for part in run.facts["parts"].values()))


if __name__ == "__main__":
    main()
