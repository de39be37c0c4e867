"""Measures loaders alone, as fast as they make batches, with the script's settings and with others."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from headrace_doctor.machine import affine_cores, usable_cores
from headrace_doctor.measure.observed import (
    ACTUAL,
    DEMAND,
    LOOP,
    STALL_THAT_MATTERS,
    SUPPLY,
    Loop,
    Observation,
    Phase,
    is_uneven,
    sample_durations,
)
from headrace_doctor.measure.processes import children_memory, times
from headrace_doctor.measure.subject import (
    Watched,
    batch_samples,
    best_workers,
    headrace_loader,
    is_headrace,
    name_of,
    own_stages,
    prefetched,
    with_settings,
)

SUPPLY_SECONDS, SLOW_SUPPLY_SECONDS = 2.0, 4.0
# A loader that supplies so many times the demand needs no other settings, unless the step waits all the same.
AMPLE = 1.5
# No other loader is measured so long after the actual phase: an examination is to take a minute at most.
LAST_SUPPLY_SECONDS = 20.0
# Share of the workers' processor time that threads of OpenMP, OpenCV and the like must take to be a cause.
NATIVE_THAT_MATTERS = 0.15
# Share of the time that a loop over another loader, as of validation, or its waits must take to be examined.
LOOP_THAT_MATTERS = 0.05
# Batches of an evaluation are tiny if the training's have at least so many times as many samples.
TINY = 4


class Recorder:
    """Begins and ends the phases of an observation, and announces their names, or "" at their end."""

    def __init__(self, observation: Observation, announce: Callable[[str], None]) -> None:
        self.observation = observation
        self.announce = announce
        self._began = observation.began = time.perf_counter()

    def now(self) -> float:
        """Seconds since the examination began."""
        return time.perf_counter() - self._began

    def begin(self, watched: Watched, phase: Phase) -> None:
        """Begins a phase of a loader."""
        synchronise()
        watched.phase = phase
        if phase.name in (ACTUAL, SUPPLY):
            phase.worker_memory.append(children_memory())
        phase.began = self.now()
        watched.times = times()
        self.announce(phase.name)

    def end(self, watched: Watched) -> None:
        """Ends the loader's phase, and adds it to the observation."""
        synchronise()
        phase, spent = watched.phase, times().since(watched.times)
        phase.ended = self.now()
        if phase.name in (ACTUAL, SUPPLY):
            phase.worker_memory.append(children_memory())
        phase.cpu_seconds, phase.worker_cpu_seconds = spent.own, spent.children
        phase.throttled = spent.throttled / max(1.0, spent.periods)
        others = max(0.0, spent.machine - spent.own - spent.children) / max(1e-9, spent.wall)
        # Others may have the cores that a cgroup's quota doesn't let this process use.
        phase.others = max(0.0, others - (affine_cores() - usable_cores()))
        self.announce("")
        if self.observation.loader is None:  # it is the first that has been measured, and the only one
            self.observation.loader = watched.facts
        self.observation.phases.append(phase)


