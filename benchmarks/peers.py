"""Headrace against its peers: one set of images, one run, a fresh process for each peer and repetition.

Repetitions go round all rows, so that a slow minute of the machine hits every row alike. Before each run,
every file that it reads is read once ("warm"). A row that cannot run is named with its reason; so is one
whose images are not of the others' shape or brightness. The run refuses to start on a busy machine.
Runs are kept after each process: started again after an interruption, it continues.

    make bench-peers && make bench              (or: python benchmarks/peers.py --help)
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import machine
import pictures
import report
from rows import ROWS, Row

HERE = Path(__file__).resolve().parent
QUIET_CORES = 0.15  # what other processes may use before a figure means nothing
SECONDS_PER_RUN = 900
BRIGHTNESS = 6.0  # levels of 0–255 that a row's mean may differ from the first row's: crops are random
KEPT = ("shape", "dtype", "mean_level", "versions", "about", "bytes")

console = Console(stderr=True)


def wait_until_quiet(patience_seconds: float) -> float:
    """Cores used by others, once that is little; exits where it stays much."""
    end = time.monotonic() + patience_seconds
    with console.status("Waiting until the machine is quiet"):
        while (load := machine.foreign_load()) > QUIET_CORES:
            if time.monotonic() > end:
                sys.exit(
                    f"This machine is busy: other processes use {load:.2f} cores (allowed: {QUIET_CORES}): "
                    "figures would not mean much. Stop them and try again, or say --any-load."
                )
    return load


def python_of(row: Row, environments: Path) -> Path | None:
    """The interpreter of the row's environment, or None where it was not installed."""
    if row.environment is None:
        return Path(sys.executable)
    python = environments.resolve() / row.environment / "bin" / "python"
    return python if python.exists() else None


def run(row: Row, python: Path, arguments: argparse.Namespace, *options: str) -> dict:
    """Returns what peer_run.py measured, or {"error": reason}. `foreign_cores` is what others used."""
    command = [str(python), str(HERE / "peer_run.py"), row.peer, "--folder", str(arguments.folder)]
    command += ["--work", str(arguments.work), "--dtype", row.dtype, "--threads", str(row.threads), *options]
    clock, start = machine.Clock(), time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_PER_RUN, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {SECONDS_PER_RUN} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return {"error": said[-1] if said else f"ended with code {done.returncode}"}
    result = json.loads(lines[-1])
    busy, stolen = clock.elapsed()
    if "cpu_seconds" in result:
        others = max(0.0, busy - result["cpu_seconds"]) + stolen
        result["foreign_cores"] = round(others / (time.monotonic() - start), 3)
    return result


def prepare(arguments: argparse.Namespace) -> tuple[list[Row], list[dict]]:
    """Rows that can run, their formats made; and those that can't, with the reason."""
    usable, missing = [], []
    with bar("Preparing") as progress:
        for row in progress.track(arguments.rows):
            python = python_of(row, arguments.peers)
            if python is None:
                missing.append(
                    {"row": row, "reason": f"not installed in {arguments.peers}: run make bench-peers"}
                )
                continue
            answer = run(row, python, arguments, "--prepare-only")
            if "error" in answer:
                missing.append({"row": row, "reason": answer["error"]})
            else:
                usable.append(row)
    return usable, missing


def bar(what: str) -> Progress:
    return Progress(
        TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
    )


def measure(rows: list[Row], arguments: argparse.Namespace, result: dict) -> None:
    """Adds all runs of each row to the result, and keeps it after each process."""
    runs = {row.name: [] for row in rows} | {
        f"{row['peer']}/{row['dtype']}/{row['threads']}": record["runs"]
        for record in result["rows"]
        for row in [record["row"]]
    }
    with bar("Measuring") as progress:
        task = progress.add_task("", total=len(rows) * arguments.repetitions)
        for repetition in range(arguments.repetitions):
            for row in rows:
                python = python_of(row, arguments.peers)
                limits = ["--epochs", str(arguments.epochs), "--memory-limit", str(arguments.memory_limit)]
                if len(runs[row.name]) <= repetition:
                    runs[row.name].append(run(row, python, arguments, *limits))
                    result["rows"] = summarise(rows, runs)
                    machine.keep(result, arguments.out / "peers.json")
                progress.advance(task)


def rates_of(result: dict) -> list[float]:
    """Images per second of each pass."""
    return [images / seconds for images, seconds in zip(result["images"], result["seconds"], strict=True)]


