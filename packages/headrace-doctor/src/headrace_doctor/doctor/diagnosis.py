"""Turns an observation into a diagnosis: causes in order, and advice in order of its gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from headrace_doctor.doctor.case import (
    BOUNDS,
    MUCH_FASTER,
    TAKEN_CORES,
    Candidate,
    Case,
    case_of,
    other_arguments,
    standstill,
    where_it_stays,
)
from headrace_doctor.doctor.html import render_html
from headrace_doctor.doctor.memory import FOR_MEMORY, GROWING, LESS_GROWTH, LESS_GROWTH_LINES, memory_findings
from headrace_doctor.doctor.model import part_name, standard_error, step_parts
from headrace_doctor.doctor.records import Advice, Cause, Diagnosis, Rate, Step, TimeShare, Usage
from headrace_doctor.doctor.text import render_text
from headrace_doctor.doctor.verdicts import KINDS, candidates
from headrace_doctor.errors import DoctorError, duration
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
# On a busy machine, a first cause that is less ahead of the second is undecided.
LEAST_MARGIN = 0.15
LEAST_STEPS = 8  # of a script that ended by itself, to be judged at all
LONG_FIRST_BATCH = 3.0  # seconds
# Of its time, what a thread waits for a core if there are enough of them; and of the cores, what is all.
RUN_DELAY_THAT_MATTERS = 0.15
NEARLY_ALL = 0.85
# Times as long as alone: below it, a step is as fast as on the few batches that are repeated for it.
LONGER = 1.25
THROTTLED_THAT_MATTERS = 0.5  # share of the periods of a quota
STANDSTILL_THAT_MATTERS = 0.2  # share of the time
MORE_QUOTA = "raise it (docker run --cpus, Kubernetes' resources.limits.cpu, systemd's CPUQuota=)"
LEAST_SHARE = 0.02  # of the time, of a part that is reported
LONG_STALL = 0.3  # share of the step's time in which it waits: other processes don't explain more than that
# A bound is told up to so many times the gain of a step that never waits, as it was measured.
TELLING = 3.0


class Report(Diagnosis):
    """A diagnosis that prints itself."""

    def __str__(self) -> str:
        """The report as text, as the command prints it."""
        return render_text(self)

    def to_html(self) -> str:
        """The report as one page, as the command writes it."""
        return render_html(self)


def diagnose(observation: Observation) -> Report:
    """Finds what starves the step of this observation, and what to change.

    Raises:
        DoctorError: too little was measured; the message says what.
    """
    case = case_of(observation)
    if case is None or (observation.ended != EXAMINED and len(case.phase.waits) < LEAST_STEPS):
        raise DoctorError(too_little(observation))
    found = sorted(candidates(case), key=rank, reverse=True)
    named = causes(case, found)
    return Report(
        command=tuple(observation.command),
        loader=case.loader.code,
        where=case.loader.where,
        causes=named,
        # What answers the verdict comes first.
        advice=tuple(sorted(advice(case, found), key=lambda one: one.cause != named[0].kind)),
        rates=rates(case),
        stall=case.stall,
        stages=case.stages,
        time=time_shares(case),
        cores=observation.cores,
        seconds_per_sample=case.actual,
        memory=memory_findings(observation),
        steps=tuple(
            Step(phase.name, *step)
            for phase in observation.phases
            for step in zip(phase.steps_at, phase.waits, phase.computes, strict=False)
        ),
        usage=tuple(Usage(**usage) for usage in observation.usage),
        watching=watching(case),
        others=case.others,
        notes=(*observation.notes, *first_batch(case), *other_processes(case)),
    )


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


def first_batch(case: Case) -> list[str]:
    """Notes a first batch that takes long: once in a training, but at each start of it."""
    seconds = case.loader.first_batch_seconds
    if seconds < LONG_FIRST_BATCH:
        return []
    batch = case.actual * (case.arguments.get("batch_size") or 1)
    steps = f", as long as {seconds / batch:,.0f} steps take"
    what = "what imports, lists files or starts workers"
    return [f"the first batch came after {duration(seconds)}{steps}: {what}"]


def other_processes(case: Case) -> list[str]:
    """Notes that a quota or other processes took cores, and what the script would reach without them."""
    if case.phase.throttled >= THROTTLED_THAT_MATTERS:
        return [throttled(case)]
    if not case.is_busy:
        return []
    free = f"on a free one, the script would reach about {1 / case.free.seconds:,.0f} samples/s"
    return [f"{taken(case)}: rates are those of a busy machine; {free}"]


def taken(case: Case) -> str:
    """Says how many cores other processes used."""
    return f"other processes used {case.others:.1f} of {case.costs.cores} cores"


def weight(candidate: Candidate) -> float:
    """The weight of a candidate: the logarithm of its gain, less if it asks for more than an argument."""
    asks_more = candidate.ideal or candidate.settings.get("headrace")
    return math.log(candidate.gain) * (WEIGHT_OF_BOUNDS if asks_more else 1.0)


def rank(candidate: Candidate) -> tuple[bool, float]:
    """The order of candidates: first those that make every other measurement wrong."""
    verdict = KINDS.get(candidate.kind)
    return verdict is not None and verdict.distorts and candidate.gain >= MUCH_FASTER, weight(candidate)


def causes(case: Case, found: Sequence[Candidate]) -> tuple[Cause, ...]:
    """The causes that the candidates answer, the verdict first, or what else holds if there are none."""
    best: dict[str, Candidate] = {}
    for one in found:
        best.setdefault(one.kind, one)
    best.pop("", None)
    named = [Cause(one.kind, one.why, one.evidence, cost=1 - 1 / one.gain) for one in best.values()]
    if not named:
        named = [without_a_remedy(case)]
    elif len(named) > 1:
        first, second = [rank(one) for one in best.values()][:2]
        margin = 1.0 if first[0] > second[0] else 1 - second[1] / first[1]
        named[0] = replace(named[0], margin=margin)
        if case.is_busy and margin < LEAST_MARGIN:
            between = f"{KINDS[named[0].kind].title} or {KINDS[named[1].kind].title}"
            named.insert(0, replace(undecided(case, between), cost=named[0].cost))
    growing = memory_cause(case)
    if growing is not None:
        named.insert(0 if named[0].kind == "healthy" or growing.cost >= 1 else len(named), growing)
    return tuple(named)


def without_a_remedy(case: Case) -> Cause:
    """The cause if no change would bring anything."""
    if case.phase.throttled >= THROTTLED_THAT_MATTERS and case.run_delay >= RUN_DELAY_THAT_MATTERS:
        return Cause("cores", f"{throttled(case)}: {MORE_QUOTA}", (alone(case),), case.run_delay)
    if standstill(case.observation) >= STANDSTILL_THAT_MATTERS:
        return stopped(case)
    waits = case.starved and case.stall - case.receiving >= STALL_THAT_MATTERS
    # That a free machine would make up for so much is more than the measurements can tell.
    slower = case.costs.supply >= MUCH_FASTER * case.costs.demand
    if case.is_busy and case.stall >= (STALL_THAT_MATTERS if slower else LONG_STALL):
        return replace(undecided(case, "the loader or the step"), cost=case.stall)
    # Data at no cost must make it faster: the step alone may take as long as it does with its waits.
    if waits and case.steady >= GAIN_THAT_COUNTS * case.costs.demand:
        return unexplained(case)
    return healthy(case) if case.observation.phase(DEMAND) else too_short(case)


def undecided(case: Case, between: str) -> Cause:
    """Other processes disturbed the measurement too much to tell causes apart."""
    sentence = (
        f"{between}: {taken(case)}, and nearly as much speaks for one as for the other; run it again on a"
        " free machine, or longer (--steps)"
    )
    evidence = f"the step waits for {case.stall:.0%} of its time; {alone(case)}"
    return Cause("undecided", sentence, (evidence,), cost=0.0)


def alone(case: Case) -> str:
    """The speed of loader and step alone."""
    return (
        f"the loader alone supplies {1 / case.costs.supply:,.0f} samples/s, the step alone processes"
        f" {1 / case.costs.demand:,.0f}"
    )


def throttled(case: Case) -> str:
    """Says how much a cgroup's quota holds the script up."""
    return (
        f"the limit of processor time (cgroup) was used up in {case.phase.throttled:.0%} of its periods, and"
        f" threads waited for a core for {case.run_delay:.0%} of their time"
    )


