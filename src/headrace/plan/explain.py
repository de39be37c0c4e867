"""The plan as text. A pure function of the plan: the same plan gives the same characters, on any machine."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from headrace.plan.physical import Decision, Plan, SplitPlan

HEADINGS = ("step", "where", "parity", "reason")

# Wide enough for the longest common step; longer ones are wrapped.
STEP_WIDTH = 60
REASON_WIDTH = 56


def explain(plan: Plan) -> str:
    """A table with one row per decision: the step, where it runs, how exact it is and why."""
    lines = [_title(plan), ""]
    lines += _table([(_name(i, d), d.where, d.parity, d.reason) for i, d in enumerate(plan.decisions)])
    if plan.python is not None:
        lines += ["", _blame(plan.decisions)]
    return "\n".join(lines) + "\n"


def _title(plan: Plan) -> str:
    if plan.native is not None:
        return "plan: native (C++ threads read, decode, transform and write the batch)"
    if plan.gather is not None:
        return "plan: gather (the data is in memory: no workers, whatever num_workers says)"
    if plan.split is not None:
        return _split_title(plan.split)
    return "plan: python (the dataset runs as it is written)"


def _split_title(split: SplitPlan) -> str:
    work = "reads, decodes and transforms" if split.prefix.steps else "reads and decodes"
    count = len(split.middle)
    steps = "1 step runs" if count == 1 else f"{count} steps run" if count else "batches are made"
    return f"plan: split (native code {work}; {steps} as Python in worker processes)"


def _name(i: int, decision: Decision) -> str:
    # r3 := Step(r2) would repeat what the order of the rows says already.
    return f"r{i} := {decision.step}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    limits = (STEP_WIDTH, 8, 24, REASON_WIDTH)
    cells = [[_wrap(text, limit) for text, limit in zip(row, limits, strict=True)] for row in rows]
    widths = [
        max(len(heading), *(len(line) for row in cells for line in row[column]))
        for column, heading in enumerate(HEADINGS)
    ]
    lines = [_line(HEADINGS, widths), _line(["─" * width for width in widths], widths)]
    for row in cells:
        for k in range(max(len(cell) for cell in row)):
            lines.append(_line([cell[k] if k < len(cell) else "" for cell in row], widths))
    return lines


def _wrap(text: str, width: int) -> list[str]:
    # A step's later lines start below its name, not below "r3 :=".
    indent = " " * 6 if ":=" in text else ""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _blame(decisions: Sequence[Decision]) -> str:
    rows = (f"r{i} {d.step}" for i, d in enumerate(decisions) if d.refused)
    return f"refused: not native because of {', '.join(rows)}"
