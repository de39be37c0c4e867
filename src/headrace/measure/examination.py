"""A training loop, examined from inside its own loader: as it is, the step alone, the loader alone.

The script's loop stays the driver. Its loader gives it batches as always for a while (*actual*), then the
same few batches again and again (*demand*: what the step would do if loading cost nothing). After that the
loop gets nothing more, and batches are taken from the loader as fast as it makes them (*supply*), with its
own settings and with others.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from headrace._machine import usable_cores
from headrace.measure.device_profile import Event, device_facts, profiling
from headrace.measure.observed import (
    ACTUAL,
    DEMAND,
    EXAMINED,
    GAIN_THAT_COUNTS,
    LOOP,
    SUPPLY,
    LoaderFacts,
    Loop,
    Observation,
    Phase,
)
from headrace.measure.processes import Times, children_memory, own_memory, times, wait_until_quiet
from headrace.measure.settings import name_of, with_settings
from headrace.measure.subject import (
    batch_samples,
    clone,
    describe,
    is_headrace,
    more_workers,
    nbytes,
    own_stages,
    prefetched,
    stages_between,
    where_from,
)

WARM_STEPS = 3  # the first ones allocate, compile and choose kernels
WARM_SECONDS = 8.0  # to use up what was ready before the first step
LEAST_STEPS, LEAST_SECONDS, MOST_SECONDS = 20, 4.0, 20.0
DEMAND_SECONDS, SLOW_DEMAND_SECONDS = 2.0, 8.0
SUPPLY_SECONDS, SLOW_SUPPLY_SECONDS = 2.0, 6.0
KEPT_BATCHES = 4
PROFILED_STEPS = 6
# Numbers of workers are tried upwards until so many in a row brought less than GAIN_THAT_COUNTS.
TRIES_IN_VAIN = 2
# A loader that supplies so many times the demand needs no other settings.
AMPLE = 1.5
# Nothing more is tried so long after the examination began, which is to take a minute at most.
LAST_TRIAL_SECONDS = 40.0
# On a machine of which other processes use this share of the cores, probes are repeated.
BUSY_SHARE = 0.25
# Share of the workers' processor time that threads of OpenMP, OpenCV and the like must take to be a cause.
NATIVE_THAT_MATTERS = 0.15
# Share of the time that waiting for another loader, as of validation, must take to be examined.
LOOP_THAT_MATTERS = 0.05


class Enough(BaseException):
    """Ends the script: all is measured."""


@dataclass
class Goal:
    """What to measure.

    Attributes:
        steps: of the actual phase; None: as many as take a few seconds.
        actual_only: nothing after that.
    """

    steps: int | None = None
    actual_only: bool = False

    def reached(self, phase: Phase, seconds: float, began: int) -> bool:
        """Whether the actual phase is over, `seconds` after it began, in the `began`-th epoch of it."""
        steps = len(phase.computes)
        if phase.epochs_ended and began < 2 and seconds < MOST_SECONDS:
            return False  # what an epoch's start costs shows in the second
        if self.steps is not None:
            return steps >= self.steps
        return (steps >= LEAST_STEPS and seconds >= LEAST_SECONDS) or (steps >= 5 and seconds >= MOST_SECONDS)


@dataclass
class Watched:
    """One loader of the script, and how far its examination is.

    Attributes:
        loader: that the script made.
        begin: its own iter().
        where: it is iterated over, for the first time.
        times: when its phase began.
        loop: what was spent on it since the actual phase of any loader began, or since it was first used.
    """

    loader: DataLoader[Any]
    begin: Callable[[], Iterator[Any]]
    where: str
    phase: Phase = field(default_factory=lambda: Phase("warm-up"))
    kept: list[Any] = field(default_factory=list)
    batch_nbytes: int = 0
    first_batch_seconds: float = 0.0
    steps: int = 0
    times: Times = field(default_factory=times)
    loop: Loop = field(default_factory=lambda: Loop("", "", {}))


class Examination:
    """Of one script.

    Args:
        observation: what is measured goes there.
        goal: what to measure.
        announce: called with the name of each phase that begins.
        headrace: Headrace's DataLoader, to be tried in the place of torch's; None: it is not tried.
        counted: returns what the samplers have counted so far.
        decided: whether an observation on a busy machine suffices to tell the first cause from the second.
    """

    def __init__(
        self,
        observation: Observation,
        goal: Goal,
        announce: Callable[[str], None],
        headrace: type[DataLoader[Any]] | None,
        counted: Callable[[], list[dict[str, Any]]] = list,
        decided: Callable[[Observation], bool] = lambda _: True,
    ) -> None:
        self.observation = observation
        self.busy = False  # with loaders of its own
        self._goal = goal
        self._announce = announce
        self._headrace = headrace
        self._counted = counted
        self._decided = decided
        self._giving: list[Watched] = []  # whose batches the script is working on
        self._began = observation.began = time.perf_counter()
        self._watched: dict[int, Watched] = {}
        self._over = False

    def iterate(self, loader: DataLoader[Any], begin: Callable[[], Iterator[Any]]) -> WatchedIterator:
        """What the script gets in the place of iter(loader), which `begin` is."""
        if self._over:
            self._end()
        watched = self._watched.get(id(loader))
        if watched is None:
            where = where_from()
            facts = describe(loader, where, 0)
            watched = self._watched[id(loader)] = Watched(loader, begin, where)
            watched.loop = Loop(where, facts.code, facts.arguments)
        inner_began = time.perf_counter()
        with self._own_work():
            inner = begin()
        return WatchedIterator(inner, self._epoch(watched, inner, inner_began))

    def script_ended(self) -> None:
        """By itself: what can still be measured is."""
        if self._over or not self._watched:
            return
        watched = max(self._watched.values(), key=lambda one: one.phase.seconds)
        if not watched.phase.computes:
            return
        if watched.phase.name != ACTUAL:
            self.observation.notes.append(
                f"the script ended after {watched.steps} steps, the first ones included: give it more steps"
                " or epochs for surer figures"
            )
            watched.phase.name = ACTUAL
        self._end_phase(watched)
        self._note_loops(watched)
        if not self._goal.actual_only:
            self.observation.notes.append(
                "the script ended before its step was measured by itself: the demand is that of the steps as"
                " they were"
            )
            self._measure_supplies(watched, None)

    def _next(self, inner: Iterator[Any]) -> Any:
        with self._own_work():
            return next(inner)

    @contextmanager
    def _own_work(self) -> Iterator[None]:
        """Loaders that are iterated over meanwhile are parts of this one, or the examination's own."""
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    def _end(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)  # which waits for this thread, perhaps
        raise Enough("all is measured")

    def _describe(self, watched: Watched) -> LoaderFacts:
        facts = describe(watched.loader, watched.where, watched.batch_nbytes)
        facts.first_batch_seconds = watched.first_batch_seconds
        return facts

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def _epoch(self, watched: Watched, inner: Iterator[Any], began: float) -> Iterator[Any]:
        """Batches for the script, in whichever phase."""
        try:
            batch = self._next(inner)
        except StopIteration:
            return
        self._enter(watched)
        if not self.observation.memory:
            own = own_memory(os.getpid())
            self.observation.memory = {"main_at_first": own, "workers_at_first": children_memory()}
        seconds = time.perf_counter() - began
        watched.loop.loops += 1
        watched.loop.waits += seconds
        watched.phase.startups.append(seconds)
        watched.first_batch_seconds = watched.first_batch_seconds or seconds
        wait = 0.0
        while True:
            yield from self._step(watched, batch, wait)
            if self._giving:  # a loop within another loader's step, as for validation: the other is examined
                pass
            elif watched.phase.name == ACTUAL and self._is_over(watched):
                yield from self._rest(watched, inner)
            elif watched.phase.name == "warm-up" and self._is_warm(watched):
                self._begin_phase(watched, ACTUAL)
                for one in self._watched.values():
                    one.loop = Loop(one.loop.where, one.loop.code, one.loop.arguments)
            asked = time.perf_counter()
            try:
                batch = self._next(inner)
            except StopIteration:
                watched.phase.epochs_ended += 1
                return
            wait = time.perf_counter() - asked
            watched.loop.waits += wait

    def _step(self, watched: Watched, batch: Any, wait: float) -> Iterator[Any]:
        phase = watched.phase
        if phase.name == "warm-up" and not self._giving:
            watched.kept = [*watched.kept[1 - KEPT_BATCHES :], clone(batch)]
        samples = batch_samples(batch, watched.loader.batch_size)
        watched.batch_nbytes = watched.batch_nbytes or nbytes(batch)
        phase.steps_at.append(self._now() - wait)
        given, elsewhere = time.perf_counter(), self._elsewhere(watched)
        self._giving.append(watched)
        try:
            yield batch
        finally:
            self._giving.remove(watched)
        compute = time.perf_counter() - given - (self._elsewhere(watched) - elsewhere)
        phase.computes.append(compute)
        phase.waits.append(wait)
        phase.samples.append(samples)
        watched.steps += 1
        watched.loop.batches += 1
        watched.loop.samples += samples
        watched.loop.computes += compute

    def _elsewhere(self, watched: Watched) -> float:
        """Seconds spent on loops over other loaders so far."""
        return sum(one.loop.seconds for one in self._watched.values() if one is not watched)

    def _enter(self, watched: Watched) -> None:
        if not watched.phase.began:
            self._begin_phase(watched, watched.phase.name)

    def _is_warm(self, watched: Watched) -> bool:
        phase, ahead = watched.phase, prefetched(watched.loader)
        steps = len(phase.computes)
        return steps >= WARM_STEPS and (steps >= 2 * ahead or self._now() - phase.began >= WARM_SECONDS)

    def _is_over(self, watched: Watched) -> bool:
        phase = watched.phase
        # The epoch that the phase began in was begun before.
        return self._goal.reached(phase, self._now() - phase.began, len(phase.startups) + 1)

    def _rest(self, watched: Watched, inner: Iterator[Any]) -> Iterator[Any]:
        """All phases after the actual one; ends the script."""
        self._end_phase(watched)
        self._note_loops(watched)
        if not self._goal.actual_only:
            wait_until_quiet()
            began = self._now()
            yield from self._demands(watched)
            if torch.accelerator.is_available():
                yield from self._profiled(watched)
            self._measure_supplies(watched, inner)
            while not self._is_settled(began):
                began = self._now()
                yield from self._demands(watched)
                self._measure_supplies(watched, None)
        self._over = True
        self.observation.ended = EXAMINED
        self._end()

    def _is_settled(self, began: float) -> bool:
        """Whether probes need not be repeated: the machine is free, one cause is ahead, or the time does not
        suffice for another round, as long as the last one, which began then."""
        busy = [phase.others for phase in self.observation.phases]
        if 2 * self._now() - began > LAST_TRIAL_SECONDS or sum(busy) < BUSY_SHARE * usable_cores() * len(
            busy
        ):
            return True
        self.observation.looks = self._counted()
        return self._decided(self.observation)

    def _demands(self, watched: Watched) -> Iterator[Any]:
        """The step alone; where its operators use more threads than there are cores, also with fewer."""
        yield from self._demand(watched, {})
        threads, cores = torch.get_num_threads(), usable_cores()
        if threads > cores:
            torch.set_num_threads(cores)
            yield from self._demand(watched, {"threads": cores})
            torch.set_num_threads(threads)

    def _demand(self, watched: Watched, settings: dict[str, Any]) -> Iterator[Any]:
        phase = self._begin_phase(watched, name_of(DEMAND, settings), settings)
        samples = [batch_samples(batch, watched.loader.batch_size) for batch in watched.kept]
        for number in itertools.count():
            seconds = self._now() - phase.began
            if seconds >= (DEMAND_SECONDS if number >= 2 * KEPT_BATCHES else SLOW_DEMAND_SECONDS):
                break
            which = number % len(watched.kept)
            batch = clone(watched.kept[which])  # its time is neither waited for nor computed
            phase.steps_at.append(self._now())
            given, elsewhere = time.perf_counter(), self._elsewhere(watched)
            self._giving.append(watched)
            yield batch
            self._giving.remove(watched)
            phase.computes.append(time.perf_counter() - given - (self._elsewhere(watched) - elsewhere))
            phase.waits.append(0.0)
            phase.samples.append(samples[which])
        self._end_phase(watched)

    def _profiled(self, watched: Watched) -> Iterator[Any]:
        """A few repeated batches under the profiler; their times are its own, and not kept."""
        self._announce("profile")
        events: list[Event] = []
        with profiling(events.extend):
            for number in range(PROFILED_STEPS):
                yield clone(watched.kept[number % len(watched.kept)])
            synchronise()
        kind = torch.accelerator.current_accelerator()
        name = str(kind) if kind is None or kind.type != "cuda" else torch.cuda.get_device_name()
        device = device_facts(events, PROFILED_STEPS, watched.batch_nbytes, name)
        if torch.cuda.is_available():
            device.memory_peak = torch.cuda.max_memory_reserved()
            device.memory_total = torch.cuda.get_device_properties().total_memory
        self.observation.device = device

    def _measure_supplies(self, watched: Watched, inner: Iterator[Any] | None) -> None:
        with self._own_work():
            before = own_stages(watched.loader)
            self._supply(watched, {}, watched.begin, inner)
            supply = self.observation.phase(SUPPLY)
            if self.observation.loader is None or supply is None:
                return
            self.observation.loader.stages = stages_between(before, own_stages(watched.loader))
            demand = self.observation.phase(DEMAND) or self.observation.phase(ACTUAL)
            wanted = sum(demand.samples) / max(1e-9, sum(demand.computes)) if demand else 0.0
            if supply.samples_per_second < AMPLE * wanted:
                self._try_others(watched, supply, wanted)
            for loop in self.observation.loops:
                self._supply_loop(loop)

    def _note_loops(self, watched: Watched) -> None:
        """Records what was spent on other loaders in the phase that has just ended."""
        others = (one.loop for one in self._watched.values() if one is not watched)
        self.observation.loops += [replace(loop) for loop in others if loop.batches]

    def _supply_loop(self, loop: Loop) -> None:
        """The loader of a loop alone, as it is and with a worker per core, if waiting for it matters."""
        whole = sum(phase.ended - phase.began for phase in self.observation.phases if phase.name == ACTUAL)
        watched = next((one for one in self._watched.values() if one.where == loop.where), None)
        iterable = watched is not None and isinstance(
            watched.loader.dataset, torch.utils.data.IterableDataset
        )
        if (
            watched is None
            or loop.waits < LOOP_THAT_MATTERS * whole
            or iterable
            or is_headrace(watched.loader)
        ):
            return
        for workers in sorted({watched.loader.num_workers, usable_cores()}):
            settings = {"loader": {"num_workers": workers}}
            phase = self._try(watched, settings, f"{LOOP} {loop.where}")
            if phase is not None and phase.seconds > 0:
                cpu = (phase.cpu_seconds + phase.worker_cpu_seconds) / sum(phase.samples)
                loop.supplies[str(workers)] = [1 / phase.samples_per_second, cpu]

    def _try_others(self, watched: Watched, supply: Phase, wanted: float) -> None:
        # One worker needs no more than to be as fast as none: it works beside the step.
        loader, in_vain = watched.loader, 0
        best = supply.samples_per_second if watched.loader.num_workers else 0.0
        ours = is_headrace(loader)
        if isinstance(loader.dataset, torch.utils.data.IterableDataset):
            self.observation.notes.append(
                "other loaders weren't tried: of an IterableDataset each worker may give all samples again"
            )
            return
        if not ours and loader.num_workers and self._workers_start_threads():
            self._try(watched, {"worker_threads": 1})
        for workers in () if ours else more_workers(loader.num_workers):
            rate = self._rate_of(watched, {"loader": {"num_workers": workers}})
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

    def _workers_start_threads(self) -> bool:
        """Whether the workers compute on more threads than there are cores."""
        looks = [look for look in self._counted() if look["role"] == "worker" and look["phase"] == SUPPLY]
        return worker_threads(looks) > usable_cores()

    def _rate_of(self, watched: Watched, settings: dict[str, Any]) -> float:
        phase = self._try(watched, settings)
        return 0.0 if phase is None else phase.samples_per_second

    def _try(self, watched: Watched, settings: dict[str, Any], kind: str = SUPPLY) -> Phase | None:
        if self._now() > LAST_TRIAL_SECONDS:
            note = f"{name_of('the loader', settings)} was not tried: the others took too long"
            self.observation.notes += [note] if note not in self.observation.notes else []
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, of more workers than cores: that is what is tried
                other = with_settings(watched.loader, settings, self._headrace)
                return self._supply(watched, settings, lambda: iter(other), None, kind)
        except Exception as error:  # a loader of the user's own making may refuse in its own way
            reason = str(error).strip().rpartition("\n")[2]  # after a worker's traceback
            self.observation.notes.append(f"{name_of('the loader', settings)} can't be tried: {reason}")
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
        batches = self._endless(phase, begin, inner)
        for number in range(skip):
            next(batches, None)
            if number == 0 and not phase.startups and settings:
                phase.startups.append(time.perf_counter() - started)
            if time.perf_counter() - started > SLOW_SUPPLY_SECONDS:
                break
        self._begin_phase(watched, phase.name, settings, phase)
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
        self._end_phase(watched)
        return phase

    def _pulled_enough(self, phase: Phase, least: int) -> bool:
        seconds, batches = self._now() - phase.began, len(phase.waits)
        if seconds >= SLOW_SUPPLY_SECONDS:
            return batches >= 2
        return seconds >= SUPPLY_SECONDS and batches >= least

    def _endless(
        self, phase: Phase, begin: Callable[[], Iterator[Any]], inner: Iterator[Any]
    ) -> Iterator[Any]:
        while True:
            empty = True
            for batch in inner:
                empty = False
                yield batch
            if empty:
                return
            phase.epochs_ended += 1
            started = time.perf_counter()
            del inner  # with it torch ends its workers, which those forked now would keep alive
            inner = begin()
            first = next(inner, None)
            if first is None:
                return
            phase.startups.append(time.perf_counter() - started)
            yield first

    def _begin_phase(
        self,
        watched: Watched,
        name: str,
        settings: dict[str, Any] | None = None,
        phase: Phase | None = None,
    ) -> Phase:
        synchronise()
        watched.phase = phase or Phase(name, settings or {})
        if name in (ACTUAL, SUPPLY):
            watched.phase.worker_memory.append(children_memory())
        watched.phase.began = self._now()
        watched.times = times()
        # A loader that is begun meanwhile, as for validation, is no phase of the one before.
        if len(self._watched) == 1 or name != "warm-up":
            self._announce(name)
        return watched.phase

    def _end_phase(self, watched: Watched) -> None:
        synchronise()
        phase, spent = watched.phase, times().since(watched.times)
        phase.ended = self._now()
        if phase.name in (ACTUAL, SUPPLY):
            phase.worker_memory.append(children_memory())
        phase.cpu_seconds, phase.worker_cpu_seconds = spent.own, spent.children
        phase.others = max(0.0, spent.machine - spent.own - spent.children) / max(1e-9, spent.wall)
        phase.load = os.getloadavg()[0]
        self._announce("")
        if self.observation.loader is None:  # it is the first that has been measured, and the only one
            self.observation.loader = self._describe(watched)
        known = next((one for one in self.observation.phases if one.name == phase.name), None)
        if known is None or phase.name.startswith(LOOP):
            self.observation.phases.append(phase)
        else:
            known.extend(phase)


class WatchedIterator(Iterator[Any]):
    """What the script iterates over; all else that it asks for is its own iterator's."""

    def __init__(self, inner: Iterator[Any], batches: Iterator[Any]) -> None:
        self._inner = inner
        self._batches = batches

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def is_uneven(phase: Phase) -> bool:
    """Whether a few of its waits hold much of the time: a tenth of them half of it."""
    waits = sorted(phase.waits, reverse=True)
    return sum(waits[: max(1, len(waits) // 10)]) > 0.5 * sum(waits)


def worker_threads(looks: list[dict[str, Any]]) -> int:
    """Threads that all workers compute on, if those that Python does not know do much of it; else 0."""
    cpu = sum(look["cpu_seconds"] for look in looks)
    native = sum(look["native_cpu_seconds"] for look in looks)
    return sum(1 + look["native_threads"] for look in looks) if native > NATIVE_THAT_MATTERS * cpu else 0


def synchronise() -> None:
    """Waits for the device, so that what was asked of it counts in the phase that asked."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