class Supplies:
    """Measures loaders alone; `counted` returns the samplers' counts so far."""

    def __init__(self, recorder: Recorder, counted: Callable[[], list[dict[str, Any]]]) -> None:
        self._recorder = recorder
        self._observation = recorder.observation
        self._counted = counted

    def measure(
        self, watched: Watched, inner: Iterator[Any] | None, loops: list[tuple[Watched, Loop]]
    ) -> None:
        """Measures the loader as it is, if the step waits for it with other settings, and those of loops.

        It continues with the batches of `inner`, or begins with a new iter() if that is None.
        """
        supply = self._supply(watched, watched.loader, {}, inner)
        actual = self._observation.phase(ACTUAL)
        demand = self._observation.phase(DEMAND) or actual
        wanted = sum(demand.samples) / max(1e-9, sum(demand.computes)) if demand else 0.0
        longest = max((loop.seconds for _, loop in loops), default=0.0)
        loops_first = actual is not None and longest > actual.seconds
        if loops_first:  # the time of an examination may not suffice for all
            self._measure_loops(loops)
        if self._observation.loader is not None and actual is not None and supply.seconds:
            self._observation.loader.stages = own_stages(watched.loader)
            if supply.samples_per_second < AMPLE * wanted or actual.stall >= STALL_THAT_MATTERS:
                self._try_others(watched, supply, wanted)
        if not loops_first:
            self._measure_loops(loops)

    def _measure_loops(self, loops: list[tuple[Watched, Loop]]) -> None:
        """Measures the loaders of loops that matter, but not those of Headrace and of streams."""
        whole = sum(phase.ended - phase.began for phase in self._observation.phases if phase.name == ACTUAL)
        for watched, loop in loops:
            if isinstance(watched.loader.dataset, IterableDataset) or is_headrace(watched.loader):
                continue
            if loop.seconds >= LOOP_THAT_MATTERS * whole:
                self._measure_larger_batches(watched, loop)
            if loop.waits >= LOOP_THAT_MATTERS * whole:
                self._measure_loop(watched, loop)

    def _measure_larger_batches(self, watched: Watched, loop: Loop) -> None:
        """Measures the loader of a loop without gradients with batches as large as the training's, if its own
        are tiny. Samples that can't be collated, as images of different sizes, forbid it."""
        actual, size = self._observation.phase(ACTUAL), watched.loader.batch_size
        larger = max(actual.samples, default=0) if actual else 0
        if loop.gradients or size is None or TINY * size > larger:
            return
        phase = self._try(watched, {"loader": {"batch_size": larger}}, f"{LOOP} {loop.where}")
        if phase is not None and phase.seconds > 0:
            cpu = (phase.cpu_seconds + phase.worker_cpu_seconds) / sum(phase.samples)
            again = watched.loader.num_workers and not watched.loader.persistent_workers
            start = phase.startups[0] if again and phase.startups else 0.0
            loop.batched = [float(larger), 1 / phase.samples_per_second, cpu, start]

    def _measure_loop(self, watched: Watched, loop: Loop) -> None:
        """Measures the loader of a loop that waits for it with its number of workers, and with one for each
        core; these stay from loop to loop."""
        loader = watched.loader
        for workers in sorted({loader.num_workers, usable_cores()}):
            stay = {"persistent_workers": True} if workers else {}
            settings = {"loader": {"num_workers": workers, **stay}}
            phase = self._try(watched, settings, f"{LOOP} {loop.where}")
            if phase is not None and phase.seconds > 0:
                cpu = (phase.cpu_seconds + phase.worker_cpu_seconds) / sum(phase.samples)
                loop.supplies[str(workers)] = [1 / phase.samples_per_second, cpu]

    def _try_others(self, watched: Watched, supply: Phase, wanted: float) -> None:
        loader = watched.loader
        if isinstance(loader.dataset, IterableDataset):
            self._observation.notes.append(
                "other loaders weren't tried: of an IterableDataset each worker may give all samples again"
            )
            return
        if is_headrace(loader):
            return
        if headrace_loader() is not None:
            self._try(watched, {"headrace": True})
        if loader.num_workers:
            looks = [look for look in self._counted() if look["role"] == "worker" and look["phase"] == SUPPLY]
            if worker_threads(looks) > usable_cores():
                self._try(watched, {"worker_threads": 1})
        if loader.num_workers and is_uneven(sample_durations(self._counted(), SUPPLY), supply):
            self._try(watched, {"loader": {"prefetch_factor": 4 * (loader.prefetch_factor or 2)}})
            if hasattr(loader, "in_order"):
                self._try(watched, {"loader": {"in_order": False}})

        def rate_of(workers: int) -> float:
            phase = self._try(watched, {"loader": {"num_workers": workers}})
            return phase.samples_per_second if phase else 0.0

        # One worker needs no more than to be as fast as none: it works beside the step.
        now = supply.samples_per_second if loader.num_workers else 0.0
        first = 0
        if waiting_share(self._counted()) > 0.5:  # as many as suffice if they do nothing but wait
            first = math.ceil(max(1, loader.num_workers) * wanted / supply.samples_per_second)
        best_workers(loader.num_workers, rate_of, now, AMPLE * wanted, first)

    def _try(self, watched: Watched, settings: dict[str, Any], kind: str = SUPPLY) -> Phase | None:
        actual = self._observation.phase(ACTUAL)
        if actual is not None and self._recorder.now() > actual.ended + LAST_SUPPLY_SECONDS:
            note = f"{name_of('the loader', settings)} was not tried: the others took too long"
            self._observation.notes += [note] if note not in self._observation.notes else []
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, of more workers than cores: that is what is tried
                return self._supply(watched, with_settings(watched.loader, settings), settings, None, kind)
        except Exception as error:  # a user's loader may refuse in its own way
            reason = str(error).strip().rpartition("\n")[2]  # after a worker's traceback
            self._observation.notes.append(f"{name_of('the loader', settings)} can't be tried: {reason}")
            return None

    def _supply(
        self,
        watched: Watched,
        loader: DataLoader[Any],
        settings: dict[str, Any],
        inner: Iterator[Any] | None,
        kind: str = SUPPLY,
    ) -> Phase:
        """Measures a loader alone, without the batches that it had prefetched."""
        phase, ahead = Phase(name_of(kind, settings), settings), prefetched(loader)
        begin = watched.begin if loader is watched.loader else lambda: iter(loader)
        started = time.perf_counter()
        batches = endless(phase, begin, begin() if inner is None else inner)
        for number in range(ahead + (inner is None)):
            next(batches, None)
            if number == 0 and not phase.startups and settings:
                phase.startups.append(time.perf_counter() - started)
            if time.perf_counter() - started > SLOW_SUPPLY_SECONDS:
                break
        self._recorder.begin(watched, phase)
        while True:
            seconds, least = self._recorder.now() - phase.began, max(8, 2 * ahead)  # rounds of all workers
            if (
                len(phase.waits) >= (least if seconds < SLOW_SUPPLY_SECONDS else 2)
                and seconds >= SUPPLY_SECONDS
            ):
                break
            asked, before = time.perf_counter(), sum(phase.startups)
            batch = next(batches, None)
            if batch is None:
                break
            # The start of an epoch isn't part of the rate.
            phase.waits.append(max(0.0, time.perf_counter() - asked - (sum(phase.startups) - before)))
            phase.computes.append(0.0)
            phase.samples.append(batch_samples(batch, loader.batch_size))
        self._recorder.end(watched)
        return phase


