"""Finds causes outside of the loop of the training: other loops, and work between epochs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from headrace_doctor.doctor.case import (
    Candidate,
    Case,
    between_epochs,
    mostly_at,
    other_arguments,
    start_of_epoch,
    starts_of,
)
from headrace_doctor.doctor.model import IRREGULAR, parts_looked_at
from headrace_doctor.doctor.records import StageCost
from headrace_doctor.doctor.remedies import action_of, described
from headrace_doctor.errors import duration
from headrace_doctor.measure.observed import ACTUAL, BETWEEN, PARTS, SUPPLY, Loop

# Parts of the time between epochs that belong to the training, or to other verdicts.
NEEDED = (*IRREGULAR, "forward", "backward", "optimizer")
ONCE = "make the dataset and its loader once, before the loop of epochs"


def starts_of_epochs(case: Case, _verdict: object) -> Iterator[Candidate]:
    """Changes for work that is done again for each epoch: workers are started, or the dataset is made."""
    yield from workers_that_stay(case)
    yield from work_between_epochs(case)


def workers_that_stay(case: Case) -> Iterator[Candidate]:
    """Workers that are kept from epoch to epoch."""
    loader = case.loader
    # Headrace's native threads stay; processes can't be distinguished from them.
    if loader.kind == "headrace" or not loader.workers or loader.arguments.get("persistent_workers"):
        return
    spent = start_of_epoch(loader, case.phase)
    if not spent:
        return
    starts = starts_of(loader, case.phase)
    # What remains of a start is the first batch, which workers make as fast as any.
    batch = statistics.fmean(case.phase.samples)
    first = sum(stage.seconds_per_sample for stage in case.stages if stage.place == "worker") * batch
    seconds = statistics.median(starts)
    saved = max(0.0, spent * max(0.0, 1 - first / seconds) - case.choosing)
    candidate = other_arguments(
        case,
        case.gain(case.costs, saved),
        f"each epoch starts workers for {duration(seconds)}, {spent / case.actual:.0%} of its time"
        + mostly_at(case.observation, "worker", "start", ACTUAL, SUPPLY),
        f"starts of epochs: {', '.join(map(duration, starts[:6]))}",
        f"batches of an epoch: {loader.batches}",
        persistent_workers=True,
    )
    if loader.remade:  # its workers end with it
        change = f"{ONCE}, and keep its workers: persistent_workers=True"
        candidate = replace(candidate, change=change, settings={}, ideal=True)
    yield candidate


def work_between_epochs(case: Case) -> Iterator[Candidate]:
    """A dataset that is made once, or its files read once, if the script does so between epochs."""
    spent = between_epochs(case.loader, case.phase)
    parts = parts_looked_at(case.observation, BETWEEN)
    spent *= 1 - sum(parts.get(part, 0.0) for part in NEEDED)
    work = at_work_between(case)
    action = action_of(work) if work else None
    if not spent or not (case.loader.remade or (action and action.again)):
        return
    share = f"{spent / case.actual:.0%} of the script's time passes between epochs"
    made = ", while the dataset and its loader are made again" if case.loader.remade else ""
    change = (
        ONCE if case.loader.remade else "do it once, before the loop of epochs, and keep what comes of it"
    )
    lines = (
        " or, if it differs from epoch to epoch, keep what is read or computed for it (functools.cache)",
    )
    yield Candidate(
        gain=case.actual / max(1e-9, case.actual - spent),
        change=change,
        why=f"{share}{made}, mostly in {described(work)}" if work else f"{share}{made}",
        evidence=(f"between epochs: {', '.join(map(duration, case.phase.between[:6]))}",),
        lines=lines if case.loader.remade else (),
        ideal=True,
    )


def at_work_between(case: Case) -> StageCost | None:
    """The user's function that is mostly seen between epochs, and its busiest line, or None if none is."""
    lines: Counter[str] = Counter()
    for look in case.observation.looks:
        if (look["phase"], look["role"]) == (BETWEEN, "main"):
            for part, rows in look["lines"].items():
                lines.update(rows if part not in NEEDED else {})
    functions: Counter[str] = Counter()
    for line, count in lines.items():
        functions[line.partition(": ")[0].partition(" ")[2]] += count
    if not lines:
        return None
    (function, looks), *_ = functions.most_common(1)
    line, count = next((line, n) for line, n in lines.most_common() if f" {function}: " in line)
    return StageCost("code", function, "main", 0.0, 0.0, 0.0, looks, line, count / looks)


def other_loops(case: Case, _verdict: object) -> Iterator[Candidate]:
    """Workers for another loader, as for validation, whose loop waits for it."""
    samples = case.samples
    for loop in case.observation.loops:
        yield from larger_batches(case, loop)
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


def larger_batches(case: Case, loop: Loop) -> Iterator[Candidate]:
    """Batches as large as the training's for a loop without gradients: samples then take as long as there,
    but for the backward pass and the optimizer."""
    if not loop.batched:
        return
    size, seconds, cpu, start = loop.batched
    now = loop.arguments.get("batch_size")
    parts = parts_looked_at(case.observation, PARTS)
    needed = case.costs.demand * (1 - parts.get("backward", 0.0) - parts.get("optimizer", 0.0))
    computes = loop.samples * min(loop.computes / loop.samples, needed)
    cores = (computes + loop.samples * cpu) / case.costs.cores
    after = max(computes, loop.samples * seconds, cores) + loop.loops * start
    spent = loop.seconds / case.samples
    yield Candidate(
        gain=case.actual / max(1e-9, case.actual - max(0.0, loop.seconds - after) / case.samples),
        change=f"{loop.where}: batch_size={now} → {size:.0f}, as in training",
        why=f"the loop at {loop.where} takes {spent / case.actual:.0%} of the script's time with"
        f" batch_size={now}: {duration(loop.seconds / loop.samples)} for each sample, in training"
        f" {duration(case.steady)}",
        evidence=(f"its loader: {loop.code}", f"with batches of {size:.0f}: {1 / seconds:,.0f} samples/s"),
        lines=(
            f"-val_loader = DataLoader(…, batch_size={now})",
            f"+val_loader = DataLoader(…, batch_size={size:.0f})",
        ),
        settings={"loader": {"batch_size": int(size)}},
        where=loop.where,
        loader=loop.code,
    )
