"""Grades answers, and draws the tables of a folder of results."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scenario import FAMILIES, KINDS, LOADING, SCENARIOS, STEP, Scenario

POINTS = {"right": 1.0, "half": 0.5, "undecided": 0.0, "wrong": -0.5, "failed": -0.5}
MARKS = {"right": "✓", "half": "½", "undecided": "–", "wrong": "✗", "failed": "✗"}
COARSE = {"loading": LOADING, "step": STEP}
NEAR = 0.15
KNOWN_GAINS = "gains"
Row = dict[str, Any]
HEAD = """# Results of the benchmark of data stalls

[README.md](README.md) describes the scenarios and how answers are graded. In the tables of scenarios, ✓ is
right, ½ half right, – undecided, ✗ wrong; the number is the predicted gain, or its upper bound. Drawn by
`python run.py --table results/* > RESULTS.md`.

"""


def grade(scenario: Scenario, row: Row) -> str:
    """One of `POINTS` for the answer of a row."""
    if "answer" not in row:
        return "failed"
    answer = row["answer"]
    kind = answer.get("kind", "undecided")
    if kind in scenario.expected:
        return "right" if names_it(scenario, answer) else "half"
    family = KINDS.get(kind, kind)
    if family == "unknown":
        return "undecided"
    return "half" if scenario.family in (family, *COARSE.get(family, ())) else "wrong"


def names_it(scenario: Scenario, answer: Row) -> bool:
    """Returns whether the answer has the words that the scenario asks of the cause and of the advice."""
    cause = f"{answer.get('cause', '')} {answer.get('line', '')}".casefold()
    pairs = (("names", cause), ("advises", answer.get("advice", "").casefold()))
    wanted = [(scenario.alternatives(field), text) for field, text in pairs]
    return all(any(word.casefold() in text for word in words) for words, text in wanted if words)


def known_gain(row: Row) -> float:
    """The speed of the fixed script in relation to that of the script as it is."""
    return statistics.median(row["fixed"]) / statistics.median(row["original"]) if row.get("fixed") else 1.0


def totals(rows: list[Row], known: dict[str, Row]) -> Row:
    """Counts an entrant's grades, its errors of gains, its overhead and its time."""
    scenarios = {one.name: one for one in SCENARIOS}
    graded = [(scenarios[row["name"]], row, grade(scenarios[row["name"]], row)) for row in rows]
    grades = Counter(mark for _, _, mark in graded)
    healthy = [mark for scenario, _, mark in graded if scenario.family == "healthy"]
    errors, bounds, slower, tried = [], [], [], []
    for scenario, row, mark in graded:
        answer, gain = row.get("answer", {}), known.get(row["name"])
        if answer.get("gain") and answer.get("measured"):
            tried.append(abs(answer["gain"] / answer["measured"] - 1))
        if gain is None:
            continue
        if answer.get("samples_per_second"):
            slower.append(statistics.median(gain["original"]) / answer["samples_per_second"] - 1)
        if mark == "right" and scenario.family != "healthy":
            errors += [abs(answer["gain"] / known_gain(gain) - 1)] if answer.get("gain") else []
            bounds += [answer["at_most"] >= (1 - NEAR) * known_gain(gain)] if answer.get("at_most") else []
    return {
        "scenarios": len(graded),
        **{mark: grades[mark] for mark in POINTS},
        "points": f"{sum(POINTS[mark] for _, _, mark in graded) / max(1, len(graded)):.0%}",
        "healthy called ill": f"{sum(mark in ('wrong', 'failed') for mark in healthy)} of {len(healthy)}",
        "gain within 15 %": f"{sum(error <= NEAR for error in errors)} of {len(errors)}",
        "tried gain within 15 %": f"{sum(error <= NEAR for error in tried)} of {len(tried)}" if tried else "",
        "bound holds": f"{sum(bounds)} of {len(bounds)}",
        "overhead": f"{statistics.median(slower):.0%}" if slower else "",
        "seconds": f"{statistics.median(row['seconds'] for row in rows):.0f}" if rows else "",
        "longest": f"{max(row['seconds'] for row in rows):.0f}" if rows else "",
    }


def table(lines: Iterable[Iterable[object]]) -> str:
    """A Markdown table, whose first line is its heading."""
    heading, *rest = [[str(cell) for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in (heading, ["---"] * len(heading), *rest))


def confusion(rows: list[Row]) -> str:
    """A table of how often the scenarios of each family (lines) were answered with each family (columns)."""
    scenarios = {one.name: one for one in SCENARIOS}
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        kind = row["answer"].get("kind", "undecided") if "answer" in row else "failed"
        counts[scenarios[row["name"]].family, KINDS.get(kind, kind)] += 1
    order = [*FAMILIES, *COARSE, "failed"]
    answered = sorted({column for _, column in counts}, key=lambda one: (order.index(one), one))
    lines = [["", *answered]]
    for family in (family for family in FAMILIES if any(line == family for line, _ in counts)):
        lines.append([family, *(str(counts[family, column] or "") for column in answered)])
    return table(lines)


def page(folders: Iterable[Path]) -> str:
    """The Markdown page of these folders of results."""
    return HEAD + "\n".join(section(folder) for folder in folders)


def section(folder: Path) -> str:
    """All tables of a folder of results: a file for each entrant, one of them of the known gains."""
    results = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))
    }
    known = {row["name"]: row for row in results.pop(KNOWN_GAINS, {"rows": []})["rows"] if "original" in row}
    tried = {name: [row for row in one["rows"] if "skipped" not in row] for name, one in results.items()}
    summaries = {name: totals(rows, known) for name, rows in tried.items()}
    text = f"## {folder.name}\n\n"
    for name, one in results.items():
        machine = one["machine"]
        text += f"{name}: {machine['date'][:10]}, commit {machine['commit'][:8]}, {machine['cpu']}, "
        load = statistics.median(row["load"] for row in one["rows"] if "load" in row)
        text += f"{machine['cores_usable']} cores, median load {load:.1f} before each script"
        text += f", beside {one['busy']} busy loops\\\n" if one["busy"] else "\\\n"
    if summaries:
        keys = next(iter(summaries.values())).keys()
        text += "\n" + table(
            [("entrant", *keys), *((name, *one.values()) for name, one in summaries.items())]
        )
    answers = {name: {row["name"]: row for row in rows} for name, rows in tried.items()}
    lines = [("scenario", "family", "known gain", *answers)]
    for scenario in SCENARIOS:
        gain = f"{known_gain(known[scenario.name]):.2f}" if scenario.name in known else ""
        cells = [cell(scenario, of[scenario.name]) if scenario.name in of else "" for of in answers.values()]
        if any(cells) or (gain and not answers):
            lines.append((f"`{scenario.name}`", scenario.family, gain, *cells))
    text += "\n" + table(lines)
    for name, rows in tried.items():
        text += f"\nWhat {name} answered (columns) to each family (lines):\n\n{confusion(rows)}"
    return text


def cell(scenario: Scenario, row: Row) -> str:
    """An answer in short: its kind, its mark and the gain that it predicts."""
    answer = row.get("answer", {"kind": "failed"})
    at_most = f" ≤ {answer['at_most']:.1f}" if answer.get("at_most") else ""
    gain = f" {answer['gain']:.2f}" if answer.get("gain") else at_most
    return f"{answer.get('kind', 'undecided')} {MARKS[grade(scenario, row)]}{gain}"
