"""Epochs under random faults for hours: does anything grow, is every sample accounted for?

python soak.py --seconds 7200 [--seed 0] [--out FILE.json]

Native, threaded, caller's and worker loaders take turns over a folder of images. Meanwhile worker processes
are killed, images are damaged and repaired between epochs, the loop pauses, and epochs are left early. Of
every epoch each sample must have come exactly once, with its right pixels, or be among the failures, where
exactly the damaged ones are, and those that were being made twice when their worker was killed. No finalizer
and no thread may raise.

After each round resident memory, descriptors, threads and processes are noted. At the end a slope is fitted
to each (Theil and Sen's: the median of the slopes of all pairs), the first fifth left out, and what it comes
to over the time watched must be less than what is allowed. Prints one object of JSON; exits with 0 if all was
well.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import multiprocessing
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tests"))

import headrace
from support.jpegs import image_folder

PICTURES = 60
BATCH = 5
KINDS = ("native", "process", "unknown", "thread", "caller")
# What a slope may come to over the whole time: a file or thread that is lost shows as one or more, memory
# as what an allocator keeps or gives back by chance.
ALLOWED = {"files": 0.9, "threads": 0.9, "processes": 0.9, "resident_mb": 16.0}
MEAN_SECONDS = 0.1  # between two kills
MOST_KILLS = 3  # in an epoch
POINTS = 400  # of those noted, for the fit


class Files(Dataset[Any]):
    """A folder of images read by Python, with what is drawn for each."""

    def __init__(self, samples: list[tuple[str, int]], transform: Any) -> None:
        self.samples = samples
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(default_loader(self.samples[index][0])), index


class Killer(threading.Thread):
    """Kills a worker process now and then: as many as are wanted, as those that are killed four times before
    anything comes aren't replaced any more."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.left = 0
        self.kills = 0
        self._chance = chance
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(self._chance.expovariate(1 / MEAN_SECONDS)):
            workers = multiprocessing.active_children() if self.left > 0 else []
            if workers:
                self.left -= 1
                self.kills += 1
                self._chance.choice(workers).kill()

    def end(self) -> None:
        self._ended.set()
        self.join()


