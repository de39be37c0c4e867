"""What could be changed, each with what the model says would come of it: one function a kind of change."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.doctor.model import (
    Costs,
    StageTime,
    costs_of,
    per_sample,
    sample_durations,
    stage_times,
    standard_error,
)
from headrace.measure.observed import ACTUAL, DEMAND, SUPPLY, Observation, Phase

# Of several numbers of workers, the least is advised that comes so near to the best.
NEAR_ENOUGH = 0.97
# A stage that takes less of a worker's time isn't named as a cause: something else is as dear.
STAGE_THAT_MATTERS = 0.35
# Loading that takes less, of the step's time, can't be told to be hidden from its noise.
LOADING_THAT_MATTERS = 0.1
# Of the time of all samples, what those hold that take over ten times as long as the median one.
STRAGGLERS_MATTER = 0.2

# Loading beside the step against loading alone: what shared caches and a few interruptions don't explain.
MUCH_SLOWER = 1.7

KIND_OF_STAGE = {
    "read": "read",
    "parse": "decode",
    "decode": "decode",
    "pillow": "decode",
    "resize": "transform",
    "store": "transform",
    "python": "dataset",
    "transform": "transform",
    "dataset": "dataset",
    "code": "dataset",
    "collate": "collate",
    "send": "transfer",
    "receive": "transfer",
    "pin": "pin",
}


@dataclass(frozen=True)
class Case:
    """An observation, and what was computed of it once.

    Attributes:
        actual: seconds of a sample as the script is, starts of epochs included.
        steady: the same without these.
        stall: 0 to 1; of the steps' time, what they waited.
        slowdown: times as long as alone that loading takes beside the step.
        unexplained: seconds of a sample that the model doesn't account for.
        stages: of loading.
        stragglers: as `headrace.doctor.model.sample_durations` gives them.
        run_delay: of the processes' time, what one of their threads waited for a core, at the most.
    """

    observation: Observation
    costs: Costs
    actual: float
    steady: float
    stall: float
    slowdown: float
    unexplained: float
    stages: tuple[StageTime, ...]
    stragglers: dict[str, Any]
    run_delay: float

    @property
    def arguments(self) -> dict[str, Any]:
        """The loader's."""
        return self.observation.loader.arguments if self.observation.loader else {}

    @property
    def workers(self) -> int:
        """That make samples; 1 where the training thread does it itself."""
        return max(1, int(self.arguments.get("num_workers", 0)))

    def gain(self, after: Costs, saved: float = 0.0) -> float:
        """Times as fast as now, with other costs, and `saved` seconds of a sample less beside them."""
        beside = self.unexplained + self.actual - self.steady
        now = max(self.actual, self.costs.together(self.slowdown) + beside)
        return now / max(1e-9, after.together(self.slowdown) + beside - saved)


@dataclass(frozen=True)
class Candidate:
    """A change, and what it would bring.

    Attributes:
        kind: of the cause that it answers; of `headrace.doctor.records.KINDS`.
        gain: times as fast as now.
        change: one line: "num_workers=4 → 12".
        why: the cause, as a sentence with figures.
        evidence: what was measured, a line each.
        lines: of the diff, where it isn't one of the loader's arguments.
        settings, ideal: as of `headrace.doctor.records.Advice`.
    """

    kind: str
    gain: float
    change: str
    why: str
    evidence: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    ideal: bool = False


def other_arguments(case: Case, kind: str, gain: float, why: str, *evidence: str, **new: Any) -> Candidate:
    """A change of the loader's arguments."""
    change = ", ".join(f"{name}={case.arguments.get(name)} → {value}" for name, value in new.items())
    return Candidate(kind, gain, change, why, evidence, settings={"loader": new})


def case_of(observation: Observation) -> Case | None:
    """None: too little was measured."""
    costs, actual = costs_of(observation), observation.phase(ACTUAL)
    if costs is None or actual is None:
        return None
    steady, _ = per_sample(actual)
    whole = steady + start_of_epoch(observation, actual)
    slowdown = costs.slowdown(steady)
    looks = [look for look in observation.looks if look["phase"] == ACTUAL and look["rounds"]]
    return Case(
        observation=observation,
        costs=costs,
        actual=whole,
        steady=steady,
        stall=actual.stall,
        slowdown=slowdown,
        unexplained=max(0.0, steady - costs.together(slowdown)),
        stages=tuple(stage_times(observation)),
        stragglers=sample_durations(observation, ACTUAL),
        run_delay=max((look["run_delay_seconds"] / look["seconds"] for look in looks), default=0.0),
    )


def start_of_epoch(observation: Observation, phase: Phase) -> float:
    """Seconds of a sample that go to starting epochs; 0 where none began, or their length isn't known."""
    batches = observation.loader.batches if observation.loader else None
    if not phase.startups or not batches:
        return 0.0
    return statistics.median(phase.startups) / (batches * statistics.fmean(phase.samples))


