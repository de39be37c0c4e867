"""From an observation to a diagnosis: causes in order, with confidence, and advice in order of its gain."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace_doctor.doctor.candidates import REMEDIES, candidates
from headrace_doctor.doctor.case import TAKEN_CORES, Candidate, Case, case_of, other_arguments, where_it_stays
from headrace_doctor.doctor.memory import FOR_MEMORY, GROWING, LESS_GROWTH, LESS_GROWTH_LINES, memory_findings
from headrace_doctor.doctor.model import IRREGULAR, draw_bursts, part_name, step_parts
from headrace_doctor.doctor.records import KINDS, Advice, Cause, Diagnosis, Rate, Step, TimeShare, Usage
from headrace_doctor.errors import DoctorError
from headrace_doctor.measure.observed import (
    ACTUAL,
    DEMAND,
    EXAMINED,
    GAIN_THAT_COUNTS,
    PARTS,
    STALL_THAT_MATTERS,
    SUPPLY,
    Observation,
    Phase,
)

# What a stage would bring if it cost nothing is a bound, and another loader is more than an argument: these
# must promise more to come first.
WEIGHT_OF_BOUNDS = 0.7
RESAMPLINGS = 200
LEAST_STEPS = 8  # of a script that ended by itself, to be judged at all
LONG_FIRST_BATCH = 3.0  # seconds
# Of its time, what a thread waits for a core where there are enough of them; and of the cores, what is all.
RUN_DELAY_THAT_MATTERS = 0.15
NEARLY_ALL = 0.85
MUCH_FASTER = 1.5  # a gain that no noise explains
SEED = 7  # of the resampling: the same measurements give the same report
# Share of resamplings that must agree on a busy machine.
DECIDED = 0.6
MOST_UNDER_LOAD = 0.95  # confidence where the load average is above the number of cores
# Times as long as alone: below it, a step is as fast as on the few batches that are repeated for it.
LONGER = 1.25
LEAST_SHARE = 0.02  # of the time, of a part that is reported
ABOUT_LOADING = {*REMEDIES, "workers", "straggler"} - {*IRREGULAR.values()}


def diagnose(observation: Observation) -> Diagnosis:
    """What starves the step of this observation, and what to change.

    Raises:
        DoctorError: too little was measured; the message says what.
    """
    case = case_of(observation)
    if case is None or (observation.ended != EXAMINED and len(case.phase.waits) < LEAST_STEPS):
        raise DoctorError(too_little(observation))
    found = candidates(case)
    ranked = rank(case, found)
    named = causes(observation, case, ranked)
    return Diagnosis(
        command=tuple(observation.command),
        loader=case.loader.code,
        where=case.loader.where,
        causes=named,
        # What answers the verdict comes first.
        advice=tuple(sorted(advice(case, found, ranked), key=lambda one: one.cause != named[0].kind)),
        rates=rates(case),
        stall=case.stall,
        stages=case.stages,
        time=time_shares(case),
        cores=observation.cores,
        seconds_per_sample=case.actual,
        memory=memory_findings(observation),
        steps=steps(observation),
        usage=tuple(Usage(**usage) for usage in observation.usage),
        watching=watching(case),
        others=case.others,
        notes=(*observation.notes, *first_batch(case), *other_processes(case)),
    )


def first_batch(case: Case) -> list[str]:
    """That it took long, if it did: once in a training, but at each start of it."""
    seconds = case.loader.first_batch_seconds
    if seconds < LONG_FIRST_BATCH:
        return []
    batch = case.actual * (case.arguments.get("batch_size") or 1)
    steps = f", as long as {seconds / batch:,.0f} steps take"
    return [f"the first batch came after {seconds:.1f} s{steps}: what imports, lists files or starts workers"]


def other_processes(case: Case) -> list[str]:
    """That other processes took cores, and what the script would reach without them."""
    if not case.is_busy:
        return []
    costs = case.free
    used = f"other processes used {case.others:.1f} of {costs.cores} cores"
    free = f"on a free one, the script would reach about {1 / costs.seconds:,.0f} samples/s"
    return [f"{used}: rates are those of a busy machine; {free}"]


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
    """The best candidate of each cause that matters, first what to fix first; empty: healthy."""
    best: dict[str, Candidate] = {}
    for candidate in found:
        if not candidate.kind or not candidate.counts:
            continue
        if candidate.kind in ABOUT_LOADING and not (case.starved or candidate.kind == "straggler"):
            continue
        if candidate.kind == "straggler" and case.stall < STALL_THAT_MATTERS:
            continue
        known = best.get(candidate.kind)
        if known is None or weight(candidate) > weight(known):
            best[candidate.kind] = candidate
    return sorted(best.values(), key=lambda one: (distorts(one), weight(one)), reverse=True)


def distorts(candidate: Candidate) -> bool:
    """Whether a cause makes every other measurement wrong as long as it lasts."""
    return candidate.kind == "oversubscribed" and candidate.gain >= MUCH_FASTER


def weight(candidate: Candidate) -> float:
    """By which candidates are ordered."""
    asks_more = candidate.ideal or candidate.settings.get("headrace")
    return math.log(candidate.gain) * (WEIGHT_OF_BOUNDS if asks_more else 1.0)


def causes(observation: Observation, case: Case, ranked: Sequence[Candidate]) -> tuple[Cause, ...]:
    """With the confidence of the first: how often it stays the first when the measurements are resampled."""
    firsts = first_causes(observation, RESAMPLINGS)
    made = max(1, sum(firsts.values()))
    sure = {kind: most_confidence(case) * count / made for kind, count in firsts.items()}
    found = [
        Cause(one.kind, one.why, one.evidence, cost=1 - 1 / one.gain, confidence=sure.get(one.kind, 0.0))
        for one in ranked
    ]
    if not found:
        waits = case.starved and case.stall - case.receiving >= STALL_THAT_MATTERS
        # Data at no cost must make it faster: the step alone may take as long as it does with its waits.
        waits = waits and case.steady >= GAIN_THAT_COUNTS * case.costs.demand
        kind = unexplained if waits else healthy
        found = [kind(case, sure.get("healthy", 0.0))]
        if kind is healthy and observation.phase(DEMAND) is None:
            found = [too_short(case)]
        # That a free machine would make up for so much is more than the measurements can tell.
        slower = case.costs.supply >= MUCH_FASTER * case.costs.demand
        if case.is_busy and case.stall >= STALL_THAT_MATTERS and slower:
            found = [replace(undecided(case, "the loader or the step"), cost=case.stall)]
    elif case.is_busy and len(found) > 1 and firsts[ranked[0].kind] < DECIDED * made:
        first, second = found[:2]
        between = undecided(case, f"{KINDS[first.kind]} or {KINDS[second.kind]}")
        found.insert(0, replace(between, cost=first.cost, confidence=first.confidence))
    growing = memory_cause(case)
    if growing is not None:
        found.insert(0 if found[0].kind == "healthy" or growing.cost >= 1 else len(found), growing)
    return tuple(found)


def first_causes(observation: Observation, times: int) -> Counter[str]:
    """How often each cause comes first when the measurements are resampled."""
    firsts: Counter[str] = Counter()
    generator = random.Random(SEED)
    for _ in range(times):
        other = case_of(resampled(observation, generator))
        if other is not None:
            order = rank(other, candidates(other))
            firsts[order[0].kind if order else "healthy"] += 1
    return firsts


def most_confidence(case: Case) -> float:
    """What other processes leave of the confidence: they change from second to second, which no resampling
    shows; where more threads want to run than there are cores, it is never complete."""
    most = 1.0 - 0.5 * min(1.0, case.others / case.costs.cores)
    load = max(phase.load for phase in case.observation.phases)
    return min(most, MOST_UNDER_LOAD) if load > case.costs.cores else most


def undecided(case: Case, between: str) -> Cause:
    """That other processes disturbed the measurement too much to tell causes apart."""
    sentence = (
        f"{between}: other processes used {case.others:.1f} of {case.costs.cores} cores, and the ranges of"
        " both overlap; run it again on a free machine, or longer (--steps)"
    )
    evidence = (
        f"the step waits for {case.stall:.0%} of its time; the loader alone supplies"
        f" {1 / case.costs.supply:,.0f} samples/s, the step alone processes {1 / case.costs.demand:,.0f}"
    )
    return Cause("undecided", sentence, (evidence,), cost=0.0, confidence=0.0)


def too_short(case: Case) -> Cause:
    """That the script ended before the step was measured alone, and shows nothing that starves it so far."""
    sentence = (
        f"the script ended after {len(case.phase.waits)} steps that could be measured, before"
        f" the step was measured alone; they waited for {case.stall:.0%} of their time, but prefetched"
        " batches may hide a slower loader: give it more steps or epochs"
    )
    evidence = f"the loader alone supplies {1 / case.costs.supply:,.0f} samples/s"
    return Cause("undecided", sentence, (evidence,), cost=0.0, confidence=0.0)


def memory_cause(case: Case) -> Cause | None:
    """Workers whose memory grows; its cost is the memory that they need in an epoch, as a share of what is
    free, and 1 if that is more than half."""
    finding = next((one for one in memory_findings(case.observation) if one.name == GROWING), None)
    if finding is None:
        return None
    sentence, cost = f"the workers grow by {finding.value}", float(finding.details["share"] > 0.5)
    return Cause("memory", sentence, (finding.remedy,), cost, most_confidence(case))


def healthy(case: Case, confidence: float) -> Cause:
    """Nothing starves the step."""
    costs, parts = case.costs, step_parts(case.observation, ACTUAL)
    part = max(parts, key=lambda key: parts[key], default="")
    held_up = ""
    if case.stall >= STALL_THAT_MATTERS:
        receives = case.stall - case.receiving < STALL_THAT_MATTERS
        others = " (other processes hold it up)" if case.is_busy else ""
        held_up = " (to receive batches from workers)" if receives else others
    factor = case.steady / costs.demand
    longer = f"; it takes {factor:.1f} times as long as on the repeated batches" if factor >= LONGER else ""
    largest = f" and spends {parts[part]:.0%} on {part_name(part)}" if part and parts[part] >= 0.3 else ""
    sentence = (
        f"the step waits for {case.stall:.0%} of its time{held_up}{largest}; its throughput is"
        f" {1 / case.steady:,.0f} samples/s, {1 / costs.demand:,.0f} with data at no cost{longer}"
    )
    supply = f"the loader alone supplies {1 / costs.supply:,.0f} samples/s"
    evidence = (supply, *where_it_stays(case.observation, PARTS))
    return Cause("healthy", sentence, evidence, max(0.0, 1 - costs.demand / case.steady), confidence)


def unexplained(case: Case, confidence: float) -> Cause:
    """The step waits, and no change that was measured would help."""
    costs = case.costs
    evidence = [
        f"the loader alone supplies {1 / costs.supply:,.0f} samples/s, the step alone processes"
        f" {1 / costs.demand:,.0f}, both together {1 / case.steady:,.0f}",
        f"threads waited for a core for {case.run_delay:.0%} of their time",
    ]
    waits = f"the step waits for {case.stall:.0%} of its time"
    longer = f"takes {case.steady / costs.demand:.1f} times as long as alone"
    kind = "unexplained"
    why = "and no change that was measured would make it faster: measure longer (--steps)"
    if case.run_delay >= RUN_DELAY_THAT_MATTERS or costs.busy_cores >= NEARLY_ALL * costs.cores:
        kind = "cores"
        why = (
            f"while it and the loader would need {costs.busy_cores:.1f} of {costs.cores} cores, and threads"
            f" wait for a core for {case.run_delay:.0%} of their time"
        )
        evidence.append(TAKEN_CORES)
    return Cause(kind, f"{waits}, and {longer}, {why}", tuple(evidence), case.stall, confidence)


def resampled(observation: Observation, generator: random.Random) -> Observation:
    """The same measurements, drawn from with replacement: steps of each phase, looks at each stage."""
    workers = observation.loader.workers if observation.loader else 0
    phases = []
    for phase in observation.phases:
        drawn = draw_bursts(phase, workers, generator)
        waits, computes = [phase.waits[i] for i in drawn], [phase.computes[i] for i in drawn]
        samples = [phase.samples[i] for i in drawn]
        phases.append(replace(phase, waits=waits, computes=computes, samples=samples))
    looks = [{**look, "stages": _resampled_looks(look["stages"], generator)} for look in observation.looks]
    return replace(observation, phases=phases, looks=looks)


def _resampled_looks(stages: dict[str, Any], generator: random.Random) -> dict[str, Any]:
    # A count of n looks varies by its root, as a Poisson process does.
    def drawn(row: Sequence[float]) -> tuple[float, ...]:
        factor = max(0.0, generator.gauss(1.0, 1 / math.sqrt(max(1, row[0]))))
        return tuple(value * factor for value in row)

    return {kind: {key: drawn(row) for key, row in rows.items()} for kind, rows in stages.items()}


def wanted(found: Sequence[Candidate], ranked: Sequence[Candidate]) -> list[Candidate]:
    """Those that bring something, in the order of advice."""
    kinds = [candidate.kind for candidate in ranked]
    some = [one for one in found if one.counts and (one.kind in kinds or (kinds and not one.kind))]
    return sorted(some, key=lambda one: (distorts(one), weight(one)), reverse=True)


def advice(case: Case, found: Sequence[Candidate], ranked: Sequence[Candidate]) -> tuple[Advice, ...]:
    """What would bring something, and by how much at most."""
    helpful = [(one.kind or ranked[0].kind, one) for one in wanted(found, ranked)]
    kinds = list(dict.fromkeys(kind for kind, _ in helpful))
    helpful.sort(key=lambda each: kinds.index(each[0]))
    about_speed = tuple(
        Advice(
            cause=kind,
            summary=one.change,
            diff=one.lines or diff(case, one),
            predicted=finite(one.bound or case.limit),
            settings=one.settings,
            ideal=True,
            alone=one.gain if one.ideal else 0.0,
            where=one.where,
            loader=one.loader,
        )
        for kind, one in helpful
    )
    return about_speed + saving_memory(case)


def finite(bound: float) -> float:
    """0 where there is no bound: JSON knows no infinity."""
    return bound if math.isfinite(bound) else 0.0


def saving_memory(case: Case) -> tuple[Advice, ...]:
    """Arguments of the loader by which it takes less, where it takes too much."""
    findings = memory_findings(case.observation)
    changes = (finding.details.get("change") for finding in findings)
    found = (other_arguments(case, "memory", 1.0, "", **change) for change in changes if change)
    grows = any(finding.name == GROWING for finding in findings)
    growth = (Advice("memory", LESS_GROWTH, LESS_GROWTH_LINES, 1.0),) if grows else ()
    return (*growth, *(Advice("memory", one.change, diff(case, one), 1.0) for one in found))


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


def rates(case: Case) -> tuple[Rate, ...]:
    """Supply, demand and actual, then supplies with other settings."""
    named = {phase.name: phase for phase in case.observation.phases if phase.seconds > 0}
    if DEMAND not in named:
        named[DEMAND] = replace(case.phase, name=DEMAND, waits=[0.0] * len(case.phase.waits))
    first = [named[name] for name in (SUPPLY, DEMAND, ACTUAL) if name in named]
    others = [phase for name, phase in named.items() if name not in (SUPPLY, DEMAND, ACTUAL, PARTS)]
    return tuple(rate(phase, case.loader.workers) for phase in [*first, *others])


def rate(phase: Phase, workers: int) -> Rate:
    """With bounds by bootstrap over its bursts."""
    generator, count = random.Random(SEED), len(phase.waits)
    means = []
    for _ in range(RESAMPLINGS):
        drawn = draw_bursts(phase, workers, generator)
        seconds = sum(phase.waits[i] + phase.computes[i] for i in drawn)
        means.append(sum(phase.samples[i] for i in drawn) / max(1e-9, seconds))
    means.sort()
    low, high = means[int(0.025 * RESAMPLINGS)], means[int(0.975 * RESAMPLINGS)]
    return Rate(phase.name, phase.samples_per_second, low, high, count, phase.seconds)


def time_shares(case: Case) -> tuple[TimeShare, ...]:
    """Where the time of the actual phase went: waiting, parts of the step, loops over other loaders."""
    observation = case.observation
    whole = max(1e-9, case.phase.ended - case.phase.began)
    waits = sum(case.phase.waits) + sum(case.phase.startups)
    shares = [TimeShare("waiting for data", min(1.0, waits / whole))]
    for loop in observation.loops:
        shares.append(TimeShare(f"loop at {loop.where}: waiting for data", loop.waits / whole))
        shares.append(TimeShare(f"loop at {loop.where}: computing", loop.computes / whole))
    # Stack samples don't tell a step of training from one of another loop.
    parts = step_parts(observation, ACTUAL)
    sampled = max(1e-9, sum(parts.values()))
    own = max(0.0, 1 - sum(loop.computes for loop in observation.loops) / whole / sampled)
    for key, share in sorted(parts.items(), key=lambda part: -part[1]):
        if own * share >= LEAST_SHARE:
            shares.append(TimeShare(part_name(key), own * share))
    return tuple(shares)


def steps(observation: Observation) -> tuple[Step, ...]:
    """Of the phases in which the script made steps."""
    return tuple(
        Step(phase.name, start, wait, compute)
        for phase in observation.phases
        if phase.steps_at
        for start, wait, compute in zip(phase.steps_at, phase.waits, phase.computes, strict=False)
    )


def watching(case: Case) -> float:
    """Share of the cores' time that watching took in the actual phase, in all processes."""
    observation = case.observation
    whole = max(1e-9, case.phase.ended - case.phase.began)
    inside = sum(look["own_cpu_seconds"] for look in observation.looks if look["phase"] == ACTUAL)
    return float(inside / whole + observation.watching) / observation.cores
