"""A diagnosis as one page that needs nothing but itself: no network, no font, no script to be read."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
import markupsafe

from headrace_doctor.doctor import wording
from headrace_doctor.doctor.records import Diagnosis

WIDTH, HEIGHT = 600, 100  # units of a chart, stretched to the page; no chart has more columns
OUTLIER = 4  # times what all but a twentieth of the steps take: the end of the scale of steps
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """Quantities over time.

    Attributes:
        heading: what it shows.
        note: remark beside the heading: what the quantities are of, or a summary of them.
        top: value at the upper edge, with its unit: "120 ms".
        start, end: seconds at the left and right edge, since the script began.
        curves: (class of style, name, points of an SVG polygon), back to front.
        bands: (name, left, width) of each phase, in units of the chart, which is WIDTH of them wide.
    """

    heading: str
    note: str
    top: str
    start: float
    end: float
    curves: list[tuple[str, str, str]]
    bands: list[tuple[str, float, float]]


def render_html(diagnosis: Diagnosis) -> str:
    """The report as HTML5 in UTF-8, with the whole record in it as JSON.

    It loads nothing, and its Content-Security-Policy keeps it from it.

    Args:
        diagnosis: the record, with its three rates.

    Returns:
        The page as text.
    """
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: wording.plain(value) if type(value) is str else value,
    )
    folder = files("headrace_doctor.doctor") / "report"
    style, script, page = (
        (folder / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js", "html")
    )
    record = json.dumps(_finite(diagnosis.to_json()), allow_nan=False, separators=(",", ":"))
    html: str = environment.from_string(page).render(
        record=diagnosis,
        words=wording,
        demand=diagnosis.rate("demand").samples_per_second,
        most=max(rate.samples_per_second for rate in diagnosis.rates),
        places=wording.stages_by_place(diagnosis),
        charts=charts(diagnosis),
        size=(WIDTH, HEIGHT),
        style=markupsafe.Markup(style),
        script=markupsafe.Markup(script),
        # A script element of data ends at the first "</" in it.
        json=markupsafe.Markup(record.replace("<", "\\u003c")),
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
    )
    return html


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON doesn't have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def charts(diagnosis: Diagnosis) -> list[Chart]:
    """The steps, then what they used of the machine, as far as it was watched."""
    times = [usage.time for usage in diagnosis.usage] + [step.start for step in diagnosis.steps]
    times += [step.start + step.wait + step.compute for step in diagnosis.steps]
    if not times or max(times) <= min(times):
        return []
    start, end = min(times), max(times)
    bands = _bands(diagnosis, start, end)

    def chart(heading: str, note: str, unit: str, scale: float, top: float, **curves: Points) -> list[Chart]:
        curves = {name: points for name, points in curves.items() if points}
        if not curves:
            return []
        highest = max(value for points in curves.values() for _, value in points)
        top = min(top, 1.05 * highest) or scale
        drawn = [
            (f"curve{number}", name.replace("_", " "), _polygon(points, start, end, top))
            for number, (name, points) in enumerate(curves.items())
        ]
        note += f", up to {wording.figure(highest / scale)}" if highest > 1.06 * top else ""
        label = f"{wording.figure(top / scale)} {unit}"
        return [Chart(heading, note, label, start, end, drawn, bands)]

    def used(name: str) -> Points:
        return [(one.time, float(getattr(one, name))) for one in diagnosis.usage]

    steps = diagnosis.steps
    whole = [(step.start, step.wait + step.compute) for step in steps]
    waits = [(step.start, step.wait) for step in steps]
    lengths = sorted(length for _, length in whole)
    usual = OUTLIER * lengths[int(0.95 * (len(lengths) - 1))] if steps else 0.0
    waited = f"{len(steps):,} steps; {wording.percent(diagnosis.stall)} of their time waiting for data"
    processes = {"all_processes": used("memory"), "workers": used("workers_memory")}
    return [
        *chart("Steps", waited, "ms", 1e-3, usual or math.inf, step=whole, waiting=waits),
        *chart("CPU", f"of {diagnosis.cores} cores", "cores", 1, math.inf, used=used("cpu")),
        *chart("Disk", "read, page cache left out", "MB/s", 1e6, math.inf, read=used("disk_read")),
        *chart("Memory", "resident", "GB", 1e9, math.inf, **processes),
    ]


def _bands(diagnosis: Diagnosis, start: float, end: float) -> list[tuple[str, float, float]]:
    """The phases of the examination, as far as usage or steps show them."""
    seen = [(one.time, one.phase) for one in diagnosis.usage] or [(s.start, s.phase) for s in diagnosis.steps]
    runs: list[tuple[str, float]] = []
    for time, phase in sorted(seen):
        if not runs or runs[-1][0] != phase:
            runs.append((phase, WIDTH * (time - start) / (end - start)))
    ends = [*(left for _, left in runs[1:]), float(WIDTH)]
    return [
        (name, round(left, 1), round(right - left, 1))
        for (name, left), right in zip(runs, ends, strict=True)
        if name and right > left
    ]


def _polygon(points: Iterable[tuple[float, float]], start: float, end: float, top: float) -> str:
    """The area below (time, value) pairs, of which the highest of each column is drawn."""
    columns: dict[int, float] = {}
    for time, value in points:
        column = round(WIDTH * (time - start) / (end - start))
        columns[column] = max(value, columns.get(column, 0.0))
    line = [(column, HEIGHT * (1 - min(1.0, columns[column] / top))) for column in sorted(columns)]
    corners = [(line[0][0], float(HEIGHT)), *line, (line[-1][0], float(HEIGHT))]
    return " ".join(f"{x},{y:.1f}" for x, y in corners)
