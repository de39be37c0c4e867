"""An observation with what is computed from it, and a change with what it would bring."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from headrace_doctor.doctor.model import (
    IRREGULAR,
    Costs,
    bursts,
    costs_of,
    parts_looked_at,
    per_sample,
    stage_costs,
    standard_error,
    step_parts,
)
from headrace_doctor.doctor.records import StageCost
from headrace_doctor.doctor.remedies import MOSTLY, place_and_text
from headrace_doctor.measure.observed import (
    ACTUAL,
    BETWEEN,
    DEMAND,
    KEPT_BATCHES,
    PARTS,
    STALL_THAT_MATTERS,
    SUPPLY,
    LoaderFacts,
    Observation,
    Phase,
    is_uneven,
    sample_durations,
)

TAKEN_CORES = "other processes may have taken the cores: headrace doctor shows how busy they are"
# Of the step alone, what is taken for what not each batch needs at most.
MOST_IRREGULAR = 0.9
# Share of the step's time below which loading can't be distinguished from noise.
LOADING_THAT_MATTERS = 0.1
# Share of the cores used by other processes from which on a verdict is less sure.
OTHERS_THAT_MATTER = 0.25
# Samples that other processes hold up on a busy machine take less than this, seconds.
HELD_UP = 0.1
FEW_STEPS, LONGER = 10, 1.25  # steps that show a growth, and the least ratio that does
EVEN = 0.9  # times the mean: steps whose median is above it are much alike
LATE_THAT_MATTERS = 0.2  # share of the looks at the stacks that come late
MUCH_FASTER = 1.5  # a gain that no noise explains
BOUNDS = 1.96  # standard errors on both sides that hold 95 %


@dataclass(frozen=True)
class Case:
    """An observation, and what was computed of it once.

    Attributes:
        phase: the steps of the script as it is, `ACTUAL`.
        costs: of a sample, without irregular costs of the step.
        actual: seconds per sample, with the time between epochs, their starts, and loops over other loaders.
        steady: the same without these, and without irregular costs of the step.
        choosing: seconds per sample in which the training thread chooses samples.
        irregular: seconds per sample by part of the step that not each batch needs.
        stall: share of the steps' time spent waiting for data, 0 to 1.
        slowdown: ratio of the time of loading during the step to loading alone.
        unexplained: seconds per sample that the model doesn't account for.
        stragglers: see `observed.sample_durations`.
        run_delay: share of a process's time in which one of its threads waited for a core, at most.
        others: cores that other processes used meanwhile.
        free: the costs without the time that threads waited for a core.
        least: seconds that a sample takes at least, whatever is changed but the step proper; 0 if not known.
    """

    observation: Observation
    loader: LoaderFacts
    phase: Phase
    costs: Costs
    actual: float
    steady: float
    choosing: float
    irregular: dict[str, float]
    stall: float
    slowdown: float
    unexplained: float
    stages: tuple[StageCost, ...]
    stragglers: dict[str, Any]
    run_delay: float
    others: float
    free: Costs
    least: float

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the loader."""
        return self.loader.arguments

    @property
    def is_busy(self) -> bool:
        """True if other processes take a part of the cores that matters."""
        return self.others >= OTHERS_THAT_MATTER * self.costs.cores

    @property
    def starved(self) -> bool:
        """True if the step waits for data, and would do so on a free machine."""
        if self.stall < STALL_THAT_MATTERS or not self.is_busy:
            return self.stall >= STALL_THAT_MATTERS
        return self.free.seconds - self.free.demand >= STALL_THAT_MATTERS * self.free.seconds

    @property
    def receiving(self) -> float:
        """Share of the steps' time in which the training thread receives batches that workers have sent."""
        phases = (stage_costs(self.observation, ACTUAL), self.stages)
        seconds = max(
            sum(one.seconds_per_sample for one in stages if (one.kind, one.place) == ("receive", "main"))
            for stages in phases
        )
        return seconds / per_sample(self.phase)[0] if self.loader.workers else 0.0

    @property
    def samples(self) -> int:
        """Number of samples in the steps of the actual phase, at least 1."""
        return max(1, sum(self.phase.samples))

    def gain(self, after: Costs, saved: float = 0.0) -> float:
        """Speed-up that is likely with other costs, and with `saved` seconds per sample of all else."""
        else_ = self.unexplained + self.actual - self.steady
        now = max(self.actual, self.costs.together(self.slowdown) + else_)
        return now / max(1e-9, after.together(self.slowdown) + else_ - saved)

    def best(self, after: Costs) -> float:
        """Speed-up without contention, and without what the model does not explain."""
        return self.actual / max(1e-9, after.seconds + self.actual - self.steady)

    @property
    def limit(self) -> float:
        """Speed-up if all but the step proper cost nothing, or infinity if that is not known."""
        return self.actual / self.least if self.least else math.inf


