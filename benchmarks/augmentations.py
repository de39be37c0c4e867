"""Images per second of one augmentation each in a loader, in the manner of albumentations' published table.

    python benchmarks/augmentations.py --data data                 (about 45 minutes on 2 cores)

Each row is RandomCrop(224), the augmentation (always applied), normalization, a tensor and a batch of 256,
with 8 workers, as in the table "DataLoader pipeline" of albumentations.ai/docs/benchmarks/image-benchmarks:
by albumentations on arrays of OpenCV, by torchvision on uint8 tensors, and by torchvision on Pillow's images,
from images that are decoded in memory ("memory", as published) and from JPEG files ("files"). Each runs in a
process of its own in torch's DataLoader and in Headrace's. Rates are kept after each process: run again after
an interruption, it measures what is missing.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import albumentations as A  # noqa: N812  (its own name for it)
import cv2
import torch
import torchvision.io
from albumentations.pytorch import ToTensorV2
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import headrace
import machine
import pictures

HERE = Path(__file__).resolve().parent
LOADERS = {"torch": DataLoader, "headrace": headrace.DataLoader}
LIBRARIES = ("albumentations", "torchvision", "Pillow")
SOURCES = ("memory", "files")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# By augmentation: what albumentations and torchvision call it, with the arguments of the published table.
ROWS: dict[str, tuple[Any, Any]] = {
    "HorizontalFlip": (A.HorizontalFlip(p=1), v2.RandomHorizontalFlip(1)),
    "VerticalFlip": (A.VerticalFlip(p=1), v2.RandomVerticalFlip(1)),
    "Rotate": (A.Rotate(45, p=1), v2.RandomRotation(45, v2.InterpolationMode.BILINEAR)),
    "Perspective": (A.Perspective((0.05, 0.1), p=1), v2.RandomPerspective(0.1, 1)),
    "ColorJitter": (
        A.ColorJitter((0.5, 1.5), (0.5, 1.5), (0.5, 1.5), (-0.5, 0.5), p=1),
        v2.ColorJitter(0.5, 0.5, 0.5, 0.5),
    ),
    "Grayscale": (A.ToGray(p=1), v2.RandomGrayscale(1)),
    "GaussianBlur": (A.GaussianBlur((5, 5), (2, 2), p=1), v2.GaussianBlur(5, (2.0, 2.0))),
    "Posterize": (A.Posterize(4, p=1), v2.RandomPosterize(4, 1)),
    "Solarize": (A.Solarize((0.5, 0.5), p=1), v2.RandomSolarize(128, 1)),
    "Equalize": (A.Equalize(p=1), v2.RandomEqualize(1)),
    "AutoContrast": (A.AutoContrast(p=1), v2.RandomAutocontrast(1)),
    "Invert": (A.InvertImg(p=1), v2.RandomInvert(1)),
}


def chain(library: str, name: str) -> Callable[[Any], Any]:
    """The transform of one image by a library."""
    ours, theirs = ROWS[name]
    if library == "albumentations":
        crop = A.RandomCrop(224, 224, pad_if_needed=True)
        composed = A.Compose([crop, ours, A.Normalize(), ToTensorV2()])
        return lambda image: composed(image=image)["image"]
    tensor = [v2.ToImage()] if library == "Pillow" else []
    end = [*tensor, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose([v2.RandomCrop(224, pad_if_needed=True), theirs, *end])


def opened(library: str, path: str) -> Any:
    """An image as the library has it."""
    if library == "albumentations":
        return cv2.imread(path, cv2.IMREAD_COLOR_RGB)
    if library == "torchvision":
        return torchvision.io.decode_image(path, mode="RGB")
    return Image.open(path).convert("RGB")


class Images(Dataset[Any]):
    """Augmented images, opened each time that they are asked for or once."""

    def __init__(self, paths: list[str], library: str, name: str, source: str) -> None:
        self.library, self.paths = library, paths
        self.transform = chain(library, name)
        self.images = [opened(library, path) for path in paths] if source == "memory" else None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = opened(self.library, self.paths[index]) if self.images is None else self.images[index]
        return self.transform(image)


def one_thread(_worker: int) -> None:
    """Keeps OpenCV's own threads from competing with the workers, as albumentations advises."""
    cv2.setNumThreads(0)


def rate(arguments: argparse.Namespace) -> float:
    """Images per second in this process."""
    torch.set_num_threads(1)
    name, library, source, loader = arguments.one
    paths = sorted(str(path) for path in arguments.folder.rglob("*.jpg"))
    batches = LOADERS[loader](
        Images(paths, library, name, source),
        batch_size=256,
        shuffle=True,
        num_workers=arguments.workers,
        persistent_workers=True,
        worker_init_fn=one_thread if library == "albumentations" else None,
    )
    seconds = []
    for _ in range(arguments.epochs + 1):
        start = time.perf_counter()
        for _batch in batches:
            pass
        seconds.append(time.perf_counter() - start)
    return len(paths) / statistics.median(seconds[1:])


def main() -> None:
    """Measures what the file of results lacks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="where the images are kept or made")
    parser.add_argument("--count", type=int, default=2000, help="images (2000)")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2, help="timed passes of a process (2)")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--output", type=Path, default=HERE / "work" / "augmentations.json")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(rate(arguments))
        return
    folder = arguments.data / f"pictures-{arguments.count}"
    manifest = pictures.ensure(folder, arguments.count, cache=arguments.data / "cache")
    about = {"machine": machine.describe(), "foreign_cores_before": round(machine.foreign_load(), 2)}
    record = machine.continued(arguments.output) or {**about, "images": manifest, "rows": {}}
    record["workers"] = arguments.workers
    for case in itertools.product(arguments.rows, LIBRARIES, SOURCES, LOADERS):
        name, *of = case
        rates = record["rows"].setdefault(name, {})
        if ", ".join(of) in rates:
            continue
        command = [sys.executable, "-W", "ignore", __file__, "--one", *case, "--folder", str(folder)]
        command += ["--workers", str(arguments.workers), "--epochs", str(arguments.epochs)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            sys.exit(f"{case} failed:\n{done.stderr[-2000:]}")
        rates[", ".join(of)] = float(done.stdout)
        print(*case, f"{float(done.stdout):,.0f}", flush=True)
        machine.keep(record, arguments.output)


if __name__ == "__main__":
    main()
