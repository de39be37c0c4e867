"""How fast image files are packed, and how large the pack is: `python benchmarks/packing.py FOLDER`.

Every run is a fresh process on files that were just read once (warm). Rates are the median of the
repetitions; the spread is from the slowest to the fastest. Time is that of `headrace.pack`, from listing the
files to the renamed folder: writing to the disk included, starting Python not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import describe


def run_once(src: str, dest: str, workers: int, optimize: bool) -> dict[str, float]:
    """One run in this process: images per second, and the pack's size over the source's."""
    import headrace
    from headrace._native import ffi

    ffi.library()
    begin, cpu = time.perf_counter(), time.process_time()
    summary = headrace.pack(src, dest, workers=workers, optimize=optimize)
    seconds = time.perf_counter() - begin
    return {
        "per_second": summary.samples / seconds,
        "cpu_ms_per_image": 1000 * (time.process_time() - cpu) / summary.samples,
        "size": summary.pack_bytes / summary.source_bytes,
        "images": summary.samples,
        "bytes_per_image": summary.source_bytes / summary.samples,
    }


def run_apart(folder: Path, place: Path, workers: int, optimize: bool) -> dict[str, float]:
    """The same in a fresh process."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.read_bytes()
    with tempfile.TemporaryDirectory(dir=place) as dest:
        call = f"import packing; packing.child({str(folder)!r}, {dest + '/pack'!r}, {workers}, {optimize})"
        done = subprocess.run(
            [sys.executable, "-c", call],
            stdout=subprocess.PIPE,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        )
    result: dict[str, float] = json.loads(done.stdout)
    return result


def child(src: str, dest: str, workers: int, optimize: bool) -> None:
    """Prints what `run_once` measured."""
    print(json.dumps(run_once(src, dest, workers, optimize)))


def main() -> None:
    """Measures all rows, going round them, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="an ImageFolder tree of JPEGs")
    parser.add_argument("--place", type=Path, default=tempfile.gettempdir(), help="where packs are written")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, help="a JSON file for all runs")
    arguments = parser.parse_args()
    rows = [(optimize, workers) for optimize in (False, True) for workers in arguments.workers]
    runs: dict[tuple[bool, int], list[dict[str, float]]] = {row: [] for row in rows}
    for _ in range(arguments.repetitions):
        for optimize, workers in rows:
            runs[optimize, workers].append(run_apart(arguments.folder, arguments.place, workers, optimize))
    print(f"{'':<10} {'workers':>7} {'images/s':>9} {'spread':>13} {'CPU ms/image':>13} {'size':>8}")
    for (optimize, workers), results in runs.items():
        rates = [result["per_second"] for result in results]
        cpu = statistics.median(result["cpu_ms_per_image"] for result in results)
        print(
            f"{'--optimize' if optimize else 'as it is':<10} {workers:>7} {statistics.median(rates):>9,.0f}"
            f" {min(rates):>6,.0f}-{max(rates):<6,.0f} {cpu:>13.3f} {results[0]['size']:>8.2%}"
        )
    if arguments.out is not None:
        found = [{"optimize": o, "workers": w, "runs": results} for (o, w), results in runs.items()]
        arguments.out.write_text(json.dumps({"machine": describe(), "rows": found}, indent=1))


if __name__ == "__main__":
    main()