@dataclass(frozen=True)
class Candidate:
    """A change, and what it would bring.

    Attributes:
        gain: times as fast as now, by the model: what candidates are compared by.
        change: what to change, in one line: "num_workers=4 → 12".
        why: the cause, as a sentence with its measurements.
        evidence: what was measured, a line each.
        lines: of the diff.
        settings, where, loader: how `--try` applies it; see `records.Advice`.
        ideal: whether more has to be changed than the settings.
        bound: times as fast as now at best if the step itself changes, infinite if not known; 0 for
            `Case.limit`.
        kind: of the verdict that it answers, or "" if it may answer any; set by `verdicts.candidates`.
    """

    gain: float
    change: str
    why: str
    evidence: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    ideal: bool = False
    where: str = ""
    loader: str = ""
    bound: float = 0.0
    kind: str = ""


def other_arguments(case: Case, gain: float, why: str, *evidence: str, **new: Any) -> Candidate:
    """A change of the loader's arguments."""
    call, prefix = "loader = DataLoader", ""
    if case.loader.trainer and "in_order" not in new:  # which TrainingArguments doesn't have
        call, prefix = "arguments = TrainingArguments", "dataloader_"
    now = {name: case.arguments[name] for name in new if name in case.arguments}
    arrows = {name: f"{value!r} → " for name, value in now.items()}
    change = ", ".join(f"{prefix}{name}={arrows.get(name, '')}{value}" for name, value in new.items())
    before, after = ("".join(f", {prefix}{name}={one[name]!r}" for name in one) for one in (now, new))
    lines = f"-{call}(…{before})", f"+{call}(…{after})"
    return Candidate(gain, change, why, evidence, lines, {"loader": new})


def case_of(observation: Observation) -> Case | None:
    """The case of an observation, or None if too little was measured."""
    costs = costs_of(observation)
    actual = observation.phase(ACTUAL)
    loader = observation.loader
    whole = seconds_of(observation)
    if costs is None or actual is None or loader is None or whole is None:
        return None
    measured, _ = per_sample(actual)
    irregular = irregular_seconds(observation, actual)
    between = between_epochs(loader, actual)
    apart = parts_looked_at(observation, BETWEEN)
    steady = measured - min(0.95 * measured, sum(irregular.values()))
    for part in IRREGULAR if between else ():
        if part in apart:
            irregular[part] = irregular.get(part, 0.0) + apart[part] * between
    regular = regular_demand(observation, costs.demand)
    costs = replace(costs, demand=regular, demand_cpu=costs.demand_cpu * regular / costs.demand)
    slowdown = costs.slowdown(steady)
    looks = [look for look in observation.looks if look["phase"] == ACTUAL and look["rounds"]]
    free = replace(
        costs,
        demand=costs.demand * on_core(observation, DEMAND, "main"),
        supply=costs.supply * on_core(observation, SUPPLY, "worker" if costs.overlaps else "main"),
    )
    return Case(
        observation=observation,
        loader=loader,
        phase=actual,
        costs=costs,
        actual=whole,
        steady=steady,
        choosing=sampler_seconds(observation, loader, actual),
        irregular=irregular,
        stall=actual.stall,
        slowdown=slowdown,
        unexplained=max(0.0, steady - costs.together(slowdown)),
        stages=tuple(stage_costs(observation)),
        stragglers=sample_durations(observation.looks, ACTUAL),
        run_delay=max((look["held_seconds"] / look["seconds"] for look in looks), default=0.0),
        others=statistics.fmean(phase.others for phase in observation.phases),
        free=free,
        least=least_step(observation, observation.phase(DEMAND)),
    )