def summarise(rows: list[Row], runs: dict[str, list[dict]]) -> list[dict]:
    """One record a row: rates in images per second, every run kept beside them."""
    records = []
    for row in rows:
        good = [result for result in runs[row.name] if "error" not in result]
        failures = [result["error"] for result in runs[row.name] if "error" in result]
        record = {"row": asdict(row), "runs": runs[row.name], "failures": failures}
        if good:
            rates = [
                n / s for result in good for n, s in zip(result["images"], result["seconds"], strict=True)
            ]
            per_process = [
                report.median([n / s for n, s in zip(result["images"], result["seconds"], strict=True)])
                for result in good
            ]
            record |= {"median": report.median(per_process), "least": min(rates), "most": max(rates)}
            record |= {
                key: good[0][key] for key in ("shape", "dtype", "mean_level", "versions", "about", "bytes")
            }
            record["foreign_cores"] = max(result["foreign_cores"] for result in good)
        records.append(record)
    return records


def doubts(records: list[dict]) -> list[str]:
    """Reasons why a row is incomparable: another shape, type or brightness, or a busy machine."""
    measured = [record for record in records if "median" in record]
    said = []
    for record in measured:
        name = report.name_of(record)
        if sorted(record["shape"]) != [3, 224, 224] or record["dtype"] != record["row"]["dtype"]:
            said.append(f"{name}: gives {record['dtype']} of {record['shape']}")
        if abs(record["mean_level"] - measured[0]["mean_level"]) > BRIGHTNESS:
            said.append(
                f"{name}: mean level {record['mean_level']}, the first row's is {measured[0]['mean_level']}: "
                "it does not do the same work"
            )
        if record["foreign_cores"] > QUIET_CORES:
            said.append(f"{name}: other processes used up to {record['foreign_cores']:.2f} cores meanwhile")
    said += [
        f"{report.name_of(record)}: failed: {failure}" for record in records for failure in record["failures"]
    ]
    return said


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=Path("data"), help="where images are kept or made (data)"
    )
    parser.add_argument("--peers", type=Path, default=Path(".venv-peers"), help="the peers' environments")
    parser.add_argument("--out", type=Path, default=HERE / "work", help="peers.json goes here")
    parser.add_argument("--count", type=int, default=2000, help="images (2000)")
    parser.add_argument("--repetitions", type=int, default=5, help="processes for each row (5)")
    parser.add_argument("--epochs", type=int, default=3, help="timed passes in each process (3)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="TEXT", help="rows whose name contains one of these"
    )
    parser.add_argument(
        "--memory-limit",
        type=int,
        default=0,
        metavar="BYTES",
        help="of each process with its page cache",
    )
    parser.add_argument("--any-load", action="store_true", help="measure on a busy machine too (and say so)")
    arguments = parser.parse_args()
    arguments.folder = (arguments.data / f"pictures-{arguments.count}").resolve()
    arguments.work = (arguments.data / f"peers-{arguments.count}").resolve()
    arguments.rows = [
        row for row in ROWS if not arguments.only or any(text in row.name for text in arguments.only)
    ]
    if not arguments.rows:
        parser.error(f"no row's name contains any of {arguments.only}: {', '.join(row.name for row in ROWS)}")
    return arguments


def main() -> None:
    arguments = parse()
    manifest = pictures.ensure(arguments.folder, arguments.count, cache=arguments.data / "cache")
    arguments.work.mkdir(parents=True, exist_ok=True)
    rows, missing = prepare(arguments)
    load = machine.foreign_load() if arguments.any_load else wait_until_quiet(patience_seconds=60)
    result = machine.continued(arguments.out / "peers.json") or {
        "machine": machine.describe() | {"foreign_cores_before": round(load, 3)},
        "pictures": manifest,
        "repetitions": arguments.repetitions,
        "epochs": arguments.epochs,
        "memory_limit": arguments.memory_limit,
        "rows": [],
    }
    result["missing"] = [{"row": asdict(entry["row"]), "reason": entry["reason"]} for entry in missing]
    measure(rows, arguments, result)
    records = result["rows"]
    result["doubts"] = [*filter(None, [pictures.doubt(manifest)]), *doubts(records)]
    machine.keep(result, arguments.out / "peers.json")
    report.show(result)
    print(f"Written: {arguments.out / 'peers.json'}")
    # What a peer cannot do here is named above; it is no failure of ours.
    failed = [record for record in records if record["failures"] and record["row"]["environment"] is None]
    ours = [e for e in missing if e["row"].environment is None and "not installed" not in e["reason"]]
    if failed or ours:
        sys.exit("Some rows failed: see above.")


if __name__ == "__main__":
    main()