def stopped(case: Case) -> Cause:
    """The training process stands still for much of the time, and nothing in it explains that."""
    share = standstill(case.observation)
    sentence = (
        f"the training process stands still for {share:.0%} of its time: it neither computes nor waits for"
        " data, a disk or a core; something stops it from outside (cpulimit, a batch system), or a call into"
        " C keeps Python's lock while it waits"
    )
    return Cause("unexplained", sentence, (alone(case),), share)


def too_short(case: Case) -> Cause:
    """The script ended before the step was measured alone, and nothing starves it so far."""
    sentence = (
        f"the script ended after {len(case.phase.waits)} steps that could be measured, before"
        f" the step was measured alone; they waited for {case.stall:.0%} of their time, but prefetched"
        " batches may hide a slower loader: give it more steps or epochs"
    )
    return Cause("undecided", sentence, (alone(case).partition(", ")[0],), cost=0.0)


def memory_cause(case: Case) -> Cause | None:
    """Workers whose memory grows; the cost is 1 if they need more than half of what is free."""
    finding = next((one for one in memory_findings(case.observation) if one.name == GROWING), None)
    if finding is None:
        return None
    cost = float(finding.details["share"] > 0.5)
    return Cause("memory", f"the workers grow by {finding.value}", (finding.remedy,), cost)


