"""Cuts a set of ImageNet-like JPEGs, in class folders, from real photographs.

Windows around 500×375 (portrait too), scaled down by up to 6, quality 85–96, 4:2:0: about what a folder of
ImageNet holds. Wallpapers without a photograph's detail (gradients, drawings) are left out. Image i depends
on (seed, i) and the photographs only, so a smaller set is a prefix of a larger one. Run again with the same
parameters, it finds its manifest and returns at once.

    python benchmarks/pictures.py --out data/pictures-2000 --count 2000
"""

import argparse
import io
import json
import multiprocessing
import os
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import PIL
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from photographs import DEBIAN_PACKAGES, Photographs, fetch

FORMAT = 1  # raise it when the images change: sets made before are then made again
CLASSES = 10
SIZES = ((500, 375), (375, 500), (500, 333), (333, 500), (500, 400), (400, 500), (500, 500), (640, 480))
SHARES = (0.46, 0.16, 0.12, 0.05, 0.06, 0.03, 0.05, 0.07)
QUALITIES = (85, 96)
LARGEST_SCALE = 6.0
BYTES = (95_000, 0.35)  # median and sigma of the log-normal size that each image aims at
USUAL_BYTES = (70_000, 110_000)  # means of the set as a whole
TRIES = 8  # windows looked at for one that is rich enough
SMALLEST_PHOTOGRAPH = 400  # pixels on the short side
LEAST_DETAIL = 0.15  # bytes per pixel, at quality 90 and 1,000 pixels on the long side
CUTS_PER_JOB = 80  # a job decodes its photograph once, which takes as long as ten cuts


def ensure(out: Path, count: int, seed: int = 0, cache: Path | None = None) -> dict:
    """Makes the set in `out` unless it is there; gives its manifest: origin, mean bytes and pixels."""
    parameters = {"format": FORMAT, "count": count, "seed": seed}
    manifest_path = out / "manifest.json"
    if manifest_path.is_file():
        manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
        if all(manifest.get(key) == value for key, value in parameters.items()):
            return manifest
    console = Console(stderr=True)
    with console.status("Fetching photographs (about 150 MB, once)"):
        photographs = fetch(cache if cache is not None else out.parent / "cache")
    # Images that an interrupted run has cut are kept, if they are of the same set.
    partial = out.with_name(out.name + ".partial")
    plan, plan_path = {**parameters, "origin": photographs.origin}, partial / "manifest.json"
    if not plan_path.is_file() or json.loads(plan_path.read_text(encoding="utf-8")) != plan:
        shutil.rmtree(partial, ignore_errors=True)
        for label in range(CLASSES):
            (partial / f"class_{label}").mkdir(parents=True)
        plan_path.write_text(json.dumps(plan), encoding="utf-8")
    manifest = {**parameters, **_cut_all(photographs, partial, count, seed, console)}
    plan_path.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(out, ignore_errors=True)
    partial.rename(out)
    return manifest


def _cut_all(photographs: Photographs, out: Path, count: int, seed: int, console: Console) -> dict:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console)
    spawn = multiprocessing.get_context("spawn")
    with bar, ProcessPoolExecutor(len(os.sched_getaffinity(0)), mp_context=spawn) as pool:
        paths = _detailed(photographs.paths, pool, bar)
        jobs: dict[int, list[int]] = {}
        for index in range(count):
            jobs.setdefault(int(np.random.default_rng([seed, index]).integers(len(paths))), []).append(index)
        futures = [
            pool.submit(_cut, paths[photo], indices[start : start + CUTS_PER_JOB], out, photo % CLASSES, seed)
            for photo, indices in jobs.items()
            for start in range(0, len(indices), CUTS_PER_JOB)
        ]
        task = bar.add_task("Cutting images", total=count)
        sizes: list[tuple[int, int, int]] = []
        for future in as_completed(futures):
            sizes += future.result()
            bar.update(task, completed=len(sizes))
    means = np.mean(sizes, axis=0)
    return {
        "origin": photographs.origin,
        "photographs": len(paths),
        "pillow": PIL.__version__,
        "mean_bytes": round(float(means[0])),
        "mean_width": round(float(means[1]), 1),
        "mean_height": round(float(means[2]), 1),
    }


def _detailed(paths: list[Path], pool: ProcessPoolExecutor, bar: Progress) -> list[Path]:
    """The paths of photographs with enough detail; all that are large enough where too few have it."""
    task = bar.add_task("Choosing photographs", total=len(paths))
    details = []
    for detail in pool.map(_detail, paths):
        details.append(detail)
        bar.advance(task)
    large = [path for path, detail in zip(paths, details, strict=True) if detail > 0]
    detailed = [path for path, detail in zip(paths, details, strict=True) if detail >= LEAST_DETAIL]
    if not large:
        raise RuntimeError(
            f"None of the {len(paths)} photographs has {SMALLEST_PHOTOGRAPH} pixels on its short side."
        )
    return detailed if len(detailed) >= CLASSES else large


