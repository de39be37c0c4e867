"""The kinds of verdict: how each is called, found, answered and tried, an entry of `VERDICTS` each."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from headrace_doctor.doctor.case import (
    Candidate,
    Case,
    busiest_place,
    growth_of_steps,
    has_stragglers,
    in_each_step,
    is_faster,
    mostly_at,
    other_arguments,
    pace,
    start_of_epoch,
    starts_of,
    takes_turns,
    tried_workers,
    where_it_stays,
)
from headrace_doctor.doctor.contention import fewer_threads, less_contention, turns_with_the_gil
from headrace_doctor.doctor.loops import other_loops, starts_of_epochs
from headrace_doctor.doctor.model import part_name, per_sample, stage_costs, standard_error
from headrace_doctor.doctor.records import StageCost
from headrace_doctor.doctor.remedies import MOSTLY, described, remedy_for
from headrace_doctor.errors import duration, size
from headrace_doctor.measure.observed import (
    ACTUAL,
    BETWEEN,
    DEMAND,
    GAIN_THAT_COUNTS,
    PARTS,
    STALL_THAT_MATTERS,
    SUPPLY,
    Phase,
)

# Of several numbers of workers, the smallest that comes so near to the best is recommended.
NEAR_ENOUGH = 0.97
# Share of a worker's time below which a stage is no cause: another is as expensive.
STAGE_THAT_MATTERS = 0.35
# Kinds of stages that more workers answer if they wait for most of the time to load a sample.
WAITS = ("read", "decode", "dataset", "transform")
# Share of the time of slow samples that another queue must save to be a remedy for them.
PART_SAVED = 0.3
# Share of a sample's time from which on workers that start again for each epoch had better stay.
START_THAT_MATTERS = 0.1
MOST_AHEAD = 64  # batches of a worker that a longer queue is advised for


@dataclass(frozen=True)
class Verdict:
    """A kind of verdict.

    Attributes:
        kind: its name in records: "decode".
        title: what it is printed under.
        find: yields the changes that would answer it, each with its evidence and the settings by which
            `--try` applies it. Default: none; `diagnosis` says when it holds.
        remedy: what a user can do about one of its stages, called {name}, or about its part; a line each.
        about_loading: whether it counts only if the step waits for data.
        distorts: whether it makes other measurements wrong if it costs much.
        stages: kinds of stages of loading that it is about.
        part: the part of the step that it is about.
        growing: what to do instead if that part takes longer from step to step.
    """

    kind: str
    title: str
    find: Callable[[Case, Verdict], Iterator[Candidate]] = lambda *_: iter(())
    remedy: str = ""
    about_loading: bool = False
    distorts: bool = False
    stages: tuple[str, ...] = ()
    part: str = ""
    growing: str = ""


def candidates(case: Case) -> list[Candidate]:
    """All changes that would bring anything; unordered."""
    verdicts = [verdict for verdict in VERDICTS if case.starved or not verdict.about_loading]
    found = [
        replace(one, kind=verdict.kind, gain=min(one.gain, one.bound or case.limit))
        for verdict in verdicts
        for one in verdict.find(case, verdict)
    ]
    return [one for one in found if one.gain >= GAIN_THAT_COUNTS]


def more_workers(case: Case, verdict: Verdict) -> Iterator[Candidate]:
    """Another number of workers, as measured, if it answers this verdict."""
    now = case.arguments.get("num_workers", 0)
    # More processes get more of the cores that others use, too: that is no gain on a free machine.
    crowded = verdict.kind == "workers" and case.is_busy and now >= case.costs.cores
    if crowded or case.stall < 0.02 or takes_turns(case) or verdict.kind != answered_by_workers(case):
        return
    tried = tried_workers(case)
    rates = ", ".join(f"{n}: {phase.samples_per_second:,.0f}" for n, phase in sorted(tried.items()))
    tried = {count: phase for count, phase in tried.items() if is_faster(case, phase)}
    if not tried:
        return
    after = {count: case.costs.with_supply(phase) for count, phase in tried.items()}
    best = min(after, key=lambda count: after[count].seconds)
    doubt = min(1.0, standard_error(tried[best], best) / per_sample(tried[best])[0])
    near = after[best].seconds * max(1 / NEAR_ENOUGH, 1 + doubt)
    count = min(count for count, costs in after.items() if costs.seconds <= near)
    supply, demand = 1 / case.costs.supply, 1 / case.costs.demand
    who = f"{now} workers load" if now else "without workers (num_workers=0) the script loads"
    turns = "" if now else ", and each waits for the other"
    why = f"{who} {supply:,.0f} samples/s, the training step could process {demand:,.0f}{turns}"
    evidence = [f"samples/s by number of workers: {now}: {supply:,.0f} (now), {rates}"]
    blocked = waiting_stage(case)
    if blocked is not None and verdict.kind != "straggler":
        evidence.insert(0, why)
        seconds = duration(blocked.seconds_per_sample * blocked.waiting)
        at_once = f"only {now} are loaded at once" if now > 1 else "one is loaded at a time"
        why = f"each sample waits {seconds} for its data, and {at_once}: {described(blocked)}"
    new: dict[str, Any] = {"num_workers": count}
    start, kept = starts_with(case, tried[count])
    if start - kept > START_THAT_MATTERS * after[count].seconds and not case.loader.remade:
        start, new["persistent_workers"] = kept, True
    saved = start_of_epoch(case.loader, case.phase) - start
    gain = case.best(after[count]) if verdict.kind == "straggler" else case.gain(after[count], saved)
    candidate = other_arguments(case, gain, why, *evidence, **new)
    if blocked is not None and verdict.stages:
        later = f" if it still waits then: {remedy_for(blocked, verdict.remedy)[0]}"
        candidate = replace(candidate, lines=(*candidate.lines, later))
    yield candidate


def starts_with(case: Case, phase: Phase) -> tuple[float, float]:
    """Seconds of a sample that go to starting epochs with the workers of a trial: if each epoch starts them,
    and if they stay, so that only the first batch is waited for."""
    if not case.loader.batches or not phase.startups or case.arguments.get("persistent_workers"):
        now = start_of_epoch(case.loader, case.phase)
        return now, now
    place = busiest_place(case)
    batch = sum(stage.seconds_per_sample for stage in case.stages if stage.place == place)
    start = phase.startups[0] / (case.loader.batches * statistics.fmean(case.phase.samples))
    return start, min(start, batch / case.loader.batches + case.choosing)


def answered_by_workers(case: Case) -> str:
    """The kind of verdict that more workers answer: slow samples, a stage that waits, or too few of them."""
    if has_stragglers(case):
        return "straggler"
    stage = waiting_stage(case)
    return "workers" if stage is None else OF_STAGE.get(stage.kind, "dataset")


def waiting_stage(case: Case) -> StageCost | None:
    """The stage that waits for most of the time to load a sample, or None; a lock only one can have."""
    place = busiest_place(case)
    stages = [stage for stage in case.stages if stage.place == place]
    whole = sum(stage.seconds_per_sample for stage in stages)
    waits = [one for one in stages if one.seconds_per_sample * one.waiting > MOSTLY * whole]
    return next((stage for stage in waits if OF_STAGE.get(stage.kind) in WAITS), None)


def smoother(case: Case, verdict: Verdict) -> Iterator[Candidate]:
    """A longer queue, batches in the order in which they are done, or more workers, if samples take long."""
    if not has_stragglers(case) or case.stall < STALL_THAT_MATTERS:
        return
    slow = case.stragglers
    share = slow["slow_seconds"] / max(1e-9, slow["seconds"])
    why = (
        f"{slow['slow_count']} of {slow['count']:,} samples took over ten times the median of"
        f" {duration(slow['median'])}, and {share:.0%} of all loading time"
    )
    evidence = [
        f"sample {'of the stream' if index is None else index}: {duration(seconds)}"
        for seconds, index in slow["slowest"][:4]
    ]
    for arguments, phase in queues(case):
        # On average, the loader may be fast enough: the waits that the model leaves unexplained would go.
        gain = case.best(case.costs.with_supply(phase))
        yield other_arguments(case, gain, why, *evidence, **arguments)
    if case.costs.overlaps and slow["slowest"][0][1] is None:  # a stream
        yield from spread_over_samples(case, why, evidence)
    yield from more_workers(case, verdict)


def spread_over_samples(case: Case, why: str, evidence: list[str]) -> Iterator[Candidate]:
    """The same work, spread over the samples of a stream: no other loader of it can be tried."""
    place = busiest_place(case)
    stages = [stage for stage in case.stages if stage.place == place]
    busiest = max(stages, key=lambda one: one.seconds_per_sample, default=None)
    step = case.costs.demand * statistics.fmean(case.phase.samples)
    # Of batches that are ready, as many as the step needs meanwhile.
    ahead = 1 + math.ceil(case.stragglers["slowest"][0][0] / step / max(1, case.loader.workers))
    longer = case.arguments.get("prefetch_factor", 2) < ahead <= MOST_AHEAD
    yield Candidate(
        gain=case.best(case.costs),
        change="if many samples are prepared at once, prepare them one by one, as they are needed",
        why=f"{why}, mostly in {described(busiest)}" if busiest else why,
        evidence=tuple(evidence),
        lines=(f" or have more batches ready meanwhile: prefetch_factor={ahead}",) if longer else (),
        ideal=True,
    )


def avoidable(case: Case) -> float:
    """Share of the loading time that slow samples take, or 0 if batches can't be made less dependent on them:
    no other queue was measured to save a part of it, nor is the loader fast enough on average."""
    tried = [per_sample(phase)[0] for _, phase in queues(case)]
    if not tried or not has_stragglers(case):
        return 0.0
    slow = float(case.stragglers["slow_seconds"] / case.stragglers["seconds"])
    saved = 1 - min(tried) / case.costs.supply
    return slow if saved >= PART_SAVED * slow or case.costs.loading <= case.costs.demand else 0.0


def queues(case: Case) -> list[tuple[dict[str, Any], Phase]]:
    """(the argument, the supply) of loaders that were tried with another queue."""
    tried = [(phase.settings.get("loader", {}), phase) for phase in case.observation.others(SUPPLY)]
    return [row for row in tried if len(row[0]) == 1 and "num_workers" not in row[0]]


def costly_stages(case: Case, verdict: Verdict) -> Iterator[Candidate]:
    """The verdict's expensive stages of loading: whatever is done to them, the step alone remains."""
    tried = [one for one in more_workers(case, verdict) if one.gain >= GAIN_THAT_COUNTS]
    yield from tried
    place = busiest_place(case)
    stages = [stage for stage in case.stages if stage.place == place]
    whole = sum(stage.seconds_per_sample for stage in stages)
    computing = sum(stage.seconds_per_sample * (1 - stage.waiting) for stage in stages)
    # What single samples hold, if batches can be made less dependent on them, is no matter of their stage.
    # Any sample may find a lock taken.
    slow = avoidable(case) if verdict.kind != "lock" else 0.0
    for stage in stages if not tried else ():
        share = stage.seconds_per_sample / whole - slow if whole else 0.0
        if OF_STAGE.get(stage.kind, "dataset") == verdict.kind and share >= STAGE_THAT_MATTERS:
            of_cpu = stage.seconds_per_sample * (1 - stage.waiting) / computing if computing else 0.0
            yield without_a_stage(case, verdict, stage, whole, share, of_cpu)


