"""Has the doctor examine the scripts in `scenarios/`, and counts how often it is right.

    python benchmarks/doctor.py --data data [--busy] [--only NAME…] [--json FILE]
    python benchmarks/doctor.py --table IDLE.json BUSY.json

Each script is examined in a fresh process, as by `headrace doctor run`. Then its change is applied and
measured in the same way: the settings that the doctor advises for the cause it named, as by `--try`, or where
there are none or `--try` may not apply them, the lines that fix the script. A line is printed as each ends,
and FILE is written again: those it already holds are not run again. The Markdown table is written beside it.

Right: the first cause is of a kind that the script's line "# expected:" names, its sentence has the words
of the line "# names:", and the first advice those of "# advises:", if there are such lines. Near: the
achieved gain isn't more than 15 % above the upper bound that was reported.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
from headrace_doctor.doctor.case import seconds_of
from headrace_doctor.doctor.diagnosis import diagnose
from headrace_doctor.doctor.records import Diagnosis
from headrace_doctor.errors import DoctorError
from headrace_doctor.examine import Job
from scenario_list import SCENARIOS, Scenario

NEAR = 0.15
LIMIT_SECONDS = 200.0


def examine(scenario: Scenario, data: Path) -> dict[str, Any]:
    """Returns the doctor's report in the form of `judge`, and what the change achieved; or "error"."""
    row: dict[str, Any] = {"name": scenario.name, "expected": scenario.expected}
    row["load"] = round(os.getloadavg()[0], 1)
    with scenario.mounted(data) as path:
        start = time.monotonic()
        job = Job([str(scenario.script), "--data", str(path)], limit=LIMIT_SECONDS)
        status, observation, output = job.run(quiet=True)
        row["seconds"] = round(time.monotonic() - start, 1)
        if observation is None:
            return row | {"error": f"exit code {status}, nothing measured: {output[-2000:]}"}
        try:
            diagnosis = diagnose(observation)
        except DoctorError as error:
            return row | {"error": f"{error} {output[-2000:]}"}
        row |= judge(scenario, diagnosis)
        advice = next((one for one in diagnosis.advice if one.cause == row["named"]), None)
        if advice is None:
            return row
        row |= {"summary": advice.summary, "predicted": round(advice.predicted, 3)}
        if advice.settings:
            row |= achieved(row, diagnosis, Job(job.command, **advice.applied_to(diagnosis)))
            if "achieved" in row:
                return row
    if not row["right"]:
        return row
    with scenario.mounted(data, fixed=True) as path, tempfile.TemporaryDirectory() as folder:
        fixed = Path(folder) / scenario.script.name
        fixed.write_text(scenario.fixed(), encoding="utf-8")
        return row | achieved(row, diagnosis, Job([str(fixed), "--data", str(path)], brief=True))


def judge(scenario: Scenario, diagnosis: Diagnosis) -> dict[str, Any]:
    """Returns whether the verdict is right, the rank of the true cause, and how busy the machine was."""
    verdict, kinds = diagnosis.verdict, [cause.kind for cause in diagnosis.causes]
    advice = next((one.summary for one in diagnosis.advice), "")
    named = scenario.names in verdict.sentence and scenario.advises in advice
    ranks = [rank for rank, kind in enumerate(kinds, 1) if kind in scenario.expected]
    return {
        "named": verdict.kind,
        "right": verdict.kind in scenario.expected and named,
        "rank": min(ranks, default=None),
        "sentence": verdict.sentence,
        "margin": round(verdict.margin, 3),
        "others": round(diagnosis.others, 2),
        "watching": round(diagnosis.watching, 4),
        "diagnosis": {
            key: value for key, value in diagnosis.to_json().items() if key not in ("steps", "usage")
        },
    }