def on_core(observation: Observation, phase: str, role: str) -> float:
    """Share of a phase that remains without the time that a process of that role waited for cores."""
    looks = [look for look in observation.looks if look["phase"] == phase and look["role"] == role]
    seconds = sum(look["seconds"] for look in looks)
    held = sum(look["held_seconds"] for look in looks)
    return 1.0 - min(0.9, held / seconds) if seconds else 1.0


def training_look(observation: Observation, phase: str) -> dict[str, Any] | None:
    """Returns what was sampled of the training process in a phase, or None."""
    looks = [look for look in observation.looks if (look["role"], look["phase"]) == ("main", phase)]
    return max(looks, key=lambda look: look["rounds"], default=None)


def blocked(look: dict[str, Any]) -> float:
    """Seconds that the training thread was seen blocked, as by waiting for data or a disk."""
    rows = [look["stages"].get(kind, {}).values() for kind in ("step", "wait", "fetch")]
    return float(sum(row[3] for stages in rows for row in stages))


def gil_waits(observation: Observation, phase: str) -> float:
    """Share of a phase in which the training thread slept without being blocked: it waited for the GIL."""
    look = training_look(observation, phase)
    if look is None or not look["seconds"]:
        return 0.0
    asleep = float(look["asleep_seconds"]) - blocked(look)
    return min(0.95, max(0.0, asleep / float(look["seconds"])))


def standstill(observation: Observation) -> float:
    """Share of the time in which the training process stands still: no thread of it computes, waits for a
    core or was seen blocked, and samples of its stacks come late. 0 with a device, for which threads wait
    alike.
    """
    look = training_look(observation, ACTUAL)
    if look is None or observation.device is not None or not look["cpu_seconds"]:
        return 0.0
    late = look["late_rounds"] / look["rounds"]
    idle = 1 - (look["cpu_seconds"] + look["held_seconds"] + blocked(look)) / look["seconds"]
    return max(0.0, idle) if late >= LATE_THAT_MATTERS else 0.0


def irregular_seconds(observation: Observation, actual: Phase) -> dict[str, float]:
    """Seconds per sample by part of the step that is not needed for each batch."""
    parts = step_parts(observation, ACTUAL)
    between = sum(
        look["seconds"] for look in observation.looks if (look["phase"], look["role"]) == (BETWEEN, "main")
    )
    whole = max(0.0, actual.ended - actual.began - between) / max(1, sum(actual.samples))
    return {part: parts[part] * whole for part in IRREGULAR if part in parts}


def regular_demand(observation: Observation, demand: float) -> float:
    """Seconds of a sample's step alone, of `demand` in all, without what not each batch needs.

    The close look shows it if there is one: a checkpoint that falls into it, and not into the other steps
    alone, is in its time as well as in the sampled share.
    """
    close = observation.phase(PARTS)
    parts = parts_looked_at(observation, PARTS) if close else step_parts(observation, DEMAND)
    share = min(MOST_IRREGULAR, sum(parts.get(part, 0.0) for part in IRREGULAR))
    seconds = per_sample(close)[0] if close else demand
    return min(demand, seconds * (1 - share)) if share else demand


