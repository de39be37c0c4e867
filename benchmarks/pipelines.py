"""Images per second of pipelines that people train with, alongside torch's DataLoader with the same workers.

Both loaders are given the same dataset, so the same transforms. Each measurement is a fresh process; rounds
go through all rows, so that a slow minute of the machine affects all of them alike. The first pass
of a process warms up; the median of the others counts. Rows whose package is missing are named and skipped.
With --peers (`make bench-peers` fills that folder) DALI and albumentations are measured, too, where they have
the operations of a row.

    python benchmarks/pipelines.py --data data --count 600         (about 75 minutes)
    python benchmarks/pipelines.py --rows 'crop, RandAugment' --repetitions 1

Rates are kept after each process: run again after an interruption, it measures what is missing.
"""

import argparse
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import headrace
import machine
import pictures
from pipeline_rows import PEERS, ROWS, Row

HERE = Path(__file__).resolve().parent
BATCH_SIZE = 64
SECONDS_PER_RUN = 900
LOADERS = {"torch": torch.utils.data.DataLoader, "headrace": headrace.DataLoader}
BY_NAME = {row.name: row for row in ROWS}


def rate(folder: Path, row: Row, loader: str, workers: int, epochs: int) -> dict[str, Any]:
    """Images per second of one loader in this process, and its plan."""
    torch.set_num_threads(1)
    dataset = row.make(folder)
    shuffle = not isinstance(dataset, torch.utils.data.IterableDataset)
    options: dict[str, Any] = {
        "num_workers": workers,
        "persistent_workers": workers > 0 and row.kept,
        "collate_fn": row.collate,
    }
    if row.batches is None:
        options |= {"batch_size": BATCH_SIZE, "shuffle": shuffle}
    else:
        options["batch_sampler"] = row.batches(dataset)
    batches: Any = LOADERS[loader](dataset, **options)
    rates = []
    for _ in range(epochs + 1):
        start = time.perf_counter()
        for _batch in batches:
            pass
        rates.append(len(dataset) / (time.perf_counter() - start))  # type: ignore[arg-type]
    steps = batches.explain() if loader == "headrace" else ""
    return {"rates": rates[1:], "explain": steps}