def without_a_stage(
    case: Case, verdict: Verdict, stage: StageCost, whole: float, share: float, of_cpu: float
) -> Candidate:
    """A stage that costs nothing; `share` of the `whole` seconds of a sample, and of its processor time."""
    costs = case.costs
    others = max((taken for place, taken in pace(case).items() if place != stage.place), default=0.0)
    supply = max(costs.supply * (1 - share), others)
    after = replace(costs, supply=supply, supply_cpu=costs.supply_cpu * (1 - of_cpu))
    seconds = duration(stage.seconds_per_sample)
    by = f"seen in {stage.evidence} stack samples, {stage.waiting:.0%} of them waiting"
    sent = verdict.kind == "transfer" and not stage.line
    parts = f" {case.loader.most_bytes or 'batches'}" if sent else ""
    change, *lines = remedy_for(stage, verdict.remedy)
    # A change that showed no gain beside other processes may help without them.
    if stage == waiting_stage(case) and (case.is_busy or not tried_workers(case)):
        lines = [f" if it still waits then: {change}"]
        change = "more workers, which wait at the same time (num_workers=…)"
    return Candidate(
        gain=case.gain(after),
        change=change,
        why=f"{share:.0%} of the time to load a sample ({seconds} of {duration(whole)}) goes to"
        f" {described(stage)}{parts}",
        evidence=(by if stage.evidence else f"{seconds} as counted by Headrace",),
        lines=tuple(lines),
        ideal=True,
    )


