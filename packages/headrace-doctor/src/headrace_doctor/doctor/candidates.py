"""What could be changed, each with what the model says would come of it: one function a kind of change."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from headrace_doctor.doctor.case import (
    TAKEN_CORES,
    Candidate,
    Case,
    has_stragglers,
    is_faster,
    least_step,
    other_arguments,
    start_of_epoch,
    starts_of,
    takes_turns,
    tried_workers,
    where_it_stays,
)
from headrace_doctor.doctor.model import IRREGULAR, part_name
from headrace_doctor.measure.observed import ACTUAL, DEMAND, GAIN_THAT_COUNTS, SUPPLY
from headrace_doctor.measure.supplies import worker_threads

# Of several numbers of workers, the smallest that comes so near to the best is recommended.
NEAR_ENOUGH = 0.97
# Share of a worker's time below which a stage is no cause: another is as expensive.
STAGE_THAT_MATTERS = 0.35
# Ratio of loading during the step to loading alone that shared caches and a few interruptions don't explain.
MUCH_SLOWER = 1.7
# Kinds of cause by kinds of stage; others have a kind of their own, as of `REMEDIES`, or are "dataset".
KIND_OF_STAGE = {
    **dict.fromkeys(("parse", "pillow"), "decode"),
    **dict.fromkeys(("resize", "store"), "transform"),
    **dict.fromkeys(("send", "receive"), "transfer"),
}


def candidates(case: Case) -> list[Candidate]:
    """All changes that would bring anything, or nothing; unordered."""
    found = []
    for made in (candidate for make in MAKERS for candidate in make(case)):
        gain = min(made.gain, made.bound or case.limit)
        found.append(replace(made, gain=gain, counts=gain >= GAIN_THAT_COUNTS))
    return found


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
    uneven = has_stragglers(case)
    yield other_arguments(
        case,
        "straggler" if uneven else "workers",
        case.best(after[count]) if uneven else case.gain(after[count]),
        f"{who} {supply:,.0f} samples/s, the step could process {demand:,.0f}{turns}",
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
    # What both cost beyond the dearer of them is what they take from each other.
    yield Candidate(
        kind="gil",
        gain=case.actual / after.seconds,
        change=f"num_workers=0 in a thread → num_workers={count}",
        why=f"loader and step share one process: alone they reach {supply:,.0f} and {demand:,.0f} samples/s,"
        f" together {1 / case.steady:,.0f}",
        evidence=(f"the step waits for {case.stall:.0%} of its time only: another thread makes the batches",),
        settings={"loader": {"num_workers": count}},
    )


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
            # On average, the loader may be fast enough: the waits that the model leaves unexplained would go.
            gain = case.best(case.costs.with_supply(phase))
            yield other_arguments(case, "straggler", gain, why, *evidence, **arguments)


def workers_that_stay(case: Case) -> Iterator[Candidate]:
    """Workers that are kept from epoch to epoch."""
    loader = case.loader
    if loader.kind == "headrace":  # its native threads stay; processes aren't told apart from them
        return
    if not loader.workers or loader.arguments.get("persistent_workers"):
        return
    spent = start_of_epoch(loader, case.phase)
    if not spent:
        return
    starts = starts_of(loader, case.phase)
    # What remains of a start is the first batch, which workers make as fast as any.
    batch = statistics.fmean(case.phase.samples)
    first = sum(stage.seconds_per_sample for stage in case.stages if stage.place == "worker") * batch
    seconds = statistics.median(starts)
    saved = spent * max(0.0, 1 - first / seconds)
    yield other_arguments(
        case,
        "startup",
        case.gain(case.costs, saved),
        f"each epoch starts workers for {seconds:.2f} s, {spent / case.actual:.0%} of its time",
        f"starts of epochs: {', '.join(f'{start:.2f} s' for start in starts[:6])}",
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
        rates = f"{1 / case.costs.demand:,.0f} samples/s with {now} threads"
        yield Candidate(
            kind="oversubscribed",
            gain=case.gain(after),
            bound=case.actual / least_step(case.observation, phase),
            why=f"the step's operators use {now} threads on {case.costs.cores} cores",
            evidence=(f"the step alone: {rates}, {1 / after.demand:,.0f} with {threads}",),
            **other_threads(now, threads),
        )


def without_a_stage(case: Case) -> Iterator[Candidate]:
    """The most expensive stages of loading: whatever is done to them, the step alone remains."""
    place = busiest_place(case)
    stages = [stage for stage in case.stages if stage.place == place]
    whole = sum(stage.seconds_per_sample for stage in stages)
    computing = sum(stage.seconds_per_sample * (1 - stage.waiting) for stage in stages)
    # What single samples hold, if batches can be made less dependent on them, is no matter of their stage.
    slow = case.stragglers["slow_seconds"] / case.stragglers["seconds"] if any(smoother(case)) else 0.0
    for stage in stages:
        share = stage.seconds_per_sample / whole if whole else 0.0
        share -= slow if stage.kind != "lock" else 0.0  # any sample may find the lock taken
        if share < STAGE_THAT_MATTERS:
            continue
        of_cpu = stage.seconds_per_sample * (1 - stage.waiting) / computing if computing else 0.0
        costs = case.costs
        after = replace(costs, supply=costs.supply * (1 - share), supply_cpu=costs.supply_cpu * (1 - of_cpu))
        kind = KIND_OF_STAGE.get(stage.kind, stage.kind if stage.kind in REMEDIES else "dataset")
        seconds = duration(stage.seconds_per_sample)
        by = f"{stage.evidence} stack samples; {stage.waiting:.0%} of it blocked"
        yield Candidate(
            kind=kind,
            gain=case.gain(after),
            change=f"{stage.name}: {seconds} of a sample's {duration(whole)}",
            why=f"{stage.name} takes {share:.0%} of a sample's time in the loader",
            evidence=(by if stage.evidence else f"{seconds} as counted by Headrace",),
            lines=tuple(f" {line}" for line in REMEDIES[kind].format(name=stage.name).splitlines()),
            ideal=True,
        )


def duration(seconds: float) -> str:
    """Three digits with a unit: 1.23 s, 41.2 ms, 870 µs."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 0.9995:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def irregular_costs(case: Case) -> Iterator[Candidate]:
    """Parts of the step that not each batch needs: whatever is done to them, the rest of it remains."""
    for part, seconds in case.irregular.items():
        # The loader's pace remains the limit, where it works ahead.
        floor = case.costs.loading * case.slowdown if case.costs.overlaps else 0.0
        kind = IRREGULAR[part]
        change, *lines = REMEDIES[kind].splitlines()
        gain = case.actual / max(floor, case.actual - seconds, 1e-9)
        why = f"{part_name(part)} takes {seconds / case.actual:.0%} of the script's time"
        evidence = tuple(where_it_stays(case.observation, ACTUAL))
        yield Candidate(kind, gain, change, why, evidence, tuple(f" {line}" for line in lines), ideal=True)