def in_each_step(observation: Observation, part: str) -> float:
    """Seconds of a sample's step that go to a part in the close look, or 0 if its steps differ much: then the
    part may be in few of them."""
    close = observation.phase(PARTS)
    if close is None or statistics.median(close.computes) < EVEN * statistics.fmean(close.computes):
        return 0.0
    return parts_looked_at(observation, PARTS).get(part, 0.0) * per_sample(close)[0]


def growth_of_steps(case: Case) -> tuple[float, float, float] | None:
    """Growth of the time of steps, or None if it stays the same.

    Returns:
        (seconds of a step at first; of one in the close look, which is later; by how many seconds of a sample
        the latter takes longer than on average).
    """
    close, actual = case.observation.phase(PARTS), case.phase.computes
    if close is None or len(actual) < 2 * FEW_STEPS:
        return None
    first, last = statistics.median(actual[:FEW_STEPS]), statistics.median(actual[-FEW_STEPS:])
    later = statistics.median(close.computes)
    if last < LONGER * first or later < last:
        return None
    return first, later, per_sample(close)[0] - sum(actual) / case.samples


def least_step(observation: Observation, phase: Phase | None) -> float:
    """Seconds that a sample's step takes at least, as far as a phase of the step alone shows, or 0.

    It is what the fastest round of the repeated batches took, without what not each batch needs and without
    the time that the thread waited for a core, less twice the standard error of the mean.
    """
    if phase is None:
        return 0.0
    rounds = bursts(phase, KEPT_BATCHES)
    most = max(samples for _, samples in rounds)
    fastest = min(seconds / samples for seconds, samples in rounds if samples == most)
    if phase.name == DEMAND:
        fastest = min(fastest, regular_demand(observation, per_sample(phase)[0]))
    fastest *= on_core(observation, phase.name, "main")
    return fastest - min(2 * standard_error(phase, 1), 0.5 * fastest)


def start_of_epoch(loader: LoaderFacts, phase: Phase) -> float:
    """Seconds of a sample that go to starting epochs, or 0 if none began, or their length isn't known."""
    starts = starts_of(loader, phase)
    if not starts or not loader.batches:
        return 0.0
    return statistics.median(starts) / (loader.batches * statistics.fmean(phase.samples))


def between_epochs(loader: LoaderFacts, phase: Phase) -> float:
    """Seconds of a sample that pass between epochs, or 0 if none was seen, or their length isn't known."""
    if not phase.between or not loader.batches:
        return 0.0
    return statistics.median(phase.between) / (loader.batches * statistics.fmean(phase.samples))


def sampler_seconds(observation: Observation, loader: LoaderFacts, actual: Phase) -> float:
    """Seconds of a sample in which the training thread chooses samples.

    With the loader alone it is looked at often, but epochs are started in the script as it is. Whatever it
    chooses is waited for.
    """
    chosen = max(
        sum(stage.seconds_per_sample for stage in stage_costs(observation, name) if stage.kind == "sampler")
        for name in (SUPPLY, ACTUAL)
    )
    return min(chosen, sum(actual.waits) / max(1, sum(actual.samples)) + start_of_epoch(loader, actual))


def starts_of(loader: LoaderFacts, phase: Phase) -> list[float]:
    """Seconds of each start of an epoch; if the phase saw none though each starts workers, of the first."""
    if phase.startups or loader.arguments.get("persistent_workers", True):
        return phase.startups
    return [loader.first_batch_seconds]


def seconds_of(observation: Observation) -> float | None:
    """Seconds per sample as the script is, or None if too little was measured."""
    actual = observation.phase(ACTUAL)
    if actual is None or observation.loader is None:
        return None
    elsewhere = sum(loop.seconds for loop in observation.loops) / max(1, sum(actual.samples))
    epochs = start_of_epoch(observation.loader, actual) + between_epochs(observation.loader, actual)
    return per_sample(actual)[0] + epochs + elsewhere


