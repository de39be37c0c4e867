"""Decoding on other nodes by Ray Data: what it costs them and the node of the GPUs, and when it pays.

A cluster of two nodes on this machine: one has the processors and decodes, the other has none and takes the
batches. Bytes go from one to the other by Ray's object transfer, over loopback; a real network card's driver
takes time of its own. Processor time is counted by process: actors and raylet of the one, raylet and consumer
of the other. Beside it, what decoding costs in place, by Headrace and by Pillow. Rows run in fresh processes,
in turn.

    pip install '.[ray]'
    python benchmarks/ray_data.py FOLDER          FOLDER: of class folders of JPEGs
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

import machine

SIZE, BATCH_SIZE = 224, 256
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
REPEATS = 6  # epochs in one, by other random parameters: long enough to leave the start out
COUNTED = 30  # batches
CPU_NODE = "decodes"


def dataset(folder: Path, *middle: Any) -> Any:
    from torchvision import datasets, transforms

    steps = [
        transforms.RandomResizedCrop(SIZE),
        transforms.RandomHorizontalFlip(),
        *middle,
        transforms.ToTensor(),
    ]
    return datasets.ImageFolder(str(folder), transforms.Compose([*steps, transforms.Normalize(MEAN, STD)]))


def in_place(folder: Path, *, levels: bool, augment: bool = False) -> dict[str, float]:
    """The stage in this process, without Ray: milliseconds of the processor a sample."""
    import numpy as np
    import torch
    from torchvision import transforms

    from headrace.ray_data import Decode

    torch.set_num_threads(1)
    data = dataset(folder, *([transforms.RandAugment()] if augment else []))
    stage = Decode(data, order=None, levels=levels, batch_size=BATCH_SIZE, threads=1)
    ids = np.random.default_rng(0).permutation(len(data))[: 500 if augment else None]
    rates, cpu = [], []
    for _ in range(4):
        start, used = time.perf_counter(), time.process_time()
        for _batch in stage({"id": ids}):
            pass
        rates.append(len(ids) / (time.perf_counter() - start))
        cpu.append(1e3 * (time.process_time() - used) / len(ids))
    return {"samples_per_second": statistics.median(rates[1:]), "cpu_ms": statistics.median(cpu[1:])}


def by_pillow(folder: Path) -> dict[str, float]:
    """The dataset as torch's DataLoader asks it, in this process."""
    import torch

    torch.set_num_threads(1)
    data, count = dataset(folder), 600
    start, used = time.perf_counter(), time.process_time()
    for i in range(0, len(data), max(1, len(data) // count)):
        data[i]
    asked = len(range(0, len(data), max(1, len(data) // count)))
    return {
        "samples_per_second": asked / (time.perf_counter() - start),
        "cpu_ms": 1e3 * (time.process_time() - used) / asked,
    }


def call_overhead(folder: Path) -> dict[str, float]:
    """Measures the cost per call: the same samples in one call and in 256."""
    import numpy as np

    from headrace.ray_data import Decode

    data = dataset(folder)
    begin = time.perf_counter()
    stage = Decode(data, threads=1)
    made = 1e3 * (time.perf_counter() - begin)
    found = {"construction_ms": made}
    list(stage({"id": np.arange(256)}))
    for count in (1, 256):
        begin = time.perf_counter()
        for i in range(0, 256, count):
            list(stage({"id": np.arange(i, i + count)}))
        found[f"256_samples_by_calls_of_{count}_ms"] = 1e3 * (time.perf_counter() - begin)
    return found


def used_by(processes: list[psutil.Process]) -> float:
    """Processor seconds so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def on_ray(folder: Path, *, levels: bool, actors: int, cores: int) -> dict[str, Any]:
    """The epoch from the one node to the other."""
    import ray
    import ray.data
    from ray.cluster_utils import Cluster

    from headrace.order import RepeatedAugmentation
    from headrace.ray_data import read

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 2 << 30})
    there = cluster.add_node(num_cpus=actors * cores, resources={CPU_NODE: 64}, object_store_memory=2 << 30)
    ray.init(address=cluster.address, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    data = dataset(folder)
    order = RepeatedAugmentation(data, REPEATS, num_samples=REPEATS * len(data))
    rows = read(
        data,
        BATCH_SIZE,
        sampler=order,
        drop_last=True,
        levels=levels,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=cores,
        resources={CPU_NODE: 1},
    )
    raylets = [
        psutil.Process(node.all_processes["raylet"][0].process.pid) for node in (there, cluster.head_node)
    ]
    consumer = psutil.Process()
    begin = time.perf_counter()
    batches = rows.iter_torch_batches(batch_size=BATCH_SIZE, drop_last=True)
    next(iter_of := iter(batches))
    first = time.perf_counter() - begin
    workers = [p for p in raylets[0].children(recursive=True) if "MapWorker" in " ".join(p.cmdline())]
    for _ in range(4):
        next(iter_of)  # as many as may be ready
    parts = {
        "actors": workers,
        "raylet_there": [raylets[0]],
        "raylet_here": [raylets[1]],
        "consumer": [consumer],
    }
    before = {name: used_by(processes) for name, processes in parts.items()}
    clock, begin, samples = machine.Clock(), time.perf_counter(), 0
    for batch in iter_of:
        samples += len(batch["image"])
        if samples == BATCH_SIZE * COUNTED:
            break
    seconds, busy = time.perf_counter() - begin, clock.elapsed()[0]
    found: dict[str, Any] = {
        "actors": actors,
        "cores_of_an_actor": cores,
        "samples": samples,
        "bytes_per_sample": batch["image"][0].nbytes,
        "first_batch_seconds": first,
        "samples_per_second": samples / seconds,
        "machine_cpu_ms": 1e3 * busy / samples,
        "actor_private_mb": [round(worker.memory_full_info().uss / 1e6) for worker in workers],
    }
    for name, processes in parts.items():
        found[f"{name}_cpu_ms"] = 1e3 * (used_by(processes) - before[name]) / samples
    for _ in iter_of:
        pass  # Ray Data doesn't like to be shut down in the middle
    ray.shutdown()
    cluster.shutdown()
    return found


ROWS = {
    "stage, uint8": lambda folder: in_place(folder, levels=True),
    "stage, float32": lambda folder: in_place(folder, levels=False),
    "stage, calls": call_overhead,
    "stage, uint8, RandAugment": lambda folder: in_place(folder, levels=True, augment=True),
    "Pillow": by_pillow,
    "Ray, uint8": lambda folder: on_ray(folder, levels=True, actors=2, cores=1),
    "Ray, float32": lambda folder: on_ray(folder, levels=False, actors=2, cores=1),
    "Ray, uint8, one actor of two cores": lambda folder: on_ray(folder, levels=True, actors=1, cores=2),
}


def fresh(row: str, folder: Path) -> dict[str, Any]:
    """Runs a row in a process of its own."""
    command = [sys.executable, __file__, str(folder), "--row", row]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def middle(runs: list[dict[str, Any]], name: str) -> float:
    return statistics.median(run[name] for run in runs if "error" not in run)


def when_it_pays(results: dict[str, list[dict[str, Any]]], rate: float) -> list[dict[str, Any]]:
    """Computes cores there and here, and the network's load, for a GPU of `rate` samples per second."""
    rows = []
    for decoder, place, ray in (
        ("Headrace", "stage, uint8", "Ray, uint8"),
        ("Headrace", "stage, float32", "Ray, float32"),
        ("Headrace, RandAugment", "stage, uint8, RandAugment", "Ray, uint8"),
        ("Pillow", "Pillow", None),
    ):
        local = rate * middle(results[place], "cpu_ms") / 1e3
        row = {"decoder": decoder, "row": place, "local_cores": local}
        if ray is not None:
            runs = results[ray]
            here = middle(runs, "raylet_here_cpu_ms") + middle(runs, "consumer_cpu_ms")
            sent = middle(runs, "raylet_there_cpu_ms")
            # What the stage costs as an actor's beyond what it costs in place, too.
            sent += middle(runs, "actors_cpu_ms") - middle(results["stage, " + ray.split()[1]], "cpu_ms")
            row["cores_there"] = local + rate * sent / 1e3
            row["cores_here"] = rate * here / 1e3
            row["gbit_per_second"] = rate * 8 * middle(runs, "bytes_per_sample") / 1e9
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=3, help="repetitions of every row")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--rate", type=float, default=1000.0, help="samples per second that a GPU takes")
    parser.add_argument("--json", type=Path, help="write the record here; runs that it has are kept")
    parser.add_argument("--row", choices=list(ROWS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(ROWS[arguments.row](arguments.folder)))
        return
    results: dict[str, list[dict[str, Any]]] = {row: [] for row in ROWS}
    if arguments.json and arguments.json.exists():
        results.update(json.loads(arguments.json.read_text())["runs"])
    for _ in range(arguments.runs):
        for row in arguments.only:
            results[row].append(fresh(row, arguments.folder))
            print(row, json.dumps(results[row][-1]), file=sys.stderr)
            if arguments.json:
                machine.keep(record_of(results, arguments.rate), arguments.json)
    print(json.dumps(record_of(results, arguments.rate).get("when", "some rows haven't run"), indent=1))


def record_of(results: dict[str, list[dict[str, Any]]], rate: float) -> dict[str, Any]:
    """Everything that is kept; `when` once every row has run."""
    about = {"machine": machine.describe(), "load_average": os.getloadavg(), "ray": version("ray")}
    if any(not runs or any("error" in run for run in runs) for runs in results.values()):
        return {**about, "runs": results}
    return {**about, "rate": rate, "when": when_it_pays(results, rate), "runs": results}


if __name__ == "__main__":
    main()
