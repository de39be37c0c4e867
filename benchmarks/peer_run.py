"""Runs one peer, once, in this process, and prints one line of JSON. Started by peers.py in its venv.

A peer is a file in peers/ that defines
    ABOUT      what it does to an image, where that differs from the others: shown in the table
    PACKAGES   distributions whose versions belong in the record
    prepare(folder, work) -> list[Path]
               makes its own format from the class folders, once, in `work`; gives the files that a run reads
    loader(folder, work, dtype, threads, **settings) -> epoch
               `epoch()` iterates once over the set: arrays or tensors of shape (batch, …); settings
               default to the best ones known

One warm-up epoch, then timed ones, each from `epoch()` to the last batch in hand.
"""

import argparse
import ast
import importlib
import json
import os
import resource
import sys
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path

BATCH_SIZE = 64
SIZE = 224
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def read_once(files: list[Path]) -> int:
    """Reads every file to its end, so that all of them are in the page cache; gives their bytes."""
    total = 0
    buffer = bytearray(1 << 22)
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def forget(files: list[Path]) -> None:
    """Drops the files from the page cache, so that the next reader's group is charged for them."""
    for path in files:
        with open(path, "rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def join_group(limit: int) -> None:
    """Puts this process and its children into a control group of `limit` bytes, page cache included.

    Needs root, and the memory controller of cgroup v1 or v2.
    """
    version1 = Path("/sys/fs/cgroup/memory")
    group = (version1 if version1.is_dir() else Path("/sys/fs/cgroup")) / f"headrace-benchmark-{os.getpid()}"
    group.mkdir()
    name = "memory.limit_in_bytes" if version1.is_dir() else "memory.max"
    (group / name).write_text(str(limit))
    (group / "cgroup.procs").write_text(str(os.getpid()))


def describe(batch: object) -> dict:
    """Shape, dtype and mean level (0–255) of a batch: peers must do the same work, or times don't compare."""
    import numpy as np

    array = np.asarray(batch)
    channels = array.reshape(array.shape[0], -1, 3) if array.shape[-1] == 3 else np.moveaxis(array, 1, -1)
    level = channels.reshape(-1, 3).astype(np.float64).mean(axis=0)
    if array.dtype != np.uint8:
        level = (level * STD + MEAN) * 255
    return {
        "shape": list(array.shape[1:]),
        "dtype": str(array.dtype),
        "mean_level": round(float(level.mean()), 2),
    }


def one_epoch(epoch) -> tuple[int, float]:
    """Images and seconds."""
    start = time.perf_counter()
    images = sum(len(batch) for batch in epoch())
    return images, time.perf_counter() - start


def cpu_seconds() -> float:
    """Processor time of this process and its children, those that still live too."""
    total = sum(os.times()[:4])
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread or child that has just ended
            for child in (task / "children").read_text().split():
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def run(arguments: argparse.Namespace) -> dict:
    peer = importlib.import_module(arguments.peer)
    settings = {key: ast.literal_eval(value) for key, value in (pair.split("=", 1) for pair in arguments.set)}
    files = peer.prepare(arguments.folder, arguments.work)
    if arguments.prepare_only:
        return {"bytes": sum(path.stat().st_size for path in files)}
    if arguments.memory_limit:
        forget(files)
        join_group(arguments.memory_limit)
    size = read_once(files)
    epoch = peer.loader(arguments.folder, arguments.work, arguments.dtype, arguments.threads, **settings)
    first, levels = None, []
    for batch in epoch():  # the warm-up: threads and workers start, pools fill
        seen = describe(batch)
        first = first or seen
        levels.append(seen["mean_level"])
    times = [one_epoch(epoch) for _ in range(arguments.epochs)]
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        **first,
        "mean_level": round(sum(levels) / len(levels), 2),
        "images": [images for images, _ in times],
        "seconds": [round(seconds, 4) for _, seconds in times],
        "bytes": size,
        "peak_rss_mb": max(own.ru_maxrss, children.ru_maxrss) // 1024,
        "cpu_seconds": round(cpu_seconds(), 2),
        "versions": {name: metadata.version(name) for name in peer.PACKAGES},
        "about": peer.ABOUT,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", help="the name of a file in peers/")
    parser.add_argument("--folder", type=Path, required=True, help="class folders of JPEGs")
    parser.add_argument("--work", type=Path, required=True, help="where peers keep their formats")
    parser.add_argument("--dtype", choices=("float32", "uint8"), default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--prepare-only", action="store_true")
    parser.add_argument(
        "--memory-limit", type=int, default=0, metavar="BYTES", help="of memory and page cache together"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of loader() to try"
    )
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent / "peers"))
    answer = sys.stdout
    sys.stdout = sys.stderr  # what peers print must not mix with the answer
    result = run(arguments)
    print(json.dumps(result), file=answer, flush=True)
    os._exit(0)  # some peers hang at exit; nothing is left to save


if __name__ == "__main__":
    main()
