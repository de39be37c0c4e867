"""From an observation to a diagnosis: causes in order, with confidence, and advice in order of its gain."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.doctor.candidates import Candidate, Case, candidates, case_of, other_arguments
from headrace.doctor.memory import FOR_MEMORY, memory_findings
from headrace.doctor.records import Advice, Cause, Diagnosis, Rate, StageCost, Step, Usage
from headrace.errors import HeadraceError
from headrace.measure.observed import ACTUAL, DEMAND, EXAMINED, GAIN_THAT_COUNTS, SUPPLY, Observation, Phase

# Steps that wait for less than this share of their time aren't starved: TensorFlow's profiler, too, calls a
# program input-bound from 5 % on.
STALL_THAT_MATTERS = 0.05
# What a stage would bring if it cost nothing is a bound, and another loader is more than an argument: these
# must promise more to come first.
WEIGHT_OF_BOUNDS = 0.7
RESAMPLINGS = 200
LEAST_STEPS = 8  # of a script that ended by itself, to be judged at all
LONG_FIRST_BATCH = 3.0  # seconds
# Of its time, what a thread waits for a core where there are enough of them; and of the cores, what is all.
RUN_DELAY_THAT_MATTERS = 0.15
NEARLY_ALL = 0.85
SEED = 7  # of the resampling: the same measurements give the same report
# A step that reaches less of what it can do alone is held up by something, even if it doesn't wait.
SLOWED = 0.75
ABOUT_LOADING = (
    "workers",
    "read",
    "decode",
    "transform",
    "dataset",
    "collate",
    "transfer",
    "pin",
    "straggler",
)


def diagnose(observation: Observation) -> Diagnosis:
    """What starves the step of this observation, and what to change.

    Raises:
        HeadraceError: too little was measured; the message says what.
    """
    case = case_of(observation)
    actual = observation.phase(ACTUAL)
    short = actual is None or (observation.ended != EXAMINED and len(actual.waits) < LEAST_STEPS)
    if case is None or observation.loader is None or short:
        raise HeadraceError(too_little(observation))
    found = candidates(case)
    ranked = rank(case, found)
    loader = observation.loader
    return Diagnosis(
        command=tuple(observation.command),
        loader=loader.code,
        where=loader.where,
        causes=causes(observation, case, ranked),
        advice=advice(case, found, ranked),
        rates=rates(observation),
        stall=case.stall,
        stages=stage_costs(case),
        cores=observation.cores,
        seconds_per_sample=case.actual,
        memory=memory_findings(observation),
        steps=steps(observation),
        usage=tuple(Usage(**usage) for usage in observation.usage),
        watching=watching(observation),
        notes=(*observation.notes, *first_batch(case)),
    )


def first_batch(case: Case) -> list[str]:
    """That it took long, if it did: once in a training, but at each start of it."""
    loader, batch = case.observation.loader, case.actual * (case.arguments.get("batch_size") or 1)
    seconds = loader.first_batch_seconds if loader else 0.0
    if seconds < LONG_FIRST_BATCH:
        return []
    steps = f", as long as {seconds / batch:,.0f} steps take"
    return [f"the first batch came after {seconds:.1f} s{steps}: what imports, lists files or starts workers"]


def too_little(observation: Observation) -> str:
    """Why nothing can be said, and what to do."""
    if observation.ended not in ("script ended", EXAMINED) and not observation.ended.startswith("out of"):
        return f"The script failed before enough was measured: {observation.ended}."
    if observation.loader is None:
        return "The script made no step with a DataLoader: nothing starves where nothing is loaded."
    if observation.ended.startswith("out of memory"):
        return f"{observation.ended}. What helps: {FOR_MEMORY}."
    return (
        "Too few steps were made to measure anything: give the script more epochs or more data, so that it"
        f" makes at least {LEAST_STEPS} after the first ones."
    )


def rank(case: Case, found: Sequence[Candidate]) -> list[Candidate]:
    """The best candidate of each cause that matters, first what to mend first; empty: healthy."""
    best: dict[str, Candidate] = {}
    for candidate in found:
        if not candidate.kind or candidate.gain < GAIN_THAT_COUNTS:
            continue
        if candidate.kind in ABOUT_LOADING and case.stall < STALL_THAT_MATTERS:
            continue
        known = best.get(candidate.kind)
        if known is None or weight(candidate) > weight(known):
            best[candidate.kind] = candidate
    return sorted(best.values(), key=weight, reverse=True)


def weight(candidate: Candidate) -> float:
    """By which candidates are ordered."""
    asks_more = candidate.ideal or candidate.settings.get("headrace")
    return math.log(candidate.gain) * (WEIGHT_OF_BOUNDS if asks_more else 1.0)


def causes(observation: Observation, case: Case, ranked: Sequence[Candidate]) -> tuple[Cause, ...]:
    """With the confidence of the first: how often it stays the first when the measurements are resampled."""
    firsts: Counter[str] = Counter()
    generator = random.Random(SEED)
    for _ in range(RESAMPLINGS):
        other = case_of(resampled(observation, generator))
        if other is not None:
            order = rank(other, candidates(other))
            firsts[order[0].kind if order else "healthy"] += 1
    made = max(1, sum(firsts.values()))
    if not ranked:
        sure = firsts["healthy"] / made
        slowed = case.stall >= STALL_THAT_MATTERS or case.costs.demand < SLOWED * case.steady
        return (unexplained(case, sure) if slowed else healthy(case, sure),)
    return tuple(
        Cause(one.kind, one.why, one.evidence, cost=1 - 1 / one.gain, confidence=firsts[one.kind] / made)
        for one in ranked
    )


def healthy(case: Case, confidence: float) -> Cause:
    """Nothing starves the step."""
    costs = case.costs
    return Cause(
        kind="healthy",
        sentence=f"the step waits for {case.stall:.0%} of its time; alone it could take"
        f" {1 / costs.demand:,.0f} samples/s, and takes {1 / case.steady:,.0f}",
        evidence=(f"the loader alone supplies {1 / costs.supply:,.0f} samples/s",),
        cost=max(0.0, 1 - costs.demand / case.steady),
        confidence=confidence,
    )


def unexplained(case: Case, confidence: float) -> Cause:
    """The step waits, and no change that was measured would help."""
    costs = case.costs
    evidence = (
        f"the loader alone supplies {1 / costs.supply:,.0f} samples/s, the step alone could take"
        f" {1 / costs.demand:,.0f}, both together took {1 / case.steady:,.0f}",
        f"threads waited for a core for {case.run_delay:.0%} of their time",
    )
    waits = (
        f"the step waits for {case.stall:.0%} of its time, and takes {case.steady / costs.demand:.1f} times"
        " as long as alone"
    )
    if case.run_delay >= RUN_DELAY_THAT_MATTERS or costs.busy_cores >= NEARLY_ALL * costs.cores:
        return Cause(
            kind="cores",
            sentence=f"{waits}, while it and the loader would need {costs.busy_cores:.1f} of {costs.cores}"
            f" cores, and threads wait for a core for {case.run_delay:.0%} of their time",
            evidence=(
                *evidence,
                "other processes may have taken the cores: headrace doctor shows how busy they are",
            ),
            cost=case.stall,
            confidence=confidence,
        )
    return Cause(
        kind="unexplained",
        sentence=f"{waits}, and no change that was measured would make it faster: measure longer (--steps)",
        evidence=evidence,
        cost=case.stall,
        confidence=confidence,
    )


def resampled(observation: Observation, generator: random.Random) -> Observation:
    """The same measurements, drawn from with replacement: steps of each phase, looks at each stage."""
    phases = []
    for phase in observation.phases:
        drawn = draw_bursts(phase, workers_of(observation), generator)
        phases.append(
            replace(
                phase,
                waits=[phase.waits[i] for i in drawn],
                computes=[phase.computes[i] for i in drawn],
                samples=[phase.samples[i] for i in drawn],
            )
        )
    looks = [{**look, "stages": _resampled_looks(look["stages"], generator)} for look in observation.looks]
    return replace(observation, phases=phases, looks=looks)


def draw_bursts(phase: Phase, loader_workers: int, generator: random.Random) -> list[int]:
    """Numbers of steps, drawn with replacement; as many in a row as there are workers, see `bursts`."""
    count = len(phase.waits)
    size = max(1, int(phase.settings.get("loader", {}).get("num_workers", loader_workers)))
    starts = range(0, count, size)
    drawn: list[int] = []
    while len(drawn) < count:
        start = generator.choice(starts)
        drawn += range(start, min(count, start + size))
    return drawn


def workers_of(observation: Observation) -> int:
    """The loader's."""
    return int(observation.loader.arguments.get("num_workers", 0)) if observation.loader else 0