def seconds_of(observation: Observation) -> float | None:
    """Of a sample as the script is, starts of epochs included; None: too little was measured."""
    actual = observation.phase(ACTUAL)
    return None if actual is None else per_sample(actual)[0] + start_of_epoch(observation, actual)


def candidates(case: Case) -> list[Candidate]:
    """All changes that would bring anything, or nothing; unordered."""
    return [candidate for make in MAKERS for candidate in make(case)]


def more_workers(case: Case) -> Iterator[Candidate]:
    """Another number of workers, as measured."""
    if case.stall < 0.02 or takes_turns(case):
        return
    tried = tried_workers(case)
    rates = ", ".join(f"{n}: {phase.samples_per_second:,.0f}" for n, phase in sorted(tried.items()))
    tried = {count: phase for count, phase in tried.items() if is_faster(case, phase)}
    if not tried:
        return
    after = {count: case.costs.with_supply(phase) for count, phase in tried.items()}
    best = min(costs.seconds for costs in after.values())
    count = min(count for count, costs in after.items() if costs.seconds <= best / NEAR_ENOUGH)
    now = case.arguments.get("num_workers", 0)
    supply, demand = 1 / case.costs.supply, 1 / case.costs.demand
    who = f"{now} workers supply" if now else "without workers the loader supplies"
    turns = "" if now else ", and each waits for the other"
    yield other_arguments(
        case,
        "straggler" if has_stragglers(case) else "workers",
        case.gain(after[count]),
        f"{who} {supply:,.0f} samples/s, the step could take {demand:,.0f}{turns}",
        f"samples/s by number of workers: {now}: {supply:,.0f} (now), {rates}",
        num_workers=count,
    )


def processes_instead(case: Case) -> Iterator[Candidate]:
    """Worker processes, where a thread of the training process makes the batches."""
    if not takes_turns(case):
        return
    tried = {count: case.costs.with_supply(phase) for count, phase in tried_workers(case).items()}
    # Where the loader alone was ample, no others were measured: processes are taken to be as fast as it is.
    tried = tried or {min(2, case.costs.cores): replace(case.costs, overlaps=True)}
    count, after = min(tried.items(), key=lambda one: one[1].seconds)
    supply, demand = 1 / case.costs.supply, 1 / case.costs.demand
    yield Candidate(
        kind="gil",
        # What both cost beyond the dearer of them is what they take from each other.
        gain=case.actual / after.seconds,
        change=f"num_workers=0 in a thread → num_workers={count}",
        why=f"loader and step share one process: alone they reach {supply:,.0f} and {demand:,.0f} samples/s,"
        f" together {1 / case.steady:,.0f}",
        evidence=(f"the step waits for {case.stall:.0%} of its time only: another thread makes the batches",),
        settings={"loader": {"num_workers": count}},
    )


def tried_workers(case: Case) -> dict[int, Phase]:
    """Supplies with other numbers of workers."""
    return {
        phase.settings["loader"]["num_workers"]: phase
        for phase in case.observation.others(SUPPLY)
        if phase.settings.get("loader", {}).keys() == {"num_workers"}
    }


def is_faster(case: Case, phase: Phase) -> bool:
    """Whether a loader with other settings is faster beyond doubt; where it overlaps with the step and the
    script's doesn't, it need not be."""
    now = case.observation.phase(SUPPLY)
    if now is None or not case.costs.overlaps:
        return True
    workers = case.workers
    doubt = math.hypot(standard_error(now, workers), standard_error(phase, workers))
    return per_sample(now)[0] - per_sample(phase)[0] > doubt


def smoother(case: Case) -> Iterator[Candidate]:
    """A longer queue, or batches in the order in which they are done, where single samples take long."""
    if not has_stragglers(case):
        return
    slow = case.stragglers
    share = slow["slow_seconds"] / max(1e-9, slow["seconds"])
    longest = slow["slowest"][0] if slow["slowest"] else [0.0, None]
    why = (
        f"{slow['slow_count']} of {slow['count']:,} samples took over ten times the median of"
        f" {1e3 * slow['median']:.1f} ms, and {share:.0%} of all loading time"
    )
    evidence = [f"the longest: sample {longest[1]}, {longest[0]:.2f} s"]
    evidence += [f"sample {index}: {seconds:.2f} s" for seconds, index in slow["slowest"][1:4]]
    for phase in case.observation.others(SUPPLY):
        arguments = phase.settings.get("loader", {})
        if len(arguments) == 1 and "num_workers" not in arguments:
            gain = case.gain(case.costs.with_supply(phase))
            yield other_arguments(case, "straggler", gain, why, *evidence, **arguments)


