"""Loaders alone: batches taken as fast as they are made, with the script's own settings and with others."""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from headrace_doctor.machine import affine_cores, usable_cores
from headrace_doctor.measure.observed import (
    ACTUAL,
    DEMAND,
    GAIN_THAT_COUNTS,
    LOOP,
    STALL_THAT_MATTERS,
    SUPPLY,
    Loop,
    Observation,
    Phase,
)
from headrace_doctor.measure.processes import children_memory, times
from headrace_doctor.measure.sampler import AGAIN
from headrace_doctor.measure.subject import (
    Watched,
    batch_samples,
    is_headrace,
    more_workers,
    name_of,
    own_stages,
    prefetched,
    stages_between,
    with_settings,
)

SUPPLY_SECONDS, SLOW_SUPPLY_SECONDS = 2.0, 6.0
# Numbers of workers are tried upwards until so many in a row brought less than GAIN_THAT_COUNTS.
TRIES_IN_VAIN = 2
# A loader that supplies so many times the demand needs no other settings, unless the step waits all the same.
AMPLE = 1.5
# No other loader is measured so long after the examination began, which is to take a minute at most; of what
# comes before the end of the actual phase, as imports, no more than so much counts.
LAST_SUPPLY_SECONDS, MOST_BEFORE_SECONDS = 35.0, 25.0
# Share of the workers' processor time that threads of OpenMP, OpenCV and the like must take to be a cause.
NATIVE_THAT_MATTERS = 0.15
# Share of the time that waiting for another loader, as of validation, must take to be examined.
LOOP_THAT_MATTERS = 0.05


class Recorder:
    """Begins and ends the phases of an observation.

    Args:
        observation: the phases that end are added to it.
        announce: called with the name of each phase that begins, and with "" when it ends.
    """

    def __init__(self, observation: Observation, announce: Callable[[str], None]) -> None:
        self.observation = observation
        self._announce = announce
        self._announced = ""
        self._restarts: Counter[str] = Counter()
        self._began = observation.began = time.perf_counter()
        self._late = 0.0

    def now(self) -> float:
        """Seconds since the examination began."""
        return time.perf_counter() - self._began

    def spent(self) -> float:
        """The same without what a slow start, or slow steps, took of them: what limits are for."""
        return self.now() - self._late

    def announce(self, name: str) -> None:
        """Tells the samplers which phase runs; "": none."""
        restarts = self._restarts[name]
        self._announced = name
        self._announce(f"{name}{AGAIN}{restarts}" if restarts else name)

    def begin(self, watched: Watched, phase: Phase, *, announced: bool = True) -> None:
        """Begins a phase of a loader; one that lasts already begins again."""
        synchronise()
        if announced and phase.name == self._announced:
            self._restarts[phase.name] += 1
        watched.phase = phase
        if phase.name in (ACTUAL, SUPPLY):
            phase.worker_memory.append(children_memory())
        phase.began = self.now()
        watched.times = times()
        if announced:
            self.announce(phase.name)

    def end(self, watched: Watched) -> None:
        """Ends the loader's phase, and adds it to the observation."""
        synchronise()
        phase, spent = watched.phase, times().since(watched.times)
        phase.ended = self.now()
        if phase.name == ACTUAL:
            self._late = max(0.0, phase.ended - MOST_BEFORE_SECONDS)
        if phase.name in (ACTUAL, SUPPLY):
            phase.worker_memory.append(children_memory())
        phase.cpu_seconds, phase.worker_cpu_seconds = spent.own, spent.children
        others = max(0.0, spent.machine - spent.own - spent.children) / max(1e-9, spent.wall)
        # Others may have the cores that a cgroup's quota doesn't let this process use.
        phase.others = max(0.0, others - (affine_cores() - usable_cores()))
        phase.load = os.getloadavg()[0]
        self.announce("")
        if self.observation.loader is None:  # it is the first that has been measured, and the only one
            self.observation.loader = watched.facts
        known = next((one for one in self.observation.phases if one.name == phase.name), None)
        if known is None or phase.name.startswith(LOOP):
            self.observation.phases.append(phase)
        else:
            known.extend(phase)


