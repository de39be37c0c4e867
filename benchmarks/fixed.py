"""Runs each scenario as it is and fixed: is the bottleneck real, and what does it cost?

    python benchmarks/fixed.py --data data [--only NAME…] [--json FILE]

Both run the same number of epochs in fresh processes, turn by turn; a figure is the median of the rates that
the script prints for its epochs after the first.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import machine
from scenario_list import SCENARIOS, Scenario


def rates(script: Path, data: Path, epochs: int) -> list[float]:
    """Samples per second of each epoch after the first."""
    command = [sys.executable, str(script), "--data", str(data), "--epochs", str(epochs)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = [float(rate) for rate in re.findall(r"([\d.]+) samples/s", done.stdout)]
    if done.returncode or len(found) != epochs:
        raise RuntimeError(f"{script} ended with {done.returncode} after {len(found)} epochs:\n{done.stderr}")
    return found[1:]


def examine(scenario: Scenario, data: Path, epochs: int, repetitions: int) -> dict[str, Any]:
    """All rates, and both medians."""
    ill, fixed = [], []
    with tempfile.TemporaryDirectory() as folder:
        mended = Path(folder) / f"{scenario.name}.py"
        mended.write_text(scenario.fixed(), encoding="utf-8")
        for _ in range(repetitions):
            with scenario.mounted(data) as path:
                ill += rates(scenario.script, path, epochs)
            if scenario.expected != ("healthy",):
                with scenario.mounted(data, fixed=True) as path:
                    fixed += rates(mended, path, epochs)
    row = {"name": scenario.name, "expected": scenario.expected, "ill": ill, "fixed": fixed}
    row["ill_median"] = statistics.median(ill)
    if fixed:
        row["healed_median"] = statistics.median(fixed)
        row["times"] = row["healed_median"] / row["ill_median"]
    return row


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="samples per second", title_justify="left")
    table.add_column("scenario")
    for heading in ("as it is", "fixed", "times"):
        table.add_column(heading, justify="right")
    for row in rows:
        if "skipped" in row:
            table.add_row(row["name"], row["skipped"], "", "")
            continue
        mended = (f"{row['healed_median']:,.0f}", f"{row['times']:.2f}") if row["fixed"] else ("", "")
        table.add_row(row["name"], f"{row['ill_median']:,.0f}", *mended)
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="where data is kept or made")
    parser.add_argument("--only", nargs="+", choices=[scenario.name for scenario in SCENARIOS])
    parser.add_argument("--epochs", type=int, default=4, help="of a run; the first isn't counted (4)")
    parser.add_argument("--repetitions", type=int, default=1, help="runs of each (1)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    load = machine.foreign_load()
    rows = []
    for scenario in SCENARIOS:
        if arguments.only and scenario.name not in arguments.only:
            continue
        if reason := scenario.missing():
            rows.append({"name": scenario.name, "skipped": reason})
        else:
            rows.append(examine(scenario, arguments.data, arguments.epochs, arguments.repetitions))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    show(rows)
    if arguments.json:
        result = {"machine": machine.describe(), "foreign_cores_before": round(load, 2), "rows": rows}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