def _resampled_looks(stages: dict[str, Any], generator: random.Random) -> dict[str, Any]:
    # A count of n looks varies by its root, as a Poisson process does.
    drawn: dict[str, Any] = {}
    for kind, rows in stages.items():
        drawn[kind] = {}
        for key, (looks, blocked, seconds, waiting) in rows.items():
            factor = max(0.0, generator.gauss(1.0, 1 / math.sqrt(max(1, looks))))
            drawn[kind][key] = (looks * factor, blocked * factor, seconds * factor, waiting * factor)
    return drawn


def advice(case: Case, found: Sequence[Candidate], ranked: Sequence[Candidate]) -> tuple[Advice, ...]:
    """What would bring something, by how much."""
    kinds = [candidate.kind for candidate in ranked]
    wanted = [
        one
        for one in found
        if one.gain >= GAIN_THAT_COUNTS and (one.kind in kinds or (kinds and not one.kind))
    ]
    about_speed = tuple(
        Advice(
            cause=one.kind or kinds[0],
            summary=one.change,
            diff=one.lines or diff(case, one),
            predicted=one.gain,
            settings=one.settings,
            ideal=one.ideal,
        )
        for one in sorted(wanted, key=weight, reverse=True)
    )
    return about_speed + saving_memory(case)


def saving_memory(case: Case) -> tuple[Advice, ...]:
    """Arguments of the loader by which it takes less, where it takes too much."""
    changes = (finding.details.get("change") for finding in memory_findings(case.observation))
    found = (other_arguments(case, "memory", 1.0, "", **change) for change in changes if change)
    return tuple(Advice("memory", one.change, diff(case, one), 1.0) for one in found)