class Supplies:
    """Measures loaders alone.

    Args:
        recorder: of the phases.
        headrace: Headrace's DataLoader, to be measured, too; None: it is not.
        counted: returns what the samplers have counted so far.
    """

    def __init__(
        self,
        recorder: Recorder,
        headrace: type[DataLoader[Any]] | None,
        counted: Callable[[], list[dict[str, Any]]],
    ) -> None:
        self._recorder = recorder
        self._observation = recorder.observation
        self._headrace = headrace
        self._counted = counted

    def measure(self, watched: Watched, inner: Iterator[Any] | None) -> None:
        """The loader as it is and, where the step waits for it, with other settings.

        Args:
            watched: the loader.
            inner: its batches in use; None: from a new iter().
        """
        before = own_stages(watched.loader)
        self._supply(watched, {}, watched.begin, inner)
        supply, actual = self._observation.phase(SUPPLY), self._observation.phase(ACTUAL)
        if self._observation.loader is None or supply is None or actual is None:
            return
        self._observation.loader.stages = stages_between(before, own_stages(watched.loader))
        demand = self._observation.phase(DEMAND) or actual
        wanted = sum(demand.samples) / max(1e-9, sum(demand.computes))
        if supply.samples_per_second < AMPLE * wanted or actual.stall >= STALL_THAT_MATTERS:
            self._try_others(watched, supply, wanted)

    def measure_loop(self, watched: Watched, loop: Loop) -> None:
        """The loader of a loop, if waiting for it matters: without workers if it has none, with as many as
        it has, and with one per core; they stay from loop to loop."""
        whole = sum(phase.ended - phase.began for phase in self._observation.phases if phase.name == ACTUAL)
        loader = watched.loader
        iterable = isinstance(loader.dataset, torch.utils.data.IterableDataset)
        if loop.waits < LOOP_THAT_MATTERS * whole or iterable or is_headrace(loader):
            return
        for workers in sorted({loader.num_workers, usable_cores()}):
            stay = {"persistent_workers": True} if workers else {}
            settings = {"loader": {"num_workers": workers, **stay}}
            phase = self._try(watched, settings, f"{LOOP} {loop.where}")
            if phase is not None and phase.seconds > 0:
                cpu = (phase.cpu_seconds + phase.worker_cpu_seconds) / sum(phase.samples)
                loop.supplies[str(workers)] = [1 / phase.samples_per_second, cpu]

    def _try_others(self, watched: Watched, supply: Phase, wanted: float) -> None:
        # One worker needs no more than to be as fast as none: it works beside the step.
        loader = watched.loader
        in_vain = 0
        best = supply.samples_per_second if watched.loader.num_workers else 0.0
        ours = is_headrace(loader)
        if isinstance(loader.dataset, torch.utils.data.IterableDataset):
            self._observation.notes.append(
                "other loaders weren't tried: of an IterableDataset each worker may give all samples again"
            )
            return
        if not ours and loader.num_workers:
            looks = [look for look in self._counted() if look["role"] == "worker" and look["phase"] == SUPPLY]
            if worker_threads(looks) > usable_cores():
                self._try(watched, {"worker_threads": 1})
        for workers in () if ours else more_workers(loader.num_workers):
            phase = self._try(watched, {"loader": {"num_workers": workers}})
            rate = phase.samples_per_second if phase else 0.0
            in_vain = 0 if rate > GAIN_THAT_COUNTS * best else in_vain + 1
            best = max(best, rate)
            if in_vain == TRIES_IN_VAIN or best > AMPLE * wanted:
                break
        if not ours and loader.num_workers and is_uneven(supply):
            self._try(watched, {"loader": {"prefetch_factor": 4 * (loader.prefetch_factor or 2)}})
            if hasattr(loader, "in_order"):
                self._try(watched, {"loader": {"in_order": False}})
        if not ours and self._headrace is not None:
            self._try(watched, {"headrace": True})

    def _try(self, watched: Watched, settings: dict[str, Any], kind: str = SUPPLY) -> Phase | None:
        if self._recorder.spent() > LAST_SUPPLY_SECONDS:
            note = f"{name_of('the loader', settings)} was not tried: the others took too long"
            self._observation.notes += [note] if note not in self._observation.notes else []
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, of more workers than cores: that is what is tried
                other = with_settings(watched.loader, settings, self._headrace)
                return self._supply(watched, settings, lambda: iter(other), None, kind)
        except Exception as error:  # a loader of the user's own making may refuse in its own way
            reason = last_line(error)
            self._observation.notes.append(f"{name_of('the loader', settings)} can't be tried: {reason}")
            return None

    def _supply(
        self,
        watched: Watched,
        settings: dict[str, Any],
        begin: Callable[[], Iterator[Any]],
        inner: Iterator[Any] | None,
        kind: str = SUPPLY,
    ) -> Phase:
        """The loader alone, without the batches that it had prefetched."""
        phase = Phase(name_of(kind, settings), settings)
        ahead = prefetched(watched.loader, settings)
        started = time.perf_counter()
        inner, skip = (begin(), ahead + 1) if inner is None else (inner, ahead)
        batches = endless(phase, begin, inner)
        for number in range(skip):
            next(batches, None)
            if number == 0 and not phase.startups and settings:
                phase.startups.append(time.perf_counter() - started)
            if time.perf_counter() - started > SLOW_SUPPLY_SECONDS:
                break
        self._recorder.begin(watched, phase)
        least = max(8, 4 * ahead // 2)  # several rounds of all workers, two batches each
        while not self._pulled_enough(phase, least):
            asked = time.perf_counter()
            before = sum(phase.startups)
            batch = next(batches, None)
            if batch is None:
                break
            # The start of an epoch isn't part of the rate.
            phase.waits.append(max(0.0, time.perf_counter() - asked - (sum(phase.startups) - before)))
            phase.computes.append(0.0)
            phase.samples.append(batch_samples(batch, watched.loader.batch_size))
        self._recorder.end(watched)
        return phase

    def _pulled_enough(self, phase: Phase, least: int) -> bool:
        seconds, batches = self._recorder.now() - phase.began, len(phase.waits)
        if seconds >= SLOW_SUPPLY_SECONDS:
            return batches >= 2
        return seconds >= SUPPLY_SECONDS and batches >= least


def endless(phase: Phase, begin: Callable[[], Iterator[Any]], inner: Iterator[Any]) -> Iterator[Any]:
    """Batches of one epoch after the other, whose starts are noted in the phase."""
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


def is_uneven(phase: Phase) -> bool:
    """Whether a few of its waits hold much of the time: a tenth of them half of it."""
    waits = sorted(phase.waits, reverse=True)
    return sum(waits[: max(1, len(waits) // 10)]) > 0.5 * sum(waits)


def worker_threads(looks: list[dict[str, Any]]) -> int:
    """Threads that all workers compute on, if those that Python does not know do much of it; else 0."""
    cpu = sum(look["cpu_seconds"] for look in looks)
    native = sum(look["native_cpu_seconds"] for look in looks)
    return sum(1 + look["native_threads"] for look in looks) if native > NATIVE_THAT_MATTERS * cpu else 0


def last_line(error: Exception) -> str:
    """Of its message: what comes after a worker's traceback."""
    return str(error).strip().rpartition("\n")[2]


def synchronise() -> None:
    """Waits for the device, so that what was asked of it counts in the phase that asked."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
