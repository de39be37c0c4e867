"""Has the doctor examine twelve scripts with one known bottleneck each, and counts how often it is right.

    python benchmarks/doctor.py --data data [--only NAME…] [--json FILE]

Runs `headrace doctor run --try --json FILE SCRIPT ARGUMENTS` on each script in `scenarios/`, in a fresh
process. Right: the first cause is of the kind that the script's line "# expected:" names. Near: of the advice
that was tried, the first for that cause was predicted within 25 % of what was measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import machine
from scenario_list import SCENARIOS, Scenario

NEAR = 0.25
HEADRACE = [sys.executable, "-c", "import headrace.cli; headrace.cli.main()"]


def examine(scenario: Scenario, data: Path, limit: float) -> dict[str, Any]:
    """What the doctor said, as `judge` gives it; or "error" with the end of what it printed."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, scenario.mounted(data) as path:
        found = Path(folder) / "diagnosis.json"
        command = [*HEADRACE, "doctor", "run", "--try", "--json", str(found)]
        command += [str(scenario.script), "--data", str(path)]
        row: dict[str, Any] = {"name": scenario.name, "expected": scenario.expected}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            row["error"] = f"did not end within {limit:.0f} s"
        else:
            if found.is_file():
                row |= judge(scenario.expected, json.loads(found.read_text(encoding="utf-8")))
            else:
                row["error"] = (
                    f"exit code {done.returncode}, no diagnosis: {(done.stderr or done.stdout)[-2000:]}"
                )
    return row | {"seconds": round(time.monotonic() - start, 1)}


def judge(expected: tuple[str, ...], diagnosis: dict[str, Any]) -> dict[str, Any]:
    """What counts of a Diagnosis, and all of it but its timelines."""
    verdict = diagnosis["causes"][0]
    row = {
        "named": verdict["kind"],
        "right": verdict["kind"] in expected,
        "confidence": verdict["confidence"],
        "diagnosis": {key: value for key, value in diagnosis.items() if key not in ("steps", "usage")},
    }
    tried = [advice for advice in diagnosis["advice"] if advice["measured"] is not None]
    # Stable: of those for the same cause, the first.
    tried.sort(key=lambda advice: advice["cause"] != verdict["kind"])
    if tried:
        row |= {key: tried[0][key] for key in ("summary", "predicted", "measured")}
        row["near"] = abs(row["predicted"] - row["measured"]) <= NEAR * row["measured"]
    return row


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of those that were examined; an error counts as wrong."""
    examined = [row for row in rows if "skipped" not in row]
    return {
        "examined": len(examined),
        "skipped": len(rows) - len(examined),
        "right": sum(row.get("right", False) for row in examined),
        "near": sum(row.get("near", False) for row in examined),
        "tried": sum("near" in row for row in examined),
        "healthy_misjudged": sum(
            row["expected"] == ("healthy",) and not row.get("right", False) for row in examined
        ),
    }


def show(rows: list[dict[str, Any]]) -> None:
    table = Table(title="what the doctor says", title_justify="left")
    for heading in ("scenario", "expected", "named", "right"):
        table.add_column(heading)
    for heading in ("confidence", "predicted", "measured", "within 25 %", "seconds"):
        table.add_column(heading, justify="right")
    for row in rows:
        expected = " or ".join(row["expected"])
        if "skipped" in row or "error" in row:
            table.add_row(row["name"], expected, "skipped" if "skipped" in row else "error")
            continue
        predicted = ("",) * 3
        if "near" in row:
            answer = "yes" if row["near"] else "no"
            predicted = (f"{row['predicted']:.2f}×", f"{row['measured']:.2f}×", answer)
        right = "yes" if row["right"] else "NO"
        confidence = f"{row['confidence']:.2f}"
        table.add_row(
            row["name"], expected, row["named"], right, confidence, *predicted, f"{row['seconds']:.0f}"
        )
    console = Console(width=120)
    console.print(table)
    for row in rows:
        for key in ("skipped", "error"):
            if key in row:
                console.print(f"{row['name']}: {key}: {row[key]}", markup=False)
    count = totals(rows)
    console.print(
        f"right first: {count['right']} of {count['examined']} examined; "
        f"predicted within 25 %: {count['near']} of {count['tried']} tried; "
        f"healthy misjudged: {count['healthy_misjudged']}; skipped: {count['skipped']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="where data is kept or made")
    parser.add_argument("--only", nargs="+", choices=[scenario.name for scenario in SCENARIOS])
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that one may take (600)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    load = machine.foreign_load()
    rows: list[dict[str, Any]] = []
    for scenario in SCENARIOS:
        if arguments.only and scenario.name not in arguments.only:
            continue
        if reason := scenario.missing():
            rows.append({"name": scenario.name, "expected": scenario.expected, "skipped": reason})
            continue
        print(f"{scenario.name} …", file=sys.stderr, flush=True)
        rows.append(examine(scenario, arguments.data, arguments.limit))
    show(rows)
    if arguments.json:
        result = {
            "machine": machine.describe(),
            "foreign_cores_before": round(load, 2),
            "totals": totals(rows),
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
