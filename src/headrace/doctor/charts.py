"""The geometry of the report's charts, which its template draws as SVG: percent across, pixels down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from headrace.doctor.records import Rate
from headrace.doctor.series import Column, Span, ticks
from headrace.doctor.wording import METHOD, StageRow

WIDTH = 1000  # units across of a plot's inner drawing, stretched to the page
DEMAND_AT = 62  # percent of a stage's bar at which the line of demand is

# Beyond this many times what all but a twentieth of the columns need, the scale of the steps is cut.
OUTLIER = 4

# Percent of a plot's width that a letter of a phase's name and the space before it take.
LAPTOP = (0.85, 0.6)
PHONE = (2.5, 1.7)

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class RateBar:
    """A rate: its name as a class of style, and where bar and whisker end, in percent."""

    kind: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class StageBar:
    """A capacity: "short", "enough" or "cut", where it is beyond the scale; and where it ends, in percent."""

    kind: str
    value: float


@dataclass(frozen=True)
class Tick:
    """A number of an axis and where it is: pixels from the top, or percent from the left."""

    place: float
    label: str
    anchor: str = "middle"


@dataclass(frozen=True)
class Band:
    """A phase, in percent.

    Attributes:
        left, width: where it is.
        name: the phase's.
        label, short: as much of the name as there is room for on a laptop and on a phone; may be empty.
    """

    left: float
    width: float
    name: str
    label: str
    short: str


@dataclass(frozen=True)
class Plot:
    """Something over time.

    Attributes:
        name: what it shows, for those who can't see it.
        height: pixels between its lowest and its highest value.
        values, times: the axes.
        bands: the phases.
        drawn: (class of style, path), back to front; WIDTH units wide, `height` high.
    """

    name: str
    height: int
    values: list[Tick]
    times: list[Tick]
    bands: list[Band]
    drawn: list[tuple[str, str]]


def rate_bar(rate: Rate, most: float) -> RateBar:
    """A rate, where `most` is as long as a bar can be."""
    subject = rate.name.partition(" ")[0]
    kind = rate.name if rate.name in METHOD else f"other-{subject}" if subject in METHOD else "other-supply"
    return RateBar(kind, *(_percent(value, most) for value in (rate.samples_per_second, rate.low, rate.high)))


def stage_bar(row: StageRow, demand: float, most: float) -> StageBar:
    """A capacity against the line of demand; where that isn't known (0), against the largest."""
    limit = demand * 100 / DEMAND_AT if demand else most
    kind = "short" if row.short else "cut" if row.samples_per_second > limit else "enough"
    return StageBar(kind, _percent(row.samples_per_second, limit))


def _percent(value: float, most: float) -> float:
    return round(100 * min(1.0, value / most), 2) if most > 0 else 0.0


def plot(
    name: str,
    within: Span,
    top: float,
    height: int,
    drawn: list[tuple[str, str]],
    phases: Sequence[tuple[str, Span]],
    unit: float = 1.0,
) -> Plot:
    """A plot with its axes; values are labelled as multiples of the unit."""
    values = [
        Tick(round(height * (1 - value * unit / top), 1), _label(value)) for value in ticks(0, top / unit, 4)
    ]
    bands = [_band(phase, band, within) for phase, band in phases]
    return Plot(name, height, values, _times(within), bands, drawn)


def _band(name: str, band: Span, within: Span) -> Band:
    left, right = 100 * within.place(band.start), 100 * within.place(band.end)
    width = right - left
    label, short = (
        next((part for part in (name, name.partition(" ")[0]) if cell_len(part) * wide + margin <= width), "")
        for wide, margin in (LAPTOP, PHONE)
    )
    return Band(round(left, 3), round(width, 3), name, label, short)


def _times(within: Span) -> list[Tick]:
    found = []
    for time in ticks(within.start, within.end, 6):
        place = round(100 * within.place(time), 2)
        found.append(
            Tick(place, f"{_label(time)} s", "start" if place < 4 else "end" if place > 96 else "middle")
        )
    return found


def _label(value: float) -> str:
    """A round number, without more digits than it needs."""
    near = round(value)
    return f"{near:,}" if abs(value - near) <= 1e-9 * max(1.0, abs(value)) else f"{value:,.9f}".rstrip("0")


def scale_of_steps(shown: Sequence[Column]) -> float:
    """Seconds at the upper edge: the longest step, unless a few outliers would flatten all others."""
    usual = sorted(column.wait + column.compute for column in shown)[int(0.95 * (len(shown) - 1))]
    longest = max(column.longest for column in shown)
    return min(longest, OUTLIER * usual) if usual > 0 else longest


def bars(shown: Sequence[Column], within: Span, top: float, height: int) -> list[tuple[str, str]]:
    """Steps as bars: waiting above computing, the longest of a column behind, device busy as a line."""
    paths: dict[str, list[str]] = {"longest": [], "compute": [], "wait": [], "beyond": [], "device": []}
    for column in shown:
        left, right = (WIDTH * within.place(time) for time in (column.start, column.end))
        both = column.wait + column.compute
        compute, wait, longest, device = (
            height * (1 - min(1.0, seconds / top))
            for seconds in (column.compute, both, column.longest, column.device or 0.0)
        )
        paths["compute"].append(_box(left, right, height, compute))
        paths["wait"].append(_box(left, right, compute, wait))
        if column.longest > both:
            paths["longest"].append(_box(left, right, wait, longest))
        if column.longest > top * (1 + 1e-9):
            paths["beyond"].append(_box(left, right, 3, 0))
        if column.device is not None:
            paths["device"].append(f"M{left:.1f} {device:.1f}H{right:.1f}")
    return [(kind, "".join(path)) for kind, path in paths.items() if path]


def _box(left: float, right: float, low: float, high: float) -> str:
    return f"M{left:.1f} {low:.1f}V{high:.1f}H{right:.1f}V{low:.1f}Z"


def line(points: Points, within: Span, top: float, height: int) -> str:
    """The path through (time, value) pairs."""
    return "M" + "L".join(
        f"{WIDTH * within.place(time):.1f} {height * (1 - min(1.0, value / top)):.1f}"
        for time, value in points
    )


def area(points: Points, within: Span, top: float, height: int) -> str:
    """The path of the area below that line."""
    first, last = (WIDTH * within.place(time) for time in (points[0][0], points[-1][0]))
    return f"{line(points, within, top, height)}L{last:.1f} {height}L{first:.1f} {height}Z"