def workers_that_stay(case: Case) -> Iterator[Candidate]:
    """Workers that are kept from epoch to epoch."""
    actual = case.observation.phase(ACTUAL)
    loader = case.observation.loader
    if loader is None or loader.kind == "headrace":  # whose workers stay in any case
        return
    if actual is None or not case.arguments.get("num_workers") or case.arguments.get("persistent_workers"):
        return
    spent = start_of_epoch(case.observation, actual)
    if not spent:
        return
    # What remains of a start is the first batch, which workers make as fast as any.
    batch = sum(actual.samples) / len(actual.samples)
    first = sum(stage.seconds for stage in case.stages if stage.place == "worker") * batch
    seconds = statistics.median(actual.startups)
    saved = spent * max(0.0, 1 - first / seconds)
    yield other_arguments(
        case,
        "startup",
        case.gain(case.costs, saved),
        f"each epoch starts workers for {seconds:.2f} s, {spent / case.actual:.0%} of its time",
        f"starts of epochs: {', '.join(f'{start:.2f} s' for start in actual.startups[:6])}",
        f"batches of an epoch: {loader.batches}",
        persistent_workers=True,
    )


def fewer_threads(case: Case) -> Iterator[Candidate]:
    """As many threads for operators as there are cores."""
    for phase in case.observation.others(DEMAND):
        threads = phase.settings.get("threads")
        if threads is None:
            continue
        after = case.costs.with_demand(phase)
        now = case.observation.threads
        yield Candidate(
            kind="oversubscribed",
            gain=case.gain(after),
            change=f"torch.set_num_threads({now}) → {threads}",
            why=f"the step's operators use {now} threads on {case.costs.cores} cores",
            evidence=(
                f"the step alone: {1 / case.costs.demand:,.0f} samples/s with {now} threads,"
                f" {1 / after.demand:,.0f} with {threads}",
            ),
            lines=(f"-torch.set_num_threads({now})", f"+torch.set_num_threads({threads})"),
            settings={"threads": threads},
        )


def without_a_stage(case: Case) -> Iterator[Candidate]:
    """The dearest stages of loading, if they cost nothing: what there is to win there at most."""
    place = dearest_place(case)
    stages = [stage for stage in case.stages if stage.place == place]
    whole = sum(stage.seconds for stage in stages)
    computing = sum(stage.seconds - stage.waiting for stage in stages)
    for stage in stages:
        share = stage.seconds / whole if whole else 0.0
        if share < STAGE_THAT_MATTERS:
            continue
        of_cpu = (stage.seconds - stage.waiting) / computing if computing else 0.0
        costs = case.costs
        after = replace(costs, supply=costs.supply * (1 - share), supply_cpu=costs.supply_cpu * (1 - of_cpu))
        name = stage.key.partition(":")[2] or stage.key
        kind = KIND_OF_STAGE.get(stage.key.partition(":")[0], "dataset")
        yield Candidate(
            kind=kind,
            gain=case.gain(after),
            change=f"{name}: {1e3 * stage.seconds:.1f} ms of a sample's {1e3 * whole:.1f} ms",
            why=f"{name} takes {share:.0%} of a sample's time in the loader",
            evidence=(f"{1e3 * stage.seconds:.1f} ms by Headrace's own count",)
            if place == "native thread"
            else (
                f"{stage.looks} stack samples; {stage.waiting / max(stage.seconds, 1e-9):.0%} of it blocked",
            ),
            lines=tuple(f" {line}" for line in REMEDIES[kind].format(name=name).splitlines()),
            ideal=True,
        )


