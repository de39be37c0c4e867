"""The plan as text.

The table is a pure function of the plan: the same plan gives the same characters, on any machine.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from headrace.plan.environment import Environment
from headrace.plan.segments import DatasetSegment, GatherSegment, NativeSegment, Plan

HEADINGS = ("step", "where", "values", "reason")

# Wide enough for the longest common step; longer ones are wrapped.
STEP_WIDTH = 60
REASON_WIDTH = 56


def explain(plan: Plan, environment: Environment | None = None) -> str:
    """A table with one row per step: the step, where it runs, how exact it is and why; what to change for all
    of it to be native; and what the plan runs in."""
    steps = plan.steps()
    lines = [_title(plan), ""]
    lines += _table([(step.text, where, step.parity, step.reason) for where, step in steps])
    refused = [step.text for _, step in steps if step.refused]
    # A dataset of user code is no failure: nothing has to change, and its row says what may.
    if refused and not steps[0][1].refused:
        lines += ["", f"to run all of it natively, change: {', '.join(refused)}"]
    lines += [""] if environment is None else ["", *environment.lines(plan)]
    return "\n".join(lines)


def _title(plan: Plan) -> str:
    samples = plan.samples
    match samples:
        case NativeSegment():
            return "plan: native (C++ threads read, decode, transform and write the batch)"
        case GatherSegment():
            return "plan: gather (the data is in memory: no workers are needed, num_workers has no effect)"
        case DatasetSegment():
            return "plan: python (the dataset's own code makes the samples)"


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
    # The second line of a step is no step of its own.
    indent = "    " if width == STEP_WIDTH else ""
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