def _detail(path: Path) -> float:
    """Bytes per pixel of a reduced copy; 0 for a photograph that is too small."""
    with Image.open(path) as image:
        if min(image.size) < SMALLEST_PHOTOGRAPH:
            return 0.0
        image.draft("RGB", (1000, 1000))
        reduced = image.convert("RGB")
    reduced.thumbnail((1000, 1000), Image.Resampling.LANCZOS)
    return len(_encode(reduced, 90)) / (reduced.width * reduced.height)


def _cut(
    photograph: Path, indices: list[int], out: Path, label: int, seed: int
) -> list[tuple[int, int, int]]:
    """Writes those of the images `indices` that aren't there; gives bytes, width and height of each."""
    pixels, sizes = None, []
    for index in indices:
        path = out / f"class_{label}" / f"{index:06d}.jpg"
        if not path.is_file():
            if pixels is None:
                with Image.open(photograph) as image:
                    pixels = image.convert("RGB")
            rng = np.random.default_rng([seed, index])
            rng.integers(2)  # the draw that chose the photograph
            data = _best_window(pixels, rng)
            path.with_suffix(".partial").write_bytes(data)
            path.with_suffix(".partial").rename(path)
        with Image.open(path) as image:
            sizes.append((path.stat().st_size, *image.size))
    return sizes


def _best_window(pixels: Image.Image, rng: np.random.Generator) -> bytes:
    """The first window rich enough for the size aimed at, at the quality that meets it; else the richest."""
    width, height = SIZES[rng.choice(len(SIZES), p=SHARES)]
    if rng.random() < 0.5:  # odd sizes are half of real ones
        width, height = width - int(rng.integers(0, 12)), height - int(rng.integers(0, 12))
    wanted = rng.lognormal(np.log(BYTES[0]), BYTES[1])
    largest_scale = min(pixels.width / width, pixels.height / height, LARGEST_SCALE)
    best = b""
    for _ in range(TRIES):
        scale = rng.uniform(0.4, 1.0) * largest_scale
        window_w, window_h = width * scale, height * scale
        left, top = rng.uniform(0, pixels.width - window_w), rng.uniform(0, pixels.height - window_h)
        box = (left, top, left + window_w, top + window_h)
        cut = pixels.resize((width, height), Image.Resampling.BICUBIC, box=box, reducing_gap=1.5)
        data = _encode(cut, QUALITIES[1])
        if len(data) >= wanted:
            return _at_most(cut, wanted)
        best = max(best, data, key=len)
    return best


def _at_most(cut: Image.Image, wanted: float) -> bytes:
    """The best quality whose file is not larger than `wanted` bytes, and the lowest one where none is."""
    low, high = QUALITIES
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(_encode(cut, middle)) <= wanted else (low, middle - 1)
    return _encode(cut, low)


def _encode(cut: Image.Image, quality: int) -> bytes:
    file = io.BytesIO()
    cut.save(file, "JPEG", quality=quality, subsampling="4:2:0")
    return file.getvalue()


def doubt(manifest: dict) -> str | None:
    """Returns why results of this set do not compare with those of others, or None if they do."""
    least, most = USUAL_BYTES
    if not least <= manifest["mean_bytes"] <= most:
        return f"images of {manifest['mean_bytes']:,} bytes on average: {least:,} to {most:,} are usual"
    if not manifest["origin"].startswith("Debian") or len(manifest["origin"].split(",")) < len(
        DEBIAN_PACKAGES
    ):
        return f"other photographs than usual: {manifest['origin']}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder of class folders that is made")
    parser.add_argument("--count", type=int, default=2000, help="number of images (2000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="where photographs are kept (default: cache/ beside OUT)")
    arguments = parser.parse_args()
    try:
        manifest = ensure(arguments.out, arguments.count, arguments.seed, arguments.cache)
    except RuntimeError as error:
        sys.exit(str(error))
    print(
        f"{manifest['count']} JPEGs in {arguments.out}: mean {manifest['mean_bytes'] / 1000:.1f} kB, "
        f"{manifest['mean_width']:.0f}×{manifest['mean_height']:.0f}, from {manifest['photographs']} "
        f"photographs ({manifest['origin']})"
    )
    if reason := doubt(manifest):
        print(f"Note: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