def less_contention(case: Case) -> Iterator[Candidate]:
    """Cores that are left to the loader, where it is much slower beside the step than alone."""
    if case.slowdown < MUCH_SLOWER or not case.costs.overlaps:
        return
    threads, cores = case.observation.threads, case.costs.cores
    fewer = max(1, cores // 2)
    yield Candidate(
        kind="cores",
        gain=case.costs.together(case.slowdown) / case.costs.seconds,
        change=f"torch.set_num_threads({threads}) → {fewer}"
        if threads > fewer
        else "fewer processes beside it",
        why=f"beside the step, loading takes {case.slowdown:.1f} times as long as alone: they compete for"
        f" {cores} cores",
        evidence=(f"threads waited for a core for {case.run_delay:.0%} of their time",),
        lines=(f"-torch.set_num_threads({threads})", f"+torch.set_num_threads({fewer})")
        if threads > fewer
        else (" other processes may have taken the cores: headrace doctor shows how busy they are",),
        settings={"threads": fewer} if threads > fewer else {},
        ideal=True,
    )


def headrace_instead(case: Case) -> Iterator[Candidate]:
    """Headrace's loader in the place of torch's."""
    for phase in case.observation.others(SUPPLY):
        if not phase.settings.get("headrace"):
            continue
        yield Candidate(
            kind="",
            gain=case.gain(case.costs.with_supply(phase)),
            change="torch.utils.data.DataLoader → headrace.DataLoader",
            why="",
            evidence=(f"Headrace's loader alone: {phase.samples_per_second:,.0f} samples/s",),
            settings={"headrace": True},
        )


def freer_device(case: Case) -> Iterator[Candidate]:
    """A step that doesn't wait for the device, and copies that it doesn't wait for."""
    device, demand = case.observation.device, case.observation.phase(DEMAND)
    if device is None or demand is None:
        return
    batch = statistics.fmean(demand.samples)
    step = case.costs.demand * batch
    calls = ", ".join(f"{name} {count:.1f}" for name, count in device.synchronisations.items())
    evidence = (
        f"the device is busy for {1e3 * device.busy_seconds:.1f} ms of a step",
        f"waits per step: {calls or 'none'}; {device.pageable_bytes / 1e6:.1f} MB copied from pageable"
        f" memory, {device.pinned_bytes / 1e6:.1f} MB from pinned",
        *where_it_stays(case.observation),
    )

    def candidate(kind: str, seconds: float, **fields: Any) -> Iterator[Candidate]:
        # The device has its work to do all the same.
        left = max(step - seconds, device.busy_seconds)
        if seconds > 0.02 * step:
            gain = case.gain(replace(case.costs, demand=left / batch))
            why = f"the training thread waits for {1e3 * seconds:.1f} ms of a step's {1e3 * step:.1f} ms"
            yield Candidate(kind, gain, why=why, evidence=evidence, **fields)

    yield from candidate(
        "synchronise",
        device.synchronise_seconds,
        change="read losses every so many steps, not each",
        lines=(
            "-    total += loss.item()",
            "+    total += loss.detach()   # .item() once, at the end of the epoch",
        ),
    )
    yield from candidate(
        "copy",
        device.blocking_copy_seconds,
        change="pin_memory=True and .to(device, non_blocking=True)",
        lines=(
            "-loader = DataLoader(…)",
            "+loader = DataLoader(…, pin_memory=True)",
            "-images = images.to(device)",
            "+images = images.to(device, non_blocking=True)",
        ),
        settings={"loader": {"pin_memory": True}},
    )


def dearest_place(case: Case) -> str:
    """Where samples are made: there is one such place."""
    places = {stage.place for stage in case.stages}
    return next((place for place in ("native thread", "worker", "main") if place in places), "main")


def where_it_stays(observation: Observation) -> list[str]:
    """Lines of the script at which the training thread was seen most often while it had its batches."""
    lines: dict[str, int] = {}
    for look in observation.looks:
        if look["role"] == "main" and look["phase"] == DEMAND:
            lines |= look["lines"]
    whole = sum(lines.values())
    most = sorted(lines.items(), key=lambda item: -item[1])[:3]
    return [f"{count / whole:.0%} of the step at {line}" for line, count in most]


def takes_turns(case: Case) -> bool:
    """A thread of the training process makes the batches beside the step, and both suffer.

    Without workers the step should wait for all that loading costs: where it waits for less than half of
    that, another thread loads.
    """
    costs = case.costs
    matters = costs.supply > LOADING_THAT_MATTERS * costs.demand
    hidden = not costs.overlaps and case.stall * case.steady < 0.5 * costs.supply
    return matters and hidden and case.steady > 1.1 * max(costs.demand, costs.supply)


def has_stragglers(case: Case) -> bool:
    """Few samples hold much of the loading time."""
    slow = case.stragglers
    return bool(slow["slow_count"]) and slow["slow_seconds"] >= STRAGGLERS_MATTER * slow["seconds"]


MAKERS: tuple[Callable[[Case], Iterator[Candidate]], ...] = (
    more_workers,
    processes_instead,
    smoother,
    workers_that_stay,
    fewer_threads,
    without_a_stage,
    less_contention,
    headrace_instead,
    freer_device,
)

# What a user can do about a stage that costs too much; {name} is the stage's.
REMEDIES = {
    "read": "copy the data to a local disk, or read large files in order: headrace pack SRC DEST",
    "decode": "store images as large as they are used, once: decoding costs by the pixel\n"
    "or decode only what a crop needs: headrace.DataLoader, and headrace index FOLDER beside it",
    "transform": "{name}: do it once beforehand, on smaller images (after the resize),\n"
    "or on whole batches on the device (headrace: batch_transform=)",
    "dataset": "{name}: do it once beforehand and keep what came of it, or vectorise it",
    "collate": "collate_fn: torch.stack of tensors of one shape; pad in the dataset, or on the device",
    "transfer": "send less: uint8 instead of float32 (normalise on the device), fewer and larger tensors",
    "pin": "pin less: uint8 instead of float32, fewer and larger tensors",
}
