"""Processes and threads that take cores, or Python's lock, from each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from headrace_doctor.doctor.case import (
    LATE_THAT_MATTERS,
    TAKEN_CORES,
    Candidate,
    Case,
    gil_waits,
    growth_of_steps,
    is_faster,
    least_step,
    on_core,
    other_arguments,
    takes_turns,
    training_look,
    tried_workers,
)
from headrace_doctor.doctor.remedies import MOSTLY, place_and_text
from headrace_doctor.measure.observed import ACTUAL, DEMAND, SUPPLY
from headrace_doctor.measure.supplies import worker_threads

# Ratio of loading during the step to loading alone that shared caches and a few interruptions don't explain.
MUCH_SLOWER = 1.7


def turns_with_the_gil(case: Case, _verdict: object) -> Iterator[Candidate]:
    """Worker processes instead of a thread that makes batches, and threads that wait instead of polling."""
    yield from processes_instead(case)
    look = training_look(case.observation, ACTUAL)
    waits = gil_waits(case.observation, ACTUAL)
    if look is None or not waits or look["late_rounds"] < LATE_THAT_MATTERS * look["rounds"]:
        return
    least = case.least * (1 - gil_waits(case.observation, DEMAND))
    for kind, stages in look["stages"].items():
        busy = {key: (row[2] - row[3]) / look["seconds"] for key, row in stages.items()}
        if not kind.startswith("other:") or sum(busy.values()) < MOSTLY:
            continue
        most = max(busy, key=lambda key: busy[key])
        named = most.removeprefix("code:") if most.startswith("code:") else kind.removeprefix("other:")
        lines = look["lines"].get(kind, {})
        line = max(lines, key=lambda line: lines[line], default="")
        where = ", mostly at {}: {}".format(*place_and_text(line)) if line else ""
        floor = case.costs.loading if case.costs.overlaps else 0.0
        yield Candidate(
            gain=case.actual / max(floor, case.actual - waits * case.steady),
            bound=case.actual / least if least else math.inf,
            change="let the thread wait, not poll: queue.get(timeout=…), event.wait(…) or time.sleep(…)",
            why=f"the thread in {named} computes for {min(1.0, sum(busy.values())):.0%} of the time{where};"
            f" the training thread waits for Python's lock (GIL) for {waits:.0%} of its own",
            evidence=(
                f"the lock was taken at {look['late_rounds'] / look['rounds']:.0%} of the moments at which"
                " the stacks were to be sampled",
            ),
            lines=(
                " what it computes belongs into a process of its own, or into code that releases the GIL",
            ),
            ideal=True,
        )


def bound_workers(case: Case) -> Iterator[Candidate]:
    """Workers that may use more cores, if they are bound to fewer than would let all of them compute."""
    looks = [look for look in case.observation.looks if (look["role"], look["phase"]) == ("worker", SUPPLY)]
    bound = {core for look in looks for core in look["cores"]}
    workers, cores = case.loader.workers, min(case.loader.workers, case.costs.cores)
    if not case.starved or not bound or len(bound) >= cores:
        return
    share = max(len(bound) / cores, on_core(case.observation, SUPPLY, "worker"))
    after = replace(case.costs, supply=case.costs.supply * share)
    main = training_look(case.observation, ACTUAL)
    together = main is not None and set(main["cores"]) <= bound
    found = ", ".join(sorted({look["bound_by"] for look in looks} - {""}))
    by = found or "os.sched_setaffinity, psutil's cpu_affinity or taskset"
    here = f"the {workers} workers may use {len(bound)} of {case.costs.cores} cores"
    yield Candidate(
        gain=case.best(after) if together else case.gain(after),
        change=f"let workers use all cores: without {by}",
        why=f"{here}{f', bound by {found}' if found else ': something binds them'}",
        evidence=(
            f"cores of the workers: {', '.join(map(str, sorted(bound)))}",
            f"they wait for a core for {1 - on_core(case.observation, SUPPLY, 'worker'):.0%} of their time",
        ),
        lines=(
            " what binds them: os.sched_setaffinity, psutil's cpu_affinity, taskset, numactl, or the",
            " environment variables OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY, KMP_AFFINITY",
        ),
        ideal=True,
    )


def processes_instead(case: Case) -> Iterator[Candidate]:
    """Worker processes, if a thread of the training process makes the batches."""
    if not takes_turns(case):
        return
    tried = {count: case.costs.with_supply(phase) for count, phase in tried_workers(case).items()}
    # Where the loader alone was ample, no others were measured: processes are taken to be as fast as it is.
    tried = tried or {min(2, case.costs.cores): replace(case.costs, overlaps=True)}
    count, after = min(tried.items(), key=lambda one: one[1].seconds)
    supply, demand = 1 / case.costs.supply, 1 / case.costs.demand
    # What both cost beyond the dearer of them is what they take from each other.
    yield replace(
        other_arguments(
            case,
            case.actual / after.seconds,
            f"loader and step share one process: alone they reach {supply:,.0f} and {demand:,.0f} samples/s,"
            f" together {1 / case.steady:,.0f}",
            f"the step waits for {case.stall:.0%} of its time only: another thread makes the batches",
            num_workers=count,
        ),
        change=f"num_workers=0 in a thread → num_workers={count}",
    )


def fewer_threads(case: Case, _verdict: object) -> Iterator[Candidate]:
    """Proposes as many threads for operators as there are cores, and more cores for workers with too few."""
    yield from bound_workers(case)
    for phase in case.observation.others(DEMAND):
        threads = phase.settings.get("threads")
        if threads is None:
            continue
        after = case.costs.with_demand(phase)
        now = case.observation.threads
        rates = f"{1 / case.costs.demand:,.0f} samples/s with {now} threads"
        yield Candidate(
            gain=case.gain(after),
            bound=case.actual / least_step(case.observation, phase),
            why=f"the step's operators use {now} threads on {case.costs.cores} cores",
            evidence=(f"the step alone: {rates}, {1 / after.demand:,.0f} with {threads}",),
            **other_threads(now, threads),
        )
    yield from single_threaded_workers(case)


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
        gain=case.best(case.costs.with_supply(phase)),  # contention goes as well
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


def less_contention(case: Case, _verdict: object) -> Iterator[Candidate]:
    """Cores that are left to the loader, if it is much slower during the step than alone."""
    # The training thread chooses samples and receives batches in turn with its step.
    in_turn = case.costs.demand + case.choosing + case.receiving * case.steady
    slower = case.slowdown >= MUCH_SLOWER and case.steady >= MUCH_SLOWER * in_turn
    if not slower or not case.costs.overlaps or case.is_busy:
        return  # on a busy machine, a note reports what others take
    if growth_of_steps(case):
        return  # steps that were measured at different times can't be compared
    if sum(case.irregular.values()) > case.steady - case.costs.seconds:
        return  # what the step does beside it, as in a thread that writes logs, explains as much
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
    yield Candidate(gain, why=f"during the step, {contention}", evidence=(waited,), **change)


def other_threads(now: int, threads: int) -> dict[str, Any]:
    """Fields of a candidate that sets the number of threads for operators."""
    return {
        "change": f"torch.set_num_threads({now}) → {threads}",
        "lines": (f"-torch.set_num_threads({now})", f"+torch.set_num_threads({threads})"),
        "settings": {"threads": threads},
    }
