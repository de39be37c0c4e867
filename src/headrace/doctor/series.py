"""What happened over time, made small enough to be drawn: no more columns than a screen shows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from headrace.doctor.records import Diagnosis, Step

COLUMNS = 600  # of a chart at most: about what a laptop's screen tells apart


@dataclass(frozen=True)
class Span:
    """Seconds since the script began, of the left and the right edge of a chart."""

    start: float
    end: float

    def place(self, time: float) -> float:
        """Where a time lies: 0 at the left edge, 1 at the right one."""
        return min(1.0, max(0.0, (time - self.start) / (self.end - self.start)))


@dataclass(frozen=True)
class Column:
    """One step, or the steps that one column of a chart holds.

    Attributes:
        start, end: seconds since the script began.
        steps: how many; the means are over them.
        wait, compute, device: seconds, mean; device is None where it is not known of any.
        longest: seconds that the longest of them took.
    """

    start: float
    end: float
    steps: int
    wait: float
    compute: float
    device: float | None
    longest: float


def span(diagnosis: Diagnosis) -> Span | None:
    """From the first thing seen to the last; None where nothing was."""
    times = [usage.time for usage in diagnosis.usage] + [step.start for step in diagnosis.steps]
    times += [step.start + step.wait + step.compute for step in diagnosis.steps]
    if not times or max(times) <= min(times):
        return None
    return Span(min(times), max(times))


def columns(steps: Sequence[Step], within: Span) -> list[Column]:
    """The steps in their order, each as a column of its own where there is room."""
    if len(steps) <= COLUMNS:
        return [_column([step]) for step in steps]
    bins: dict[int, list[Step]] = {}
    for step in steps:
        bins.setdefault(_bin(within, step.start), []).append(step)
    return [_column(bins[key]) for key in sorted(bins)]


def _column(steps: Sequence[Step]) -> Column:
    device = [step.device for step in steps if step.device is not None]
    return Column(
        start=min(step.start for step in steps),
        end=max(step.start + step.wait + step.compute for step in steps),
        steps=len(steps),
        wait=fmean(step.wait for step in steps),
        compute=fmean(step.compute for step in steps),
        device=fmean(device) if device else None,
        longest=max(step.wait + step.compute for step in steps),
    )


def highest(points: Iterable[tuple[float, float]], within: Span) -> list[tuple[float, float]]:
    """Of (time, value) pairs those that are the highest of their column."""
    best: dict[int, tuple[float, float]] = {}
    for time, value in points:
        key = _bin(within, time)
        if key not in best or value > best[key][1]:
            best[key] = (time, value)
    return [best[key] for key in sorted(best)]


def _bin(within: Span, time: float) -> int:
    return min(COLUMNS - 1, int(within.place(time) * COLUMNS))


def phases(diagnosis: Diagnosis, within: Span) -> list[tuple[str, Span]]:
    """The phases of the examination in their order, as the samples of the machine's use tell them."""
    seen = [(usage.time, usage.phase) for usage in diagnosis.usage]
    seen = seen or [(step.start, step.phase) for step in diagnosis.steps]
    runs: list[tuple[float, str]] = []
    for time, phase in sorted(seen):
        if not runs or runs[-1][1] != phase:
            runs.append((time, phase))
    ends = [time for time, _ in runs[1:]] + [within.end]
    return [
        (phase, Span(time, end))
        for (time, phase), end in zip(runs, ends, strict=True)
        if phase and end > time
    ]


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from low to high, at most `about` and one more."""
    if high <= low:
        return [low]
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]
