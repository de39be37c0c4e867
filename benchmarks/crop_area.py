"""Milliseconds per image against the crop's share of its area, by decoder; one thread, from the page cache.

"Whole" decodes every pixel, "skip" lets libjpeg-turbo skip rows and columns, "as it is" is our decoder on the
same bytes, "entry points" the same with an index of places to start at. Resizing to 224×224 and writing uint8
are in all of them alike.

    make crop-area
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, PILToTensor, RandomResizedCrop

import headrace
import machine
import pictures
from headrace._native import abi, ffi
from headrace._native.decoders import decoder_bits
from headrace.engine.lower import lower_pipeline
from headrace.packs.index import build_entry_index
from headrace.sources.folder import ENTRIES_FILE as FILE_NAME

HERE = Path(__file__).resolve().parent
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0)
ROWS = (
    ("whole, libjpeg-turbo", "libjpeg-full", False),
    ("skip, libjpeg-turbo", "libjpeg-crop", False),
    ("as it is, ours", "headrace", False),
    ("entry points, ours", "headrace", True),
)
BATCH = 200


def passes(pipeline: ffi.Pipeline, source: ffi.Source, count: int, height: int, times: int) -> float:
    """Median milliseconds per image over `times` passes."""
    pool = ffi.Pool(1, 0)
    out = torch.empty((BATCH, 3, height, height), dtype=torch.uint8)
    taken = []
    for number in range(times + 1):  # the first one warms up
        start = time.perf_counter()
        for first in range(0, count, BATCH):
            order = np.arange(first, min(first + BATCH, count))
            batch = pool.submit(pipeline, source, order, seed=0, epoch=number, output=out.data_ptr())
            while not batch.wait(100):
                pass
            if (batch.statuses["code"] != abi.OK).any():
                raise RuntimeError("an image was left to Pillow")
        taken.append((time.perf_counter() - start) / count * 1000)
    pool.close()
    return statistics.median(taken[1:])


def measure(folder: Path, times: int) -> dict[str, list[float]]:
    """Returns by row the milliseconds at each of SHARES."""
    found: dict[str, list[float]] = {name: [] for name, _, _ in ROWS}
    for share in SHARES:
        # So wide a range of shapes that torchvision finds one of this area, or takes the whole image.
        crop = RandomResizedCrop(224, scale=(share, share), ratio=(0.5, 2.0))
        dataset = ImageFolder(str(folder), Compose([crop, PILToTensor()]))
        plan = headrace.DataLoader(dataset, num_workers=1).plan().native
        for name, decoder, indexed in ROWS:
            os.environ["HEADRACE_DECODERS"] = decoder
            pipeline = lower_pipeline(plan, decoder_bits())
            entries = plan.source.entries if indexed else None
            source = ffi.Source.of_paths(plan.source.paths, plan.source.offsets, entries)
            found[name].append(passes(pipeline, source, len(dataset), 224, times))
    return found


def plot(found: dict[str, list[float]], caption: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panel = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, milliseconds in found.items():
        panel.plot([100 * share for share in SHARES], milliseconds, marker="o", markersize=3, label=name)
    panel.set_xlabel("share of the image that is cropped, %")
    panel.set_ylabel("ms per image, one thread")
    panel.set_ylim(bottom=0)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    figure.supxlabel(caption, fontsize=6)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="where images are kept or made")
    parser.add_argument("--count", type=int, default=400, help="images (400)")
    parser.add_argument("--times", type=int, default=7, help="timed passes (7)")
    parser.add_argument("--out", type=Path, default=HERE / "work", help="crop-area.json and .png go here")
    arguments = parser.parse_args()
    folder = arguments.data / f"pictures-{arguments.count}"
    manifest = pictures.ensure(folder, arguments.count, cache=arguments.data / "cache")
    had_index = (folder / FILE_NAME).exists()
    build_entry_index(folder)
    try:
        found = measure(folder, arguments.times)
    finally:
        if not had_index:  # the peers' benchmark has rows for the folder as it is
            (folder / FILE_NAME).unlink()
    drawn = Table(title="ms per image, one thread", title_justify="left")
    for heading in ("cropped", *(f"{share:.0%}" for share in SHARES)):
        drawn.add_column(heading, justify="right")
    for name, milliseconds in found.items():
        drawn.add_row(name, *(f"{value:.3f}" for value in milliseconds))
    Console(width=120).print(drawn)
    here = machine.describe()
    result = {"machine": here, "pictures": manifest, "shares": SHARES, "milliseconds": found}
    machine.keep(result, arguments.out / "crop-area.json")
    caption = (
        f"{here['cpu']}, {here['date'][:10]}; {manifest['count']} JPEGs around 500×375, 7 passes, medians"
    )
    plot(found, caption, arguments.out / "crop-area.png")


if __name__ == "__main__":
    main()