def healthy(case: Case) -> Cause:
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
    evidence = (alone(case).partition(", ")[0], *where_it_stays(case.observation, PARTS))
    return Cause("healthy", sentence, evidence, max(0.0, 1 - costs.demand / case.steady))


def unexplained(case: Case) -> Cause:
    """The step waits, and no change that was measured would help."""
    costs = case.costs
    waited = f"threads waited for a core for {case.run_delay:.0%} of their time"
    evidence = [f"{alone(case)}, both together {1 / case.steady:,.0f}", waited]
    kind = "unexplained"
    why = "and no change that was measured would make it faster: measure longer (--steps)"
    if case.run_delay >= RUN_DELAY_THAT_MATTERS or costs.busy_cores >= NEARLY_ALL * costs.cores:
        kind = "cores"
        why = (
            f"while it and the loader would need {costs.busy_cores:.1f} of {costs.cores} cores, and {waited}"
        )
        evidence.append(TAKEN_CORES)
    longer = f"takes {case.steady / costs.demand:.1f} times as long as alone"
    sentence = f"the step waits for {case.stall:.0%} of its time, and {longer}, {why}"
    return Cause(kind, sentence, tuple(evidence), case.stall)


def advice(case: Case, found: Sequence[Candidate]) -> tuple[Advice, ...]:
    """The changes that would bring something, each with an upper bound of its gain, by cause."""
    first = next((one.kind for one in found if one.kind), "")
    helpful = [replace(one, kind=one.kind or first) for one in found if first]
    kinds = list(dict.fromkeys(one.kind for one in helpful))
    about_speed = tuple(
        Advice(
            cause=one.kind,
            summary=one.change,
            diff=one.lines,
            predicted=stated(one.bound or case.limit, case),
            settings=one.settings,
            expected=one.gain if math.isfinite(one.bound) else 0.0,
            where=one.where,
            loader=one.loader,
        )
        for one in sorted(helpful, key=lambda one: kinds.index(one.kind))
    )
    return about_speed + saving_memory(case)