def diff(case: Case, candidate: Candidate) -> tuple[str, ...]:
    """Of the user's own call; what stays as it is is left out."""
    if candidate.settings.get("headrace"):
        return (
            "-loader = torch.utils.data.DataLoader(…)",
            "+loader = headrace.DataLoader(…)   # the same, without num_workers: it finds its own",
        )
    after = candidate.settings.get("loader", {})
    before = "".join(f", {name}={case.arguments[name]!r}" for name in after if name in case.arguments)
    text = "".join(f", {name}={value!r}" for name, value in after.items())
    return (f"-loader = DataLoader(…{before})", f"+loader = DataLoader(…{text})")


def rates(observation: Observation) -> tuple[Rate, ...]:
    """Supply, demand and actual, then supplies with other settings."""
    named = {phase.name: phase for phase in observation.phases if phase.seconds > 0}
    if DEMAND not in named and ACTUAL in named:
        actual = named[ACTUAL]
        named[DEMAND] = replace(actual, name=DEMAND, waits=[0.0] * len(actual.waits))
    first = [named[name] for name in (SUPPLY, DEMAND, ACTUAL) if name in named]
    others = [phase for name, phase in named.items() if name not in (SUPPLY, DEMAND, ACTUAL)]
    return tuple(rate(phase, workers_of(observation)) for phase in [*first, *others])


def rate(phase: Phase, loader_workers: int) -> Rate:
    """With bounds by bootstrap over its bursts."""
    generator, count = random.Random(SEED), len(phase.waits)
    means = []
    for _ in range(RESAMPLINGS):
        drawn = draw_bursts(phase, loader_workers, generator)
        seconds = sum(phase.waits[i] + phase.computes[i] for i in drawn)
        means.append(sum(phase.samples[i] for i in drawn) / max(1e-9, seconds))
    means.sort()
    low, high = means[int(0.025 * RESAMPLINGS)], means[int(0.975 * RESAMPLINGS)]
    return Rate(phase.name, phase.samples_per_second, low, high, count, phase.seconds)


def stage_costs(case: Case) -> tuple[StageCost, ...]:
    """As the report shows them."""
    loader = case.observation.loader
    own = loader.stages if loader is not None else {}
    threads = {"worker": case.workers, "native thread": max((row[2] for row in own.values()), default=1)}
    return tuple(
        StageCost(
            name=stage.key.removeprefix("transform:").removeprefix("dataset:").removeprefix("code:"),
            place=stage.place,
            seconds_per_sample=stage.seconds,
            waiting=stage.waiting / stage.seconds,
            samples_per_second=threads.get(stage.place, 1) / stage.seconds,
            evidence=stage.looks,
        )
        for stage in case.stages
        if stage.seconds > 0
    )


def steps(observation: Observation) -> tuple[Step, ...]:
    """Of the phases in which the script made steps."""
    return tuple(
        Step(phase.name, start, wait, compute)
        for phase in observation.phases
        if phase.steps_at
        for start, wait, compute in zip(phase.steps_at, phase.waits, phase.computes, strict=False)
    )


def watching(observation: Observation) -> float:
    """Seconds of the training process's processor time that watching took, per second of the actual phase."""
    shares = [
        look["own_cpu_seconds"] / look["seconds"]
        for look in observation.looks
        if look["phase"] == ACTUAL and look["seconds"] > 0
    ]
    return statistics.fmean(shares) if shares else 0.0
