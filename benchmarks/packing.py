"""Measures how fast image files are packed, and how large the pack is: `python benchmarks/packing.py FOLDER`.

Every run is a fresh process on files that were just read once (warm), which packs them once unmeasured: in
a virtual machine, memory that is touched for the first time costs more than the work on it. Rates are the
median of the repetitions; the spread is from the slowest to the fastest. Time is that of `headrace.pack`,
from listing the files to the renamed folder: writing to the disk included, starting Python not. "CPU
ms/image" is the processor time of all threads: with two workers it should be that of one.

`python benchmarks/packing.py --records 10000000` measures memory instead: of listing so many generated
samples, of putting them into a random order, and of writing the index of a pack that has them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from machine import describe, keep


def run_once(src: str, dest: str, workers: int, optimize: bool) -> dict[str, float]:
    """A second run in this process: images per second, and the pack's size over the source's."""
    import headrace
    from headrace._native import ffi

    ffi.library()
    headrace.pack(src, dest, workers=workers, optimize=optimize)
    shutil.rmtree(dest)
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


def memory(count: int, place: Path) -> None:
    """Prints the largest memory of this process up to the end of each step towards an index of `count`
    samples: what it allocated itself, and that with the files that it maps, which the system may drop."""
    from headrace._native.ffi import ImageFacts
    from headrace.packs.rows import Packed, Rows, part_path, write_index
    from headrace.packs.samples import Item, Listing, Sample, make_layout
    from headrace.sources.pack_index import PackAbout, Shard

    begin, image, most = time.perf_counter(), bytes(100), 0

    def watch() -> None:
        nonlocal most
        while True:
            lines = Path("/proc/self/status").read_text().splitlines()
            own = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
            most = max(most, own * 1024)
            time.sleep(0.1)

    def report(step: str) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        seconds = time.perf_counter() - begin
        print(f"{step:<16} {most / 1e6:>9,.0f} MB {peak / 1e6:>9,.0f} MB {seconds:>8,.0f} s", flush=True)

    threading.Thread(target=watch, daemon=True).start()
    time.sleep(0.2)
    print(f"{'':<16} {'allocated':>12} {'with files':>12} {'time':>10}")
    report("started")
    names = ((f"n{i % 1000:08}/n{i % 1000:08}_{i}", i) for i in range(count))
    items = Listing.of(Item(key, 110_000, 10**18 + i, i % 1000, (f"{key}.JPEG",)) for key, i in names)
    report("listed")
    layout = make_layout(items, 500_000_000, shuffle=0)
    report("ordered")
    with tempfile.TemporaryDirectory(dir=place) as folder:
        part_path(Path(folder), 0).parent.mkdir()
        parts = []
        for shard in range(layout.shards):
            rows = Rows(shard)
            for i, item in enumerate(layout.of(shard)):
                sample = Sample(item.key, "jpg", image, item.number)
                facts = ImageFacts(0, 500, 400, bytes(100))
                rows.add(Packed(sample, (image,), 0, facts), 110_000 * i)
            parts.append(rows.write(part_path(Path(folder), shard), 500_000_000))
        report("rows written")
        shards = tuple(Shard(f"shard-{i:06}.tar", 500_000_000) for i in range(layout.shards))
        index = write_index(Path(folder), parts, PackAbout("tar", shards))
        report("index written")
        print(f"the index has {index.stat().st_size / 1e6:,.0f} MB, entry points of 100 bytes included")


def main() -> None:
    """Measures all rows, going round them, and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="an ImageFolder tree of JPEGs")
    parser.add_argument("--records", type=int, help="measure the memory of so many generated samples")
    parser.add_argument("--place", type=Path, default=tempfile.gettempdir(), help="where packs are written")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, help="a JSON file for all runs")
    arguments = parser.parse_args()
    if arguments.records is not None:
        memory(arguments.records, arguments.place)
        return
    if arguments.folder is None:
        parser.error("give a folder, or --records")
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
        keep({"machine": describe(), "rows": found}, arguments.out)


if __name__ == "__main__":
    main()