def achieved(row: dict[str, Any], diagnosis: Diagnosis, change: Job) -> dict[str, Any]:
    """The gain that was measured with the change, and whether the prediction was near it."""
    status, observation, output = change.run(quiet=True)
    seconds = None if observation is None else seconds_of(observation)
    if not seconds:
        return {"attempt": f"exit code {status}: {output[-500:]}"}
    if observation and observation.refused:
        return {"attempt": "; ".join(observation.notes)}
    gain = diagnosis.seconds_per_sample / seconds
    if not row["predicted"]:
        return {"achieved": round(gain, 3)}
    return {"achieved": round(gain, 3), "near": row["predicted"] >= (1 - NEAR) * gain}


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums up those that were examined; an error counts as wrong."""
    examined = [row for row in rows if "skipped" not in row]
    ill = [row for row in examined if "healthy" not in row["expected"]]
    return {
        "examined": len(examined),
        "skipped": len(rows) - len(examined),
        "right": sum(row.get("right", False) for row in examined),
        "near": sum(row.get("near", False) for row in examined),
        "tried": sum("near" in row for row in examined),
        "healthy": len(examined) - len(ill),
        "healthy_called_ill": sum(
            row.get("named", "healthy") not in ("healthy", "undecided") for row in examined if row not in ill
        ),
        "longest_seconds": max((row["seconds"] for row in examined), default=0.0),
        "most_watching": max((row.get("watching", 0.0) for row in examined), default=0.0),
    }


def line(row: dict[str, Any]) -> str:
    """One row, as it is printed when it ends."""
    if "skipped" in row:
        return f"{row['name']:<24} skipped: {row['skipped']}"
    if "error" in row:
        return f"{row['name']:<24} ERROR after {row['seconds']:.0f} s: {row['error']}"
    expected = " or ".join(row["expected"])
    right = "right" if row["right"] else f"WRONG, expected {expected}, rank {row['rank']}"
    return (
        f"{row['name']:<24} {row['named']:<14} {right} ({row['margin']:.0%} ahead) {gains(row)}"
        f"  {row['seconds']:.0f} s, load {row['load']}, others {row['others']},"
        f" watching {row['watching']:.1%}"
    )


def gains(row: dict[str, Any]) -> str:
    """ "≤ 1.8× → 1.70×"."""
    if "predicted" not in row:
        return row.get("attempt", "")
    predicted = f"≤ {row['predicted']:.2f}×" if row["predicted"] else "not known"
    if "achieved" not in row:
        return predicted
    return f"{predicted} → {row['achieved']:.2f}×{'' if row.get('near', True) else ' (far)'}"


def markdown(runs: list[tuple[str, list[dict[str, Any]]]]) -> str:
    """A table of all scenarios, with the columns of each run, and its totals."""
    columns = ("verdict", "rank", "margin", "at most → achieved", "seconds", "load")
    heads = [f"{title}: {column}" for title, _ in runs for column in columns]
    lines = ["| scenario | expected | " + " | ".join(heads) + " |", "|---" * (2 + len(heads)) + "|"]
    names = list(dict.fromkeys(row["name"] for _, rows in runs for row in rows))
    for name in names:
        found = [next((row for row in rows if row["name"] == name), {}) for _, rows in runs]
        expected = " or ".join(next(row["expected"] for row in found if row))
        cells = [cell for row in found for cell in cells_of(row)]
        lines.append(f"| `{name}` | {expected} | " + " | ".join(cells) + " |")
    for title, rows in runs:
        count = totals(rows)
        lines.append(
            f"\n{title}: right first in {count['right']} of {count['examined']} examined;"
            f" predictions near in {count['near']} of {count['tried']} tried;"
            f" of {count['healthy']} healthy scripts {count['healthy_called_ill']} called ill;"
            f" the longest examination took {count['longest_seconds']:.0f} s,"
            f" watching at most {count['most_watching']:.1%}; {count['skipped']} skipped."
        )
    return "\n".join(lines) + "\n"


def cells_of(row: dict[str, Any]) -> tuple[str, ...]:
    if "named" not in row:
        return (row.get("skipped", "error" if row else ""), *[""] * 5)
    verdict = row["named"] if row["right"] else f"**{row['named']}**"
    rank = str(row["rank"] or "–")
    return verdict, rank, f"{row['margin']:.0%}", gains(row), f"{row['seconds']:.0f}", str(row["load"])


@contextlib.contextmanager
def busy_cores(wanted: bool) -> Iterator[None]:
    """One busy loop per usable core meanwhile, if wanted."""
    loops = [
        multiprocessing.Process(target=_spin, daemon=True) for _ in range(machine_cores() if wanted else 0)
    ]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.terminate()


def machine_cores() -> int:
    return len(os.sched_getaffinity(0))


def _spin() -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="where data is kept or made")
    parser.add_argument("--only", nargs="+", choices=[scenario.name for scenario in SCENARIOS])
    parser.add_argument("--busy", action="store_true", help="with one busy loop per core")
    parser.add_argument("--json", type=Path, help="where results are kept; those it holds aren't run again")
    parser.add_argument("--table", nargs="+", type=Path, help="print the table of these results, run nothing")
    arguments = parser.parse_args()
    if arguments.table:
        print(markdown([(path.stem, json.loads(path.read_text())["rows"]) for path in arguments.table]))
        return
    file = arguments.json
    result = (
        json.loads(file.read_text())
        if file and file.is_file()
        else {"machine": machine.describe(), "rows": []}
    )
    rows = result["rows"]
    known = {row["name"] for row in rows}
    with busy_cores(arguments.busy):
        for scenario in SCENARIOS:
            if scenario.name in known or (arguments.only and scenario.name not in arguments.only):
                continue
            if reason := scenario.missing():
                rows.append({"name": scenario.name, "expected": scenario.expected, "skipped": reason})
            else:
                rows.append(examine(scenario, arguments.data))
            print(line(rows[-1]), flush=True)
            if file:
                result["totals"] = totals(rows)
                file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
                file.with_suffix(".md").write_text(markdown([(file.stem, rows)]), encoding="utf-8")
    print(json.dumps(totals(rows)), file=sys.stderr)


if __name__ == "__main__":
    main()