class Soak:
    """All of it.

    Args:
        folder: of the images.
        chance: draws what happens.
    """

    def __init__(self, folder: str, chance: random.Random) -> None:
        self.chance = chance
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.points: list[tuple[float, dict[str, float]]] = []
        self.killer = Killer(random.Random(chance.random()))
        # What Python only prints: of finalizers, and of threads.
        sys.unraisablehook = lambda seen: self.faults.append(f"unraisable: {seen.object}: {seen.exc_value!r}")
        threading.excepthook = lambda seen: self.faults.append(f"a thread: {seen.exc_value!r}")
        steps = [transforms.Resize(40), transforms.CenterCrop(32), transforms.PILToTensor()]
        self.whole = transforms.Compose(steps)
        self.unknown = transforms.Compose([*steps[:2], transforms.Lambda(as_it_is), steps[2]])
        self.folder = folder
        found = ImageFolder(folder).samples
        self.samples = [(path, index) for index, (path, _) in enumerate(found)]
        self.bytes = [Path(path).read_bytes() for path, _ in self.samples]
        self.expected = [self.whole(default_loader(path)) for path, _ in self.samples]

    def run(self, seconds: float) -> None:
        """Rounds, until the time is over."""
        self.killer.start()
        start = time.monotonic()
        try:
            while time.monotonic() - start < seconds and len(self.faults) < 10:
                self.round()
                self.points.append((time.monotonic() - start, held()))
        finally:
            self.killer.end()

    def round(self) -> None:
        """Loaders of all kinds, a few epochs of each, and then none."""
        self.counts["rounds"] += 1
        kinds = list(KINDS)
        self.chance.shuffle(kinds)
        for kind in kinds:
            loader = self.loader(kind)
            for _ in range(self.chance.randrange(1, 5)):
                damaged = self.damage()
                self.killer.left = self.chance.randrange(MOST_KILLS + 1)
                try:
                    self.epoch(kind, loader, damaged)
                except Exception as error:
                    self.faults.append(f"{kind}: {type(error).__name__}: {error}")
                self.killer.left = 0
                self.mend(damaged)
            del loader

    def loader(self, kind: str) -> headrace.DataLoader:
        """A new one."""
        if kind in ("native", "unknown"):
            dataset: Any = ImageFolder(self.folder, self.whole if kind == "native" else self.unknown)
            dataset.samples = dataset.imgs = self.samples
            dataset.targets = [index for _, index in self.samples]
        else:
            dataset = Files(self.samples, self.whole)
        options: dict[str, Any] = {"num_workers": 0 if kind == "caller" else 2}
        if kind in ("process", "thread"):
            options["worker_kind"] = kind
        seed = self.chance.randrange(1 << 32)
        return headrace.DataLoader(dataset, BATCH, shuffle=True, seed=seed, on_error="skip", **options)

    def damage(self) -> set[int]:
        """Which images can't be read in the next epoch."""
        damaged = set(self.chance.sample(range(PICTURES), self.chance.choice([0, 0, 1, 5])))
        for index in damaged:
            path = Path(self.samples[index][0])
            how = self.chance.randrange(4)
            if how == 0:
                path.unlink()
            else:
                path.write_bytes([b"", self.bytes[index][:100], b"no picture"][how - 1])
        self.counts["damaged"] += len(damaged)
        return damaged

    def mend(self, damaged: set[int]) -> None:
        """Puts the images back."""
        for index in damaged:
            Path(self.samples[index][0]).write_bytes(self.bytes[index])

    def epoch(self, kind: str, loader: headrace.DataLoader, damaged: set[int]) -> None:
        """One epoch, and whether all of it is accounted for."""
        known = len(loader.stats().failures)
        leave_after = self.chance.randrange(PICTURES // BATCH) if self.chance.random() < 0.2 else None
        seen: Counter[int] = Counter()
        lost: set[int] = set()
        for batch in self.batches(loader, lost):
            for image, index in zip(batch[0], batch[1].tolist(), strict=True):
                seen[index] += 1
                if not torch.equal(image, self.expected[index]):
                    self.faults.append(f"{kind}: sample {index} has other pixels")
            if self.chance.random() < 0.03:
                self.counts["pauses"] += 1
                time.sleep(self.chance.uniform(0.02, 0.3))
            if leave_after is not None and len(seen) >= BATCH * leave_after:
                self.counts["left early"] += 1
                break
        self.counts[f"epochs, {kind}"] += 1
        self.counts["samples"] += seen.total()
        failures = loader.stats().failures[known:]
        failed = Counter(failure.index for failure in failures)
        blamed = {failure.index for failure in failures if "ended its worker process twice" in failure.cause}
        self.counts["blamed"] += len(blamed) + len(lost)
        every = seen + failed + Counter(lost)
        whole = leave_after is not None or set(every) == set(range(PICTURES))
        if not whole or max(every.values(), default=1) > 1 or not set(failed) - blamed <= damaged:
            missing = sorted(set(range(PICTURES)) - set(every))
            twice = sorted(index for index, times in every.items() if times > 1)
            self.faults.append(
                f"{kind}: missing {missing}, twice {twice}, failed {failed}, damaged {damaged}"
            )
        if set(seen) & damaged:
            self.faults.append(f"{kind}: {set(seen) & damaged} came, though damaged")

    def batches(self, loader: headrace.DataLoader, lost: set[int]) -> Iterator[Any]:
        """Those of an epoch; the samples of a batch whose worker was killed twice while it was put together
        are added to `lost`."""
        iterator = iter(loader)
        while True:
            try:
                yield next(iterator)
            except StopIteration:
                return
            except RuntimeError as error:
                found = re.search(
                    r"the batch of samples ([\d, ]+) ended its worker process twice", str(error)
                )
                if found is None:
                    raise
                lost.update(int(index) for index in found[1].split(","))

    def growth(self) -> dict[str, float]:
        """What the slope of each figure comes to over the time that was watched."""
        points = self.points[len(self.points) // 5 :]
        points = points[:: max(1, len(points) // POINTS)]
        if len(points) < 3:
            return {}
        span = points[-1][0] - points[0][0]
        return {
            name: round(
                span
                * statistics.median(
                    (b[1][name] - a[1][name]) / (b[0] - a[0]) for a, b in combinations(points, 2)
                ),
                3,
            )
            for name in ALLOWED
        }


def as_it_is(image: Any) -> Any:
    """A step that is Python's."""
    return image


def held() -> dict[str, float]:
    """The resources of this process once all that was to end has ended."""
    gc.collect()
    deadline = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "processes": len(multiprocessing.active_children()),
        "resident_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=7200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("headrace").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        soak = Soak(str(image_folder(Path(scratch), PICTURES, side=60)), random.Random(given.seed))
        soak.run(given.seconds)
    growth = soak.growth()
    faults = [*soak.faults, *(f"{name} grew by {n}" for name, n in growth.items() if n > ALLOWED[name])]
    report = {
        "seconds": round(soak.points[-1][0], 1) if soak.points else 0.0,
        **soak.counts,
        "kills": soak.killer.kills,
        "growth": growth,
        "first": soak.points[0][1] if soak.points else {},
        "last": soak.points[-1][1] if soak.points else {},
        "faults": faults,
    }
    text = json.dumps(report, indent=1)
    sys.stdout.write(text + "\n")
    if given.out is not None:
        given.out.write_text(text + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
