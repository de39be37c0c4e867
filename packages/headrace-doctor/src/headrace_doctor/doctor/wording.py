"""Words for metrics and findings, the same in every rendering."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby

from headrace_doctor.doctor.records import Advice, Cause, Diagnosis, Judgement, StageCost
from headrace_doctor.doctor.verdicts import KINDS
from headrace_doctor.errors import printable
from headrace_doctor.measure.observed import ACTUAL, DEMAND, LOOP, PARTS, SUPPLY

# A mark and a word, so that a judgement shows without color and without the mark.
MARKS = {"good": ("✓", "good"), "note": ("!", "note"), "bad": ("✗", "bad"), "unknown": ("?", "unknown")}
# What is measured in each phase.
PHASES = {
    ACTUAL: "the script as it is",
    DEMAND: "the step alone",
    PARTS: "the parts of the step",
    "profile": "the device during the step",
    SUPPLY: "the loader alone",
    f"{SUPPLY} headrace": "Headrace's loader",
    LOOP: "the loader of the loop",
}
FAR = 3.0  # times what is expected: a bound above it tells nothing
TOTAL = "total"  # kind of the sum of a place's stages
PLACES = {
    "worker": "in the workers",
    "read thread": "in read threads",
    "native thread": "in native threads",
    "collating thread": "in the collating thread",
    "copying thread": "in the thread that copies to the device",
    "pin thread": "in the pin thread",
    "main": "in the training thread",
}


def plain(text: str) -> str:
    """The text with what a terminal would obey, or UTF-8 can't hold, as escapes; line ends stay."""
    return "\n".join(map(printable, text.split("\n")))


def figure(value: float) -> str:
    """Three digits that count, thousands separated: 12,300, 41.2, 0.87."""
    if not math.isfinite(value):
        return "no limit" if value > 0 else "unknown"
    size = abs(value)
    if size < 0.005:
        return "<0.01" if size else "0"
    if size >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def percent(share: float) -> str:
    """0.31 as "31%"; below 2% with one digit after the point."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{share:.1%}" if 0 < share < 0.0195 else f"{share:.0%}"


def title(cause: Cause) -> str:
    """The title of the kind of cause, as a heading."""
    name = KINDS[cause.kind].title
    return name[:1].upper() + name[1:]


def judgement(verdict: Cause) -> Judgement:
    """The judgement of the whole script."""
    return "good" if verdict.kind == "healthy" else "unknown" if verdict.kind == "undecided" else "bad"


def cost(cause: Cause) -> str:
    """The cost of a cause, or "" if it is not known."""
    costs = cause.cost > 0 and cause.kind != "healthy"
    return f"it costs {percent(cause.cost)} of the training's time" if costs else ""


def times(factor: float) -> str:
    """1.92 as "1.9 times"; from 10 on without a digit after the point."""
    return f"{factor:,.0f} times" if factor >= 9.95 else f"{factor:.1f} times"


def measured(phase: str) -> str:
    """The name of a phase of the examination for readers, or "" if it isn't for them."""
    if phase in PHASES:
        return PHASES[phase]
    kind, _, settings = phase.partition(" ")
    text = PHASES.get(kind)
    if text is None:
        return ""
    return f"{text} at {settings}" if kind == LOOP else f"{text.removesuffix(' alone')} with {settings}"


def gain(advice: Advice) -> str:
    """The speed-up by a change: as expected, at most, and as measured."""
    if advice.cause == "memory":
        return "saves memory"
    condition = "" if advice.settings else " if this took no time"
    parts = [f"about {times(advice.expected)} as fast{condition}"] if advice.expected else []
    tells = advice.predicted and not 0 < FAR * advice.expected < advice.predicted
    parts += [f"at most {times(advice.predicted)}"] if tells else []
    parts += [f"measured: {times(advice.measured)}"] if advice.measured is not None else []
    return ", ".join(parts) or "how much faster is not known"


def stages_by_place(diagnosis: Diagnosis) -> list[tuple[str, list[StageCost]]]:
    """The stages in their order, put together by where they run, each place with its sum, of kind TOTAL.

    Stages of one place take turns, so what the place can do is the harmonic sum: each may keep up with
    demand alone while all together can't.
    """
    places = []
    for place, group in groupby(diagnosis.stages, key=lambda stage: stage.place):
        stages = list(group)
        rows = [*stages, _together(stages)] if len(stages) > 1 else stages
        places.append((PLACES.get(place, place), rows))
    return places


def _together(stages: list[StageCost]) -> StageCost:
    rates = [stage.samples_per_second for stage in stages]
    inverse = sum(1 / rate for rate in rates if rate > 0)
    capacity = 0.0 if min(rates) <= 0 else 1 / inverse if inverse else math.inf
    seconds = sum(stage.seconds_per_sample for stage in stages)
    waited = sum(stage.seconds_per_sample * stage.waiting for stage in stages)
    evidence = sum(stage.evidence for stage in stages)
    waiting = waited / seconds if seconds else 0.0
    return StageCost(TOTAL, "all of these", stages[0].place, seconds, waiting, capacity, evidence)


def tally(judgements: Iterable[str]) -> str:
    """Counts the bad ones, the notes and the unknown: "1 bad, 2 notes, 1 unknown, of 14"."""
    found = list(judgements)
    bad, notes, unknown = (found.count(kind) for kind in ("bad", "note", "unknown"))
    parts = [f"{bad} bad", f"{notes} note" + "s" * (notes != 1)]
    if unknown:
        parts.append(f"{unknown} unknown")
    return f"{', '.join(parts)}, of {len(found)}."