def costly_sampler(case: Case, verdict: Verdict) -> Iterator[Candidate]:
    """A sampler that costs nothing: the training thread runs it, so that the step waits for all of it."""
    phases = (stage_costs(case.observation, ACTUAL), case.stages)
    stages = [stage for found in phases for stage in found if stage.kind == "sampler"]
    if not case.choosing or not stages:
        return
    stage = max(stages, key=lambda one: one.seconds_per_sample)
    least = pace(case).get("worker", 0.0) * case.slowdown if case.costs.overlaps else 0.0
    change, *lines = remedy_for(stage, verdict.remedy)
    share, starts = case.choosing / case.actual, starts_of(case.loader, case.phase)
    first = f"the first batch of an epoch comes after {duration(statistics.median(starts))}" if starts else ""
    yield Candidate(
        gain=case.actual / max(least, case.actual - case.choosing, 1e-9),
        change=change,
        why=f"{share:.0%} of the script's time goes to choosing samples, in {described(stage)}",
        evidence=(f"{stage.evidence} stack samples of the training thread", *([first] if first else [])),
        lines=tuple(lines),
    )


def irregular_part(case: Case, verdict: Verdict) -> Iterator[Candidate]:
    """A part of the step that not each batch needs: whatever is done to it, the rest of the step remains."""
    seconds = case.irregular.get(verdict.part, 0.0)
    # The loader's pace remains the limit if it works ahead.
    floor = case.costs.loading * case.slowdown if case.costs.overlaps else 0.0
    change, *lines = verdict.remedy.splitlines()
    # If it is in each step, the close look shows what it takes by then: it may grow.
    seconds, whole, grows = max(seconds, in_each_step(case.observation, verdict.part)), case.actual, ""
    if growth := growth_of_steps(case):
        first, later, more = growth
        whole += more
        grows = f", and more and more: a step took {duration(first)} at first, {duration(later)} later"
        lines = [f"or {change}", *lines] if verdict.growing else lines
        change = verdict.growing or change
    gain = whole / max(floor, whole - seconds, 1e-9)
    where = mostly_at(case.observation, "main", verdict.part, ACTUAL, BETWEEN, PARTS)
    why = f"{part_name(verdict.part)} takes {seconds / whole:.0%} of the script's time{where}{grows}"
    evidence = tuple(where_it_stays(case.observation, ACTUAL))
    bound = case.limit * whole / case.actual
    yield Candidate(gain, change, why, evidence, tuple(f" {line}" for line in lines), ideal=True, bound=bound)


