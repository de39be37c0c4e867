"""A diagnosis as one page that needs nothing but itself: no network, no font, no script to be read."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from importlib.resources import files
from statistics import fmean
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from headrace.doctor import charts
from headrace.doctor.charts import Plot, RateBar, StageBar
from headrace.doctor.records import Diagnosis, Rate
from headrace.doctor.series import Span, columns, highest, phases, span
from headrace.doctor.wording import (
    MARKS,
    METHOD,
    StageRow,
    certainty,
    figure,
    gain,
    percent,
    plain,
    rate_named,
    stages_by_place,
    title,
)

STEPS_HEIGHT = 200  # pixels of the plot of steps
USAGE_HEIGHT = 80  # and of each of the plots below it

HOW = {
    "supply": "The loader alone, pulled as fast as it goes:",
    "demand": "The step alone, on batches kept in memory:",
    "actual": "The script as it is:",
}


@dataclass(frozen=True)
class RateRow:
    """A rate, its bar and how it was measured."""

    rate: Rate
    bar: RateBar
    method: str
    how: str


@dataclass(frozen=True)
class Panel:
    """A plot with its caption; the legend's entries are (class of style, text)."""

    heading: str
    note: str
    plot: Plot
    legend: tuple[tuple[str, str], ...] = ()


def render_html(diagnosis: Diagnosis) -> str:
    """The report as HTML5 in UTF-8, with the whole record in it as JSON.

    Its size grows with the record alone: no chart has more than 600 columns. It loads nothing, and its
    Content-Security-Policy keeps it from it.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_finalized
    )
    environment.filters["prose"] = _prose
    style, script = _asset("report.css"), _asset("report.js")
    demand = rate_named(diagnosis, "demand")
    within = span(diagnosis)
    # One rate of which little is known mustn't make the bars of all others short.
    most = min(
        max((rate.high for rate in diagnosis.rates), default=0.0),
        1.15 * max((rate.samples_per_second for rate in diagnosis.rates), default=0.0),
    )
    return environment.from_string(_asset("report.html")).render(
        record=diagnosis,
        healthy=diagnosis.verdict.kind == "healthy",
        verdict_title=title(diagnosis.verdict),
        rates=[
            RateRow(
                rate,
                charts.rate_bar(rate, most),
                METHOD.get(rate.name, ""),
                HOW.get(rate.name.partition(" ")[0], ""),
            )
            for rate in diagnosis.rates
        ],
        demand=demand.samples_per_second if demand else 0.0,
        demand_at=charts.DEMAND_AT,
        places=_places(diagnosis),
        within=within,
        phases=phases(diagnosis, within) if within else [],
        panels=_panels(diagnosis),
        width=charts.WIDTH,
        lines=("device", "whole", "part"),
        marks=MARKS,
        certainty=certainty,
        figure=figure,
        gain=gain,
        percent=percent,
        title=title,
        style=Markup(style),
        script=Markup(script),
        json=_json(diagnosis),
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
    )


def _asset(name: str) -> str:
    return (files("headrace.doctor") / "report" / name).read_text(encoding="utf-8")


def _finalized(value: object) -> object:
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _prose(text: str) -> Markup:
    """A sentence, where no line ends between a figure and its percent sign; not for code, which is copied."""
    return escape(re.sub(r"(\d) %", "\\1\u00a0%", plain(text)))


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _json(diagnosis: Diagnosis) -> Markup:
    """The record for a script element of data, which ends at the first "</" in it."""
    text = json.dumps(_finite(diagnosis.to_json()), allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON doesn't have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def _places(diagnosis: Diagnosis) -> list[tuple[str, list[tuple[StageRow, StageBar]]]]:
    demand = rate_named(diagnosis, "demand")
    limit = demand.samples_per_second if demand else 0.0
    known = [s.samples_per_second for s in diagnosis.stages if math.isfinite(s.samples_per_second)]
    most = max(known, default=0.0)
    return [
        (place, [(row, charts.stage_bar(row, limit, most)) for row in rows])
        for place, rows in stages_by_place(diagnosis)
    ]


def _panels(diagnosis: Diagnosis) -> list[Panel]:
    within = span(diagnosis)
    if within is None:
        return []
    return [*_steps(diagnosis, within), *_usage(diagnosis, within)]


def _steps(diagnosis: Diagnosis, within: Span) -> list[Panel]:
    if not diagnosis.steps:
        return []
    shown = columns(diagnosis.steps, within)
    top = charts.scale_of_steps(shown) or 1.0
    unit, name = (1.0, "s") if top >= 10 else (0.001, "ms")
    note = f"{name} per step; {len(diagnosis.steps):,} steps"
    legend = [("wait", "waits for data"), ("compute", "computes")]
    if any(column.steps > 1 for column in shown):
        note += f", each column the mean of up to {max(column.steps for column in shown)}"
        legend.append(("longest", "the longest step of the column"))
    if any(column.device is not None for column in shown):
        legend.append(("device", "device busy"))
    beyond = [column.longest for column in shown if column.longest > top]
    if beyond:
        legend.append(("beyond", f"goes on beyond the scale, up to {figure(max(beyond) / unit)} {name}"))
    drawn = charts.bars(shown, within, top, STEPS_HEIGHT)
    named = f"Milliseconds per step over time: {percent(diagnosis.stall)} of it waiting for data"
    plot = charts.plot(named, within, top, STEPS_HEIGHT, drawn, phases(diagnosis, within), unit)
    return [Panel("Steps", note, plot, tuple(legend))]


def _usage(diagnosis: Diagnosis, within: Span) -> list[Panel]:
    """The machine's use, a panel for each part of it that was watched."""
    usage = diagnosis.usage
    cpu = [(u.time, u.cpu) for u in usage]
    gpu = [(u.time, u.gpu) for u in usage if u.gpu is not None]
    gpu_memory = [(u.time, float(u.gpu_memory)) for u in usage if u.gpu_memory is not None]
    disk = [(u.time, u.disk_read) for u in usage]
    memory = [(u.time, float(u.memory)) for u in usage]
    workers = [(u.time, float(u.workers_memory)) for u in usage]
    trained = {u.time for u in usage if u.phase == "actual"}

    def panel(heading: str, of: str, points: charts.Points, unit: float, top: float = 0.0) -> list[Panel]:
        if not points:
            return []
        values = [value / unit for time, value in points if time in trained]
        mean = f"; {figure(fmean(values))} on average in actual" if values else ""
        return [_use(diagnosis, within, heading, of + mean, points, unit, top)]

    cores = f"cores in use of {diagnosis.cores}"
    return [
        *panel("GPU", "% of the time busy, by NVML", gpu, 0.01, 1.0),
        *panel("CPU", cores, cpu, 1.0, float(diagnosis.cores)),
        *panel("Disk", "MB/s read from storage, not from the page cache", disk, 1e6),
        *([_memory(diagnosis, within, memory, workers)] if memory else ()),
        *panel("GPU memory", "GB", gpu_memory, 1e9),
    ]


def _use(
    diagnosis: Diagnosis,
    within: Span,
    heading: str,
    note: str,
    points: charts.Points,
    unit: float,
    top: float,
) -> Panel:
    shown = highest(points, within)
    top = max(top, 1.05 * max(value for _, value in shown)) or unit
    drawn = [
        ("under", charts.area(shown, within, top, USAGE_HEIGHT)),
        ("whole", charts.line(shown, within, top, USAGE_HEIGHT)),
    ]
    named = f"{heading}: {note}"
    return Panel(
        heading, note, charts.plot(named, within, top, USAGE_HEIGHT, drawn, phases(diagnosis, within), unit)
    )


def _memory(diagnosis: Diagnosis, within: Span, memory: charts.Points, workers: charts.Points) -> Panel:
    panel = _use(diagnosis, within, "Memory", "GB resident", memory, 1e9, 0.0)
    top = 1.05 * max(value for _, value in memory) or 1e9
    panel.plot.drawn.append(("part", charts.line(highest(workers, within), within, top, USAGE_HEIGHT)))
    legend = (("whole", "script and workers"), ("part", "workers"))
    return replace(panel, legend=legend)