def other_loops(case: Case) -> Iterator[Candidate]:
    """Workers for another loader, as of validation, whose loop waits for it."""
    samples = case.samples
    for loop in case.observation.loops:
        now = int(loop.arguments.get("num_workers", 0))
        stay = loop.arguments.get("persistent_workers")
        for workers, (seconds, cpu) in loop.supplies.items():
            count = int(workers)
            if count < now or (count == now and (stay or not now)):
                continue
            cores = (loop.computes + loop.samples * cpu) / case.costs.cores
            after = max(loop.computes, loop.samples * seconds, cores)
            gain = case.actual / max(1e-9, case.actual - max(0.0, loop.seconds - after) / samples)
            takes = f"takes {loop.seconds / samples / case.actual:.0%} of the script's time"
            more = f"num_workers={now} → {count}, " if count > now else ""
            yield Candidate(
                kind="validation",
                gain=gain,
                change=f"{loop.where}: {more}persistent_workers=True",
                why=f"the loop at {loop.where} {takes}, and waits for its loader for"
                f" {loop.waits / loop.seconds:.0%} of that",
                evidence=(f"its loader: {loop.code}", f"with {count} workers: {1 / seconds:,.0f} samples/s"),
                lines=(
                    f"-val_loader = DataLoader(…, num_workers={now})",
                    f"+val_loader = DataLoader(…, num_workers={count}, persistent_workers=True)",
                ),
                settings={"loader": {"num_workers": count, "persistent_workers": True}},
                where=loop.where,
                loader=loop.code,
            )


def single_threaded_workers(case: Case) -> Iterator[Candidate]:
    """Workers whose libraries start threads of their own, on cores that are taken already."""
    phase = next((one for one in case.observation.others(SUPPLY) if "worker_threads" in one.settings), None)
    looks = [look for look in case.observation.looks if look["role"] == "worker" and look["phase"] == SUPPLY]
    if phase is None or not is_faster(case, phase):
        return
    libraries = sorted({name for look in looks for name in look.get("libraries", ())})
    line = "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1, set before Python starts"
    if "cv2" in libraries:
        line = "cv2.setNumThreads(0)  # in worker_init_fn, or at the top of the dataset's module"
    yield Candidate(
        kind="oversubscribed",
        gain=case.gain(case.costs.with_supply(phase)),
        change=f"one thread for the libraries in each worker: {line.partition('  #')[0]}",
        why=f"the {case.loader.workers} workers compute on {worker_threads(looks)} threads, with"
        f" {case.costs.cores} cores",
        evidence=(
            f"threads started by native libraries; imported: {', '.join(libraries)}",
            f"the loader alone: {1 / case.costs.supply:,.0f} samples/s,"
            f" {phase.samples_per_second:,.0f} with one thread per worker",
        ),
        lines=(f"+{line}",),
        settings={"worker_threads": 1},
    )