def headrace_instead(case: Case, _verdict: Verdict) -> Iterator[Candidate]:
    """Headrace's loader in the place of torch's."""
    for phase in case.observation.others(SUPPLY):
        if phase.settings.get("headrace"):
            gain = case.gain(case.costs.with_supply(phase))
            change = "torch.utils.data.DataLoader → headrace.DataLoader"
            evidence = (f"Headrace's loader alone: {phase.samples_per_second:,.0f} samples/s",)
            lines = (
                "-loader = torch.utils.data.DataLoader(…)",
                "+loader = headrace.DataLoader(…)   # the same, without num_workers: it finds its own",
            )
            if case.loader.trainer:
                lines = (
                    " return it, without num_workers, from get_train_dataloader() of your Trainer:",
                    " it finds its own number of workers",
                )
            yield Candidate(gain, change, "", evidence, lines, {"headrace": True})


def waits_for_results(case: Case, _verdict: Verdict) -> Iterator[Candidate]:
    """A step that doesn't wait for results of the device."""
    yield from freer_device(
        case,
        "synchronise_seconds",
        change="read losses every so many steps, not each",
        lines=(
            "-    total += loss.item()",
            "+    total += loss.detach()   # .item() once, at the end of the epoch",
        ),
    )


def waits_for_copies(case: Case, _verdict: Verdict) -> Iterator[Candidate]:
    """Copies to the device that the step doesn't wait for."""
    yield from freer_device(
        case,
        "blocking_copy_seconds",
        change="pin_memory=True and .to(device, non_blocking=True)",
        lines=(
            "-loader = DataLoader(…)",
            "+loader = DataLoader(…, pin_memory=True)",
            "-images = images.to(device)",
            "+images = images.to(device, non_blocking=True)",
        ),
        settings={"loader": {"pin_memory": True}},
        ideal=True,
    )


def freer_device(case: Case, waiting: str, **fields: Any) -> Iterator[Candidate]:
    """A step without that waiting for the device, which has its work to do all the same."""
    device, demand = case.observation.device, case.observation.phase(DEMAND)
    if device is None or demand is None:
        return
    seconds = getattr(device, waiting)
    batch = statistics.fmean(demand.samples)
    step = case.costs.demand * batch
    if seconds <= 0.02 * step:
        return
    calls = ", ".join(f"{name} {count:.1f}" for name, count in device.synchronisations.items())
    evidence = (
        f"the device is busy for {duration(device.busy_seconds)} of a step",
        f"waits per step: {calls or 'none'}; {size(device.pageable_bytes)} copied from pageable memory,"
        f" {size(device.pinned_bytes)} from pinned",
        *where_it_stays(case.observation),
    )
    left = max(step - seconds, device.busy_seconds)
    doubt = step - batch * case.least
    bound = case.actual * batch / max(left - doubt, 0.5 * left)
    why = f"the training thread waits for {duration(seconds)} of a step's {duration(step)}"
    gain = case.gain(replace(case.costs, demand=left / batch))
    yield Candidate(gain, why=why, evidence=evidence, bound=bound, **fields)


