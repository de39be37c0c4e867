"""Scores tools that look for what holds a training script up, on scripts in which it is known.

    python benchmarks/stalls/run.py --entrant doctor --data data --json out.json [--only NAME or FAMILY…]
    python benchmarks/stalls/run.py --entrant "COMMAND…" --data data --json out.json
    python benchmarks/stalls/run.py --entrant gains --data data --json gains.json
    python benchmarks/stalls/run.py --table results/* > RESULTS.md

An entrant is a file of entrants/ or a command. The entrant "gains" is the scripts themselves, as they are and
fixed: the gain that is known. Each answer is written to the file of --json when it is there: run again, the
command resumes after those that the file has. README.md describes the protocol.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import score
from scenario import FAMILIES, SCENARIOS, Scenario

import machine

ENTRANTS = Path(__file__).resolve().parent / "entrants"
LIMIT_SECONDS = 300.0
EPOCHS = 3  # of a run that measures the known gain; the first isn't counted


def output_of(command: list[str]) -> str:
    """Runs a command of at most `LIMIT_SECONDS`, and ends all that it started; gives its standard output.

    Raises RuntimeError if it fails or takes longer.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"no end after {LIMIT_SECONDS:.0f} s") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}: {errors[-1000:] or output[-1000:]}")
    return output


@contextlib.contextmanager
def prepared(scenario: Scenario, data: Path, fixed: bool = False) -> Iterator[list[str]]:
    """The script with its arguments, as long as the block lasts."""
    with scenario.mounted(data, fixed) as path, tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"  # the scenario's name would tell the answer
        script.write_text(scenario.script(fixed), encoding="utf-8")
        yield [str(script), "--data", str(path)]


def answer_of(command: list[str], scenario: Scenario, data: Path) -> score.Row:
    """An entrant's answer: the last line that it prints."""
    with prepared(scenario, data) as script:
        lines = output_of([*command, *script]).strip().splitlines()
    return {"answer": json.loads(lines[-1])}


def rates_of(scenario: Scenario, data: Path) -> score.Row:
    """Samples per second of each epoch after the first, as it is and fixed."""
    row: score.Row = {"original": [], "fixed": []}
    for key in row if scenario.family != "healthy" else ("original",):
        with prepared(scenario, data, fixed=key == "fixed") as script:
            output = output_of([sys.executable, *script, "--epochs", str(EPOCHS)])
        row[key] = [float(rate) for rate in re.findall(r"([\d.]+) samples/s", output)[1:]]
        if len(row[key]) != EPOCHS - 1:
            raise RuntimeError(f"{scenario.name} printed {len(row[key])} rates after the first epoch")
    return row


def row_of(entrant: str, scenario: Scenario, data: Path) -> score.Row:
    """The row of one scenario: "answer", the two rates, "error", or why it was "skipped"."""
    if reason := scenario.missing():
        return {"name": scenario.name, "skipped": reason}
    row: score.Row = {"name": scenario.name, "load": round(os.getloadavg()[0], 1)}
    file = ENTRANTS / f"{entrant}.py"
    command = [sys.executable, str(file)] if file.is_file() else shlex.split(entrant)
    made = data / "stalls" / f"{scenario.name}.made"
    if not scenario.field("data") and not made.exists():
        with prepared(scenario, data) as script:  # the script makes its data before an entrant's time begins
            output_of([sys.executable, *script, "--epochs", "0"])
        made.touch()
    start = time.monotonic()
    try:
        known = entrant == score.KNOWN_GAINS
        row |= rates_of(scenario, data) if known else answer_of(command, scenario, data)
    except (RuntimeError, ValueError, IndexError) as error:
        row["error"] = str(error)
    return row | {"seconds": round(time.monotonic() - start, 1)}


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keeps so many cores busy until the block ends."""
    loops = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.terminate()


def _spin() -> None:
    while True:
        pass


def write(file: Path, result: score.Row) -> None:
    """Writes a file of results, a line for each scenario."""
    rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in result["rows"])
    rest = json.dumps({key: value for key, value in result.items() if key != "rows"}, indent=1)
    file.write_text(f'{rest[:-2]},\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--entrant", default="doctor", help="a file of entrants/, or a command (doctor)")
    parser.add_argument("--data", type=Path, default=Path("data"), help="where data is kept or made (data)")
    parser.add_argument("--json", type=Path, default=Path("out.json"), help="results (out.json)")
    parser.add_argument("--only", nargs="+", choices=[*FAMILIES, *(one.name for one in SCENARIOS)])
    parser.add_argument("--busy", type=int, default=0, help="beside so many busy loops (0)")
    parser.add_argument("--table", nargs="+", type=Path, help="print the tables of these folders of results")
    arguments = parser.parse_args()
    if arguments.table:
        print(score.page(arguments.table), end="")
        return
    result = {"entrant": arguments.entrant, "busy": arguments.busy, "machine": machine.describe(), "rows": []}
    if arguments.json.is_file():
        result = json.loads(arguments.json.read_text(encoding="utf-8"))
    known = {row["name"] for row in result["rows"]}
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends the entrant, too
    with busy_loops(arguments.busy):
        for scenario in SCENARIOS:
            wanted = not arguments.only or {scenario.name, scenario.family} & set(arguments.only)
            if wanted and scenario.name not in known:
                row = row_of(arguments.entrant, scenario, arguments.data)
                result["rows"].append(row)
                write(arguments.json, result)
                print(f"{scenario.name:<24} {summary(scenario, row)}", flush=True)


def summary(scenario: Scenario, row: score.Row) -> str:
    """One line about a row, printed when it is there."""
    if "skipped" in row:
        return f"skipped: {row['skipped']}"
    if "original" in row and "error" not in row:
        text = f"{score.known_gain(row):.2f} times as fast without the fault"
    else:
        expected = " or ".join(scenario.expected)
        text = f"{score.cell(scenario, row)} (expected: {expected}) {row.get('error', '')}"
    return f"{text}  {row['seconds']:.0f} s, load {row['load']}"


if __name__ == "__main__":
    main()