def endless(phase: Phase, begin: Callable[[], Iterator[Any]], inner: Iterator[Any]) -> Iterator[Any]:
    """Batches of one epoch after the other; their starts are noted in the phase."""
    while True:
        yield from inner  # of which the actual phase may have left nothing
        phase.epochs_ended += 1
        started = time.perf_counter()
        del inner  # with it torch ends its workers, which those forked now would keep alive
        inner = begin()
        first = next(inner, None)
        if first is None:
            return
        phase.startups.append(time.perf_counter() - started)
        yield first


def waiting_share(looks: list[dict[str, Any]]) -> float:
    """Share of the time to make samples, while the loader is alone, in which it waits."""
    rows = [look["stages"].get("fetch", {}) for look in looks if look["phase"] == SUPPLY]
    busy = [row for stages in rows for key, row in stages.items() if key not in ("idle", "start", "lock")]
    return float(sum(row[3] for row in busy) / max(1e-9, sum(row[2] for row in busy)))


def worker_threads(looks: list[dict[str, Any]]) -> int:
    """Number of threads of all workers, or 0 if threads that Python does not know do little."""
    cpu = sum(look["cpu_seconds"] for look in looks)
    native = sum(look["native_cpu_seconds"] for look in looks)
    return sum(1 + look["native_threads"] for look in looks) if native > NATIVE_THAT_MATTERS * cpu else 0


def synchronise() -> None:
    """Waits for the device."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