def is_faster(case: Case, phase: Phase) -> bool:
    """Returns whether a loader with other settings is surely faster, or alone overlaps with the step."""
    now = case.observation.phase(SUPPLY)
    if now is None or not case.costs.overlaps:
        return True
    workers = case.loader.workers
    doubt = math.hypot(standard_error(now, workers), standard_error(phase, workers))
    saved = per_sample(now)[0] - per_sample(phase)[0]
    # A few long bursts make the mean doubtful, but not that the others take longer, too.
    before, after = (
        statistics.median(seconds / samples for seconds, samples in bursts(one, workers))
        for one in (now, phase)
    )
    return saved > BOUNDS * doubt or (saved > 0 and before > MUCH_FASTER * after)


def tried_workers(case: Case) -> dict[int, Phase]:
    """Supplies with other numbers of workers."""
    return {
        phase.settings["loader"]["num_workers"]: phase
        for phase in case.observation.others(SUPPLY)
        if phase.settings.get("loader", {}).keys() == {"num_workers"}
    }


def where_it_stays(observation: Observation, phase: str = DEMAND) -> list[str]:
    """Lines of the script that the training thread executed most often, by stack samples."""
    lines: Counter[str] = Counter()
    for look in observation.looks:
        if look["role"] == "main" and look["phase"] == phase:
            for key, rows in look["lines"].items():
                lines.update({} if key.startswith("other:") else rows)
    whole = lines.total()
    most = lines.most_common(3)
    return [f"{count / whole:.0%} of the training thread's time at {line}" for line, count in most]


def mostly_at(observation: Observation, role: str, key: str, *phases: str) -> str:
    """The place at which a stage, or a part of the step, is mostly seen.

    Returns:
        ", mostly at train.py:41: text" if one line of the user's has most looks, ", mostly in function" if
        one function has them, otherwise "".
    """
    lines: Counter[str] = Counter()
    looks = 0.0
    for look in observation.looks:
        if look["role"] == role and look["phase"] in phases:
            lines.update(look["lines"].get(key, {}))
            looks += sum(stages[key][0] for stages in look["stages"].values() if key in stages)
    functions: Counter[str] = Counter()
    for line, count in lines.items():
        functions[line.partition(": ")[0].partition(" ")[2]] += count
    line, count = next(iter(lines.most_common(1)), ("", 0))
    if count > MOSTLY * looks:
        return ", mostly at {}: {}".format(*place_and_text(line))
    function, count = next(iter(functions.most_common(1)), ("", 0))
    return f", mostly in {function}" if count > MOSTLY * looks else ""


def takes_turns(case: Case) -> bool:
    """Returns whether a thread of the training process makes the batches during the step, and both suffer:
    without workers the step should wait for all that loading costs, and it waits for less than half.
    """
    costs = case.costs
    matters = costs.supply > LOADING_THAT_MATTERS * costs.demand
    hidden = not costs.overlaps and case.stall * case.steady < 0.5 * costs.supply
    return matters and hidden and case.steady > 1.1 * max(costs.demand, costs.supply)


def pace(case: Case) -> dict[str, float]:
    """Seconds per sample of each place of loading, all its workers or threads together.

    Who sends or receives also waits for the other, as for a worker that holds the GIL to make a batch.
    """
    taken: dict[str, float] = {}
    for stage in case.stages:
        own = 1 - stage.waiting if stage.kind in ("send", "receive") else 1
        taken[stage.place] = taken.get(stage.place, 0.0) + own / stage.samples_per_second
    return taken


def busiest_place(case: Case) -> str:
    """The place of loading that delivers the fewest samples; of Headrace's, of those that make them."""
    taken = pace(case)
    ours = [place for place in ("read thread", "native thread") if place in taken]
    return max(ours or taken, key=lambda place: taken[place], default="main")


def has_stragglers(case: Case) -> bool:
    """Returns whether few samples hold much of the loading time."""
    slow = case.stragglers
    held_up = case.is_busy and (not slow["slowest"] or slow["slowest"][0][0] < HELD_UP)
    return not held_up and is_uneven(slow, case.phase)