def run(folder: Path, row: Row, loader: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own; {"error": …} where that fails."""
    command = [sys.executable, __file__, "--one", row.name, loader]
    if loader in PEERS:
        python = arguments.peers / loader / "bin" / "python"
        command = [str(python), str(HERE / f"{loader}_rows.py"), "--row", row.name]
    command += ["--folder", str(folder), "--workers", str(arguments.workers)]
    command += ["--epochs", str(arguments.epochs)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_PER_RUN, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {SECONDS_PER_RUN} s"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"error": lines[-1] if lines else f"exit code {done.returncode}"}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def rows_to_measure(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Returns by row an empty list for each loader, or the reason why the row is skipped."""
    found: dict[str, dict[str, Any]] = {}
    for name in arguments.rows:
        needs = BY_NAME[name].needs
        found[name] = {loader: [] for loader in LOADERS}
        if arguments.peers is not None:
            found[name] |= {peer: [] for peer, rows in PEERS.items() if name in rows}
        if needs is not None and importlib.util.find_spec(needs) is None:
            found[name] = {"skipped": f"{needs} is not installed"}
    return found


def measure(arguments: argparse.Namespace, folder: Path, record: dict[str, Any]) -> None:
    """Adds to the record by row the rates of each loader, one per repetition, or the reason why it was
    skipped, and keeps it after each process."""
    found = record["pipelines"]
    console = Console(stderr=True)
    for repetition in range(arguments.repetitions):
        for name, loader in itertools.product(arguments.rows, (*LOADERS, *PEERS)):
            rates = found[name]
            if "skipped" in rates or loader not in rates or len(rates[loader]) > repetition:
                continue
            console.print(f"{repetition + 1}/{arguments.repetitions} {name}: {loader}")
            result = run(folder, BY_NAME[name], loader, arguments)
            if "error" in result:
                console.print(f"{loader}: {result['error']}")
                rates["without" if loader in PEERS else "skipped"] = f"{loader}: {result['error']}"
                rates.pop(loader, None)
            else:
                rates[loader].append(statistics.median(result["rates"]))
                if loader == "headrace":
                    rates["explain"] = result["explain"]
            machine.keep(record, arguments.output)


def ratio(rates: dict[str, Any]) -> list[float]:
    """Headrace's rate as a multiple of torch's, one for each repetition, from low to high."""
    pairs = zip(rates["headrace"], rates["torch"], strict=True)
    return sorted(ours / torchs for ours, torchs in pairs)


def compared(rates: dict[str, Any], peer: str) -> tuple[str, str]:
    """The peer's images per second, and Headrace's as a multiple; empty where it wasn't measured."""
    if not rates.get(peer):
        return "", ""
    rate_of_peer = statistics.median(rates[peer])
    return f"{rate_of_peer:,.0f}", f"{statistics.median(rates['headrace']) / rate_of_peer:.2f}"


def show(found: dict[str, dict[str, Any]]) -> None:
    table = Table(title="images per second", title_justify="left")
    peers = [peer for peer in PEERS if any(rates.get(peer) for rates in found.values())]
    headings = ["torch", "headrace", "ratio", "range", "aimed at"]
    table.add_column("pipeline")
    for heading in headings + [text for peer in peers for text in (peer, f"ratio to {peer}")]:
        table.add_column(heading, justify="right")
    ratios = []
    for name, rates in found.items():
        if "skipped" in rates or not rates["torch"]:
            table.add_row(name, "", "", rates.get("skipped", "not run"))
            continue
        each = ratio(rates)
        ratios.append(statistics.median(each))
        torchs, ours = (f"{statistics.median(rates[loader]):,.0f}" for loader in LOADERS)
        target = BY_NAME[name].target
        spread = f"{each[0]:.2f} to {each[-1]:.2f}"
        aim = "≥ 1" if target is None else f"≥ {target:g}"
        beside = [text for peer in peers for text in compared(rates, peer)]
        table.add_row(name, torchs, ours, f"{ratios[-1]:.2f}", spread, aim, *beside)
    console = Console(width=150)
    console.print(table)
    if ratios:
        console.print(
            f"geometric mean of {len(ratios)} pipelines: {statistics.geometric_mean(ratios):.2f}×;"
            f" slower than torch: {sum(each < 1 for each in ratios)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("data"), help="where the images are kept or made")
    parser.add_argument("--count", type=int, default=2000, help="images (2000)")
    parser.add_argument("--workers", type=int, default=2, help="num_workers of both loaders (2)")
    parser.add_argument("--epochs", type=int, default=3, help="timed passes of a process (3)")
    parser.add_argument("--repetitions", type=int, default=3, help="processes for each row and loader (3)")
    parser.add_argument("--rows", nargs="+", choices=BY_NAME, default=list(BY_NAME), metavar="ROW")
    parser.add_argument("--output", type=Path, default=HERE / "work" / "pipelines.json")
    parser.add_argument("--peers", type=Path, help="folder with the peers' environments")
    parser.add_argument("--one", nargs=2, metavar=("ROW", "LOADER"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, loader = arguments.one
        print(json.dumps(rate(arguments.folder, BY_NAME[name], loader, arguments.workers, arguments.epochs)))
        return
    folder = arguments.data / f"pictures-{arguments.count}"
    manifest = pictures.ensure(folder, arguments.count, cache=arguments.data / "cache")
    load = machine.foreign_load()
    record = machine.continued(arguments.output) or {
        "machine": machine.describe(),
        "foreign_cores_before": round(load, 2),
        "images": manifest,
        "workers": arguments.workers,
        "pipelines": {},
    }
    record["pipelines"] = rows_to_measure(arguments) | record["pipelines"]
    measure(arguments, folder, record)
    show(record["pipelines"])


if __name__ == "__main__":
    main()