def less_contention(case: Case) -> Iterator[Candidate]:
    """Cores that are left to the loader, where it is much slower during the step than alone."""
    if case.slowdown < MUCH_SLOWER or not case.costs.overlaps or case.is_busy:
        return  # on a busy machine, a note tells what others take
    threads, cores = case.observation.threads, case.costs.cores
    fewer = max(1, cores // 2)
    gain = case.costs.together(case.slowdown) / case.costs.seconds
    contention = f"loading takes {case.slowdown:.1f} times as long as alone: they compete for {cores} cores"
    change: dict[str, Any] = {
        "change": "fewer processes beside it",
        "lines": (f" {TAKEN_CORES}",),
        "ideal": True,
    }
    if threads > fewer:  # with so many the step was not measured
        change = {**other_threads(threads, fewer), "bound": math.inf}
    waited = f"threads waited for a core for {case.run_delay:.0%} of their time"
    yield Candidate("cores", gain, why=f"during the step, {contention}", evidence=(waited,), **change)


def other_threads(now: int, threads: int) -> dict[str, Any]:
    """Fields of a candidate that sets the number of threads for operators."""
    return {
        "change": f"torch.set_num_threads({now}) → {threads}",
        "lines": (f"-torch.set_num_threads({now})", f"+torch.set_num_threads({threads})"),
        "settings": {"threads": threads},
    }


def headrace_instead(case: Case) -> Iterator[Candidate]:
    """Headrace's loader in the place of torch's."""
    for phase in case.observation.others(SUPPLY):
        if phase.settings.get("headrace"):
            gain = case.gain(case.costs.with_supply(phase))
            change = "torch.utils.data.DataLoader → headrace.DataLoader"
            evidence = (f"Headrace's loader alone: {phase.samples_per_second:,.0f} samples/s",)
            yield Candidate("", gain, change, "", evidence, settings={"headrace": True})


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
            after = replace(case.costs, demand=left / batch)
            doubt = step - batch * case.least
            bound = case.actual * batch / max(left - doubt, 0.5 * left)
            why = f"the training thread waits for {1e3 * seconds:.1f} ms of a step's {1e3 * step:.1f} ms"
            yield Candidate(kind, case.gain(after), why=why, evidence=evidence, bound=bound, **fields)

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
        ideal=True,
    )


def busiest_place(case: Case) -> str:
    """Where samples are made; of Headrace's threads those that make the fewest."""
    taken: dict[str, float] = {}
    for stage in case.stages:
        taken[stage.place] = taken.get(stage.place, 0.0) + 1 / stage.samples_per_second
    ours = [place for place in ("read thread", "native thread") if place in taken]
    if ours:
        return max(ours, key=lambda place: taken[place])
    return "worker" if "worker" in taken else "main"


MAKERS: tuple[Callable[[Case], Iterator[Candidate]], ...] = (
    more_workers,
    processes_instead,
    smoother,
    workers_that_stay,
    fewer_threads,
    single_threaded_workers,
    irregular_costs,
    other_loops,
    without_a_stage,
    less_contention,
    headrace_instead,
    freer_device,
)
# What a user can do about a stage that costs too much, whose name is {name}, or about a part of the step that
# not each batch needs.
REMEDIES = {
    "lock": "one file handle per worker or thread, opened at first use: then no lock is needed\n"
    "or extract the archive once, or pack the data: headrace pack SRC DEST",
    "read": "copy the data to a local disk, or read large files in order: headrace pack SRC DEST",
    "decode": "store images as large as they are used, once: decoding costs by the pixel\n"
    "or decode only what a crop needs: headrace.DataLoader",
    "transform": "{name}: do it once beforehand, on smaller images (after the resize),\n"
    "or on whole batches on the device (headrace: batch_transform=)",
    "dataset": "{name}: do it once beforehand and keep what came of it, or vectorise it",
    "collate": "collate_fn: torch.stack of tensors of one shape; pad in the dataset, or on the device",
    "transfer": "send less: uint8 instead of float32 (normalise on the device), fewer and larger tensors",
    "pin": "pin less: uint8 instead of float32, fewer and larger tensors",
    "recompile": "compile once: batches of one shape, or dynamic shapes\n"
    "model = torch.compile(model, dynamic=True)\n"
    "or pad batches to a few fixed lengths",
    "checkpoint": "write checkpoints less often, or in the background\n"
    "save every so many minutes rather than steps\n"
    "or torch.distributed.checkpoint.async_save(state, checkpoint_id=path)",
    "logging": "log less often\nlog every so many steps; images and histograms once per epoch",
    "gc": "collect less often: gc.freeze() after the setup\n"
    "gc.collect(); gc.freeze()  # before the loop: the collector skips what exists by then\n"
    "no gc.collect() within the loop",
}