VERDICTS = (
    Verdict("healthy", "nothing starves the training"),
    Verdict("workers", "too few workers", more_workers, about_loading=True),
    Verdict(
        "read",
        "reading",
        costly_stages,
        remedy="copy the data to a local disk, or read large files in order: headrace pack SRC DEST",
        about_loading=True,
        stages=("read",),
    ),
    Verdict(
        "decode",
        "decoding",
        costly_stages,
        remedy="store images as large as they are used, once: decoding costs by the pixel\n"
        "or decode only what a crop needs: headrace.DataLoader",
        about_loading=True,
        stages=("decode", "parse", "pillow"),
    ),
    Verdict(
        "transform",
        "one transform",
        costly_stages,
        remedy="apply {name} to smaller images (after the resize), or to whole batches on the GPU",
        about_loading=True,
        stages=("transform", "resize", "store"),
    ),
    Verdict(
        "dataset",
        "the dataset's own code",
        costly_stages,
        remedy="compute {name} before the training and store its result, if it is the same in each epoch",
        about_loading=True,
        stages=("dataset",),
    ),
    Verdict(
        "collate",
        "collate",
        costly_stages,
        remedy="collate_fn: torch.stack of tensors of one shape; pad in the dataset, or on the device",
        about_loading=True,
        stages=("collate",),
    ),
    Verdict(
        "transfer",
        "the transfer from workers to the training process",
        costly_stages,
        remedy="send less: uint8 instead of float32 (normalize on the device), fewer and larger tensors",
        about_loading=True,
        stages=("transfer", "send", "receive"),
    ),
    Verdict(
        "pin",
        "pinning",
        costly_stages,
        remedy="pin less: uint8 instead of float32, fewer and larger tensors",
        about_loading=True,
        stages=("pin",),
    ),
    Verdict(
        "lock",
        "waiting for a lock",
        costly_stages,
        remedy="one file handle per worker or thread, opened at first use: then no lock is needed\n"
        "or extract the archive once, or pack the data: headrace pack SRC DEST",
        about_loading=True,
        stages=("lock",),
    ),
    Verdict(
        "sampler",
        "the sampler",
        costly_sampler,
        remedy="compute what stays the same once, when the sampler is made, and draw many indices at once",
        stages=("sampler",),
    ),
    Verdict("straggler", "single samples that take long", smoother),
    Verdict("copy", "the copy to the device", waits_for_copies),
    Verdict("synchronise", "repeated waits for the device", waits_for_results),
    Verdict("gil", "threads that take turns with Python's lock (GIL)", turns_with_the_gil),
    Verdict("startup", "the start of each epoch", starts_of_epochs),
    Verdict("validation", "the loop over another loader", other_loops),
    Verdict(
        "recompile",
        "recompilation of the model",
        irregular_part,
        remedy="compile once: batches of one shape, or dynamic shapes\n"
        "model = torch.compile(model, dynamic=True)\n"
        "or pad batches to a few fixed lengths",
        part="compile",
    ),
    Verdict(
        "checkpoint",
        "writing checkpoints",
        irregular_part,
        remedy="write checkpoints less often, or in the background\n"
        "save every so many minutes rather than steps\n"
        "or torch.distributed.checkpoint.async_save(state, checkpoint_id=path)",
        part="checkpoint",
    ),
    Verdict(
        "logging",
        "logging",
        irregular_part,
        remedy="log less often\nlog every so many steps; images and histograms once per epoch",
        part="logging",
        growing="append what is new to the file, instead of writing all of it again",
    ),
    Verdict(
        "gc",
        "Python's garbage collector",
        irregular_part,
        remedy="collect less often: gc.freeze() after the setup\n"
        "gc.collect(); gc.freeze()  # before the loop: the collector skips what exists by then\n"
        "no gc.collect() within the loop",
        part="gc",
    ),
    Verdict("oversubscribed", "more threads than cores", fewer_threads, distorts=True),
    Verdict("cores", "too few free cores for loader and step together", less_contention),
    Verdict("memory", "memory"),
    Verdict("undecided", "undecided"),
    Verdict("unexplained", "an unmeasured cause"),
    # What may answer any of them.
    Verdict("", "", headrace_instead),
)
KINDS = {verdict.kind: verdict for verdict in VERDICTS if verdict.kind}
OF_STAGE = {stage: verdict.kind for verdict in VERDICTS for stage in verdict.stages}