def stated(bound: float, case: Case) -> float:
    """The bound, or 0 if there is none, or if it says nothing.

    A bound leaves out whatever the step alone may not need, such as waits for a core. If that is most of what
    was measured of a short step, little is left, and the bound is in the thousands.
    """
    telling = bound <= TELLING * case.actual / case.costs.demand
    return bound if math.isfinite(bound) and telling else 0.0


def saving_memory(case: Case) -> tuple[Advice, ...]:
    """Changes by which the loader takes less memory, if it takes too much."""
    findings = memory_findings(case.observation)
    grows = any(finding.name == GROWING for finding in findings)
    growth = (Advice("memory", LESS_GROWTH, LESS_GROWTH_LINES, 1.0),) if grows else ()
    changes = (finding.details.get("change") for finding in findings)
    fewer = (other_arguments(case, 1.0, "", **change) for change in changes if change)
    return (*growth, *(Advice("memory", one.change, one.lines, 1.0) for one in fewer))


def rates(case: Case) -> tuple[Rate, ...]:
    """Supply, demand and actual, then supplies with other settings."""
    named = {phase.name: phase for phase in case.observation.phases if phase.seconds > 0}
    if DEMAND not in named:
        named[DEMAND] = replace(case.phase, name=DEMAND, waits=[0.0] * len(case.phase.waits))
    first = [named[name] for name in (SUPPLY, DEMAND, ACTUAL) if name in named]
    others = [phase for name, phase in named.items() if name not in (SUPPLY, DEMAND, ACTUAL, PARTS)]
    return tuple(rate(phase, case.loader.workers) for phase in [*first, *others])


def rate(phase: Phase, workers: int) -> Rate:
    """The rate of a phase, with its range by the standard error of its bursts."""
    mean = 1 / phase.samples_per_second
    error = standard_error(phase, workers)
    half = min(BOUNDS * error, 0.9 * mean) if math.isfinite(error) else 0.0
    range_ = 1 / (mean + half), 1 / (mean - half)
    return Rate(phase.name, 1 / mean, *range_, len(phase.waits), phase.seconds)


def time_shares(case: Case) -> tuple[TimeShare, ...]:
    """Returns the shares of the actual phase's time: waiting, parts of the step, loops over other loaders."""
    whole = max(1e-9, case.phase.ended - case.phase.began)
    waits = sum(case.phase.waits) + sum(case.phase.startups)
    shares = [TimeShare("waiting for data", min(1.0, waits / whole))]
    loops = case.observation.loops
    if phase_between := sum(case.phase.between):
        shares.append(TimeShare("between epochs", phase_between / whole))
    for loop in loops:
        shares.append(TimeShare(f"loop at {loop.where}: waiting for data", loop.waits / whole))
        shares.append(TimeShare(f"loop at {loop.where}: computing", loop.computes / whole))
    # Stack samples don't tell a step of training from one of another loop.
    parts = step_parts(case.observation, ACTUAL)
    sampled = max(1e-9, sum(parts.values()))
    own = max(0.0, 1 - sum(loop.computes for loop in loops) / whole / sampled) * (1 - phase_between / whole)
    for key, share in sorted(parts.items(), key=lambda part: -part[1]):
        if own * share >= LEAST_SHARE:
            shares.append(TimeShare(part_name(key), own * share))
    return tuple(shares)


def watching(case: Case) -> float:
    """Share of the cores' time that watching took in the actual phase, in all processes."""
    observation = case.observation
    whole = max(1e-9, case.phase.ended - case.phase.began)
    inside = sum(look["own_cpu_seconds"] for look in observation.looks if look["phase"] == ACTUAL)
    return float(inside / whole + observation.watching) / observation.cores
