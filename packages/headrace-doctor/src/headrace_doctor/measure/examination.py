"""Examines a training loop from inside its own loader.

The script's loop keeps running. Its loader gives it batches as always (*actual*), then the same few
batches again and again (*demand*: the step if loading cost nothing). After that the loop gets nothing more,
and batches are taken from the loader as fast as it makes them (*supply*), with its own settings and others.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from headrace_doctor.machine import usable_cores
from headrace_doctor.measure.device_profile import device_facts, profiling
from headrace_doctor.measure.observed import (
    ACTUAL,
    BETWEEN,
    DEMAND,
    EXAMINED,
    KEPT_BATCHES,
    PARTS,
    Loop,
    Observation,
    Phase,
)
from headrace_doctor.measure.processes import children_memory, own_memory, wait_until_quiet
from headrace_doctor.measure.stages import Place
from headrace_doctor.measure.subject import (
    WARM_UP,
    Epoch,
    Origin,
    Watched,
    batch_samples,
    clone,
    describe,
    made_by_trainer,
    most_bytes,
    name_of,
    nbytes,
    origin_of,
    prefetched,
    where_from,
)
from headrace_doctor.measure.supplies import Recorder, Supplies, synchronise

WARM_STEPS = 3  # the first ones allocate, compile and choose kernels
WARM_SECONDS = 8.0  # to use up what was ready before the first step
LEAST_STEPS, LEAST_SECONDS = 20, 4.0
FEW_STEPS, SLOW_SECONDS = 5, 12.0  # if steps take long
MOST_SECONDS = 20.0  # to see an epoch start, or the end of a loop over another loader
DEMAND_SECONDS, SLOW_DEMAND_SECONDS, PARTS_SECONDS = 2.0, 8.0, 1.5
PROFILED_STEPS = 6
LEAST_EPOCH_SECONDS = 0.05  # to look at what follows it: a phase is announced by a file
END = object()  # of an epoch


class Enough(BaseException):
    """Ends the script: all is measured."""


class Examination:
    """Examines one script: `steps` and `brief` are those of `examine.Job`, `counted` that of `Supplies`."""

    def __init__(
        self,
        observation: Observation,
        steps: int | None,
        announce: Callable[[str], None],
        counted: Callable[[], list[dict[str, Any]]],
        brief: bool,
    ) -> None:
        self.observation = observation
        self.busy = False  # with loaders of its own
        self._steps = steps
        self._brief = brief
        self._recorder = Recorder(observation, announce)
        self._supplies = Supplies(self._recorder, counted)
        self._watched: dict[int, Watched] = {}  # by the id of its loader
        self._origins: dict[int, Origin] = {}  # of loaders, by their id
        self._older: dict[int, int] = {}  # the id of the loader in whose place one was made, by that one's id
        self._epochs: list[Epoch] = []  # over all loaders, in the order in which they began
        self._between: Watched | None = None  # the script is between two epochs of this one
        self._keeps = False  # whether the script keeps the last batch of an epoch until the next one begins
        self._giving: list[Watched] = []  # whose batches the script is working on
        self._subject: Watched | None = None  # the loader whose actual phase is over
        self._probes: Generator[Any, None, None] | None = None  # batches for the step alone
        self._left = False  # the script left its loop with the last of these
        self._loops = 0  # over other loaders, in this phase so far
        self._loops_over: list[tuple[Watched, Loop]] = []  # that the actual phase had
        self.over = False  # whether all is measured, and the script is to end

    def iterate(self, loader: DataLoader[Any], begin: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The iterator that the script gets in the place of that of `begin`."""
        if self.over:
            self._end()
        began = time.perf_counter()
        watched = self._watched.get(id(loader)) or self._replaced(loader)
        if watched is None:
            watched = Watched(loader, begin, describe(loader, where_from()))
            watched.origin = self._origins.get(id(loader))
            watched.facts.trainer = watched.origin is not None and made_by_trainer(watched.origin)
        self._watched[id(loader)] = watched
        watched.loader, watched.begin = loader, begin
        self._end_between(watched, began)
        with self._own_work():
            inner = begin()
        return self._batches(watched, inner, began)

    def made(self, loader: DataLoader[Any], places: tuple[Place, ...]) -> None:
        """Notes a loader that the script makes, with the stack of places that makes it."""
        if self.busy:
            return
        origin = self._origins[id(loader)] = origin_of(loader, places)
        self._older.pop(id(loader), None)
        same = (old for old, one in self._watched.items() if one.origin == origin)
        for old in same:  # the first that was iterated over and has no successor
            if old not in self._older.values():
                self._older[id(loader)] = old
                break

    def _replaced(self, loader: DataLoader[Any]) -> Watched | None:
        """The loader in whose place this one was made, as for each epoch, or None if there is none."""
        older = self._watched.pop(self._older.pop(id(loader), 0), None)
        if older is not None:
            older.facts.remade += 1
        return older

    def script_ended(self) -> None:
        """Measures what can still be measured of a script that ended by itself."""
        subject = self._subject
        if self.over:
            return
        if subject is None:
            subject = max(self._watched.values(), key=lambda one: one.phase.seconds, default=None)
            if subject is None or not subject.phase.computes:
                return
            if subject.phase.name != ACTUAL:
                self.observation.notes.append(
                    f"the script ended after {subject.steps} steps, the first ones included: give it more"
                    " steps or epochs for surer figures"
                )
                subject.phase.name = ACTUAL
            self._end_actual(subject)
        if not self._brief:
            if self.observation.phase(DEMAND) is None:
                self.observation.notes.append(
                    "the script ended before its step was measured by itself: demand is that of usual steps"
                )
            self._measure_supplies(subject, None)

    def close(self) -> None:
        """Leaves the process as it was, whatever ended the script."""
        self.over = True
        with suppress(ValueError):  # another thread is amid them
            if self._probes is not None:
                self._probes.close()

    @contextmanager
    def _own_work(self) -> Iterator[None]:
        """Keeps loaders that are iterated over meanwhile, such as parts of this one, from being examined."""
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    def _end(self) -> None:
        self.over = True
        if threading.current_thread() is not threading.main_thread():
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)  # which waits for this thread, perhaps
        raise Enough("all is measured")

    def _batches(self, watched: Watched, inner: Iterator[Any], began: float) -> Iterator[Any]:
        """The batches of one epoch, for the script."""
        try:
            with self._own_work():
                batch = next(inner)
        except StopIteration:
            return
        wait = time.perf_counter() - began
        self._begin_epoch(watched, wait)
        loop = watched.new_loop()
        epoch = Epoch(watched, began, loop)
        self._epochs.append(epoch)
        loop.loops, loop.waits, loop.gradients = 1, wait, torch.is_grad_enabled()
        between, number, wait = self._pause_between(), watched.epochs, 0.0
        try:
            while True:
                yield from self._step(watched, batch, wait, loop.batches + 1 == watched.facts.batches)
                loop.batches += 1
                loop.samples += watched.phase.samples[-1]
                loop.computes += watched.phase.computes[-1]
                epoch.in_step |= any(one.given > began for one in self._giving if one is not watched)
                if not watched.nested and self._subject in (None, watched):
                    yield from self._after_step(watched, inner)
                asked = time.perf_counter()
                with self._own_work():
                    batch = next(inner, END)
                if batch is END:
                    watched.phase.epochs_ended += 1
                    return
                wait = time.perf_counter() - asked
                loop.waits += wait
        except GeneratorExit:  # the script left its loop, as it will in other epochs
            if watched.epochs == number:  # or the next one has started
                self._note_kept(watched)
            if self._subject is None:
                watched.facts.batches = loop.batches + 1
                watched.phase.epochs_ended += 1
            raise
        finally:
            if between is not None and between.left is not None:  # or its next epoch began
                self._announce_between(between)
            if watched.epochs == number:  # or its successor began before the script dropped it
                self._begin_between(watched, time.perf_counter() - began)

    def _begin_epoch(self, watched: Watched, wait: float) -> None:
        """Notes the first batch of an epoch, which came after `wait` seconds."""
        gradients = torch.is_grad_enabled()
        watched.trains |= gradients
        # No training is within an evaluation: Lightning leaves that at its last batch until the next one.
        within = any(one is not watched and (one.trains or not gradients) for one in self._giving)
        beside = any(one.trains and one is not watched for one in self._watched.values())
        watched.nested = within or (not gradients and beside)
        if not watched.phase.began:
            watched.phase.began = self._recorder.now()
        if not self.observation.memory:
            own = own_memory(os.getpid())
            self.observation.memory = {"main_at_first": own, "workers_at_first": children_memory()}
        watched.phase.startups.append(wait)
        watched.facts.first_batch_seconds = watched.facts.first_batch_seconds or wait

    def _begin_between(self, watched: Watched, seconds: float) -> None:
        """Notes the end of an epoch of the actual phase, which took `seconds`."""
        if watched.phase.name == ACTUAL and not watched.nested:
            watched.left = watched.left or time.perf_counter()
            if seconds >= LEAST_EPOCH_SECONDS:
                self._announce_between(watched)

    def _end_between(self, watched: Watched, now: float) -> None:
        """Notes the beginning of an epoch, and the seconds since the one before it."""
        watched.epochs += 1
        phase = watched.phase
        if watched.left is None and watched in self._giving:
            self._note_kept(watched)
        if watched.left is not None and phase.name == ACTUAL and self._subject is None:
            elsewhere = self._elsewhere(watched, min(watched.left, watched.given))
            phase.between.append(max(0.0, now - watched.left - elsewhere))
        watched.left = None
        if self._between is watched:
            self._pause_between()

    def _note_kept(self, watched: Watched) -> None:
        """Notes when an epoch's last step ended whose batch the script kept, as Lightning does until the next
        epoch begins, or until its loader is ready."""
        if watched.phase.computes:
            watched.left = watched.given + statistics.median(watched.phase.computes)
            self._keeps |= time.perf_counter() - watched.left >= LEAST_EPOCH_SECONDS

    def _announce_between(self, watched: Watched) -> None:
        if self._subject is None and not self.over:
            self._between = watched
            self._recorder.announce(BETWEEN)

    def _pause_between(self) -> Watched | None:
        """Ends the time between epochs, if it is one, as for a loop over another loader. Returns whose."""
        watched, self._between = self._between, None
        if watched is not None:
            self._recorder.announce(watched.phase.name if self._subject is None else "")
        return watched

    def _step(self, watched: Watched, batch: Any, wait: float, last: bool) -> Iterator[Any]:
        phase = watched.phase
        # Steps 0, 1, 2, 4, 8, …: copies slow the steps that are to use up what was ready first.
        if phase.name == WARM_UP and len(phase.computes).bit_count() < 2 and not watched.nested:
            watched.kept = [*watched.kept[1 - KEPT_BATCHES :], clone(batch)]
        samples = batch_samples(batch, watched.loader.batch_size)
        watched.facts.batch_nbytes = watched.facts.batch_nbytes or nbytes(batch)
        if not watched.steps and watched.facts.kind == "torch" and watched.facts.workers:
            watched.facts.most_bytes = most_bytes(batch)
        began = self._recorder.now() - wait
        if last and self._keeps and not watched.nested:
            self._announce_between(watched)
        seconds = yield from self._given(watched, batch)
        if self._between is watched:  # the epoch continues
            self._pause_between()
        phase.add(began, wait, seconds, samples)
        watched.steps += 1

    def _given(self, watched: Watched, batch: Any) -> Generator[Any, None, float]:
        """Gives the script a batch. Returns the seconds until it asks for the next, without other loops."""
        given = watched.given = time.perf_counter()
        self._giving.append(watched)
        try:
            yield batch
        finally:
            self._giving.remove(watched)
        if self._probes is not None:
            synchronise()  # or the device would work on while the next batch is copied
        return max(0.0, time.perf_counter() - given - self._elsewhere(watched, given))

    def _after_step(self, watched: Watched, inner: Iterator[Any]) -> Iterator[Any]:
        """Begins the next phase if one is over; ends the script if that was the last."""
        if self._subject is None:
            before, self._loops = self._loops, len(self._loops_since(watched))
            if watched.phase.name == WARM_UP:
                if self._is_warm(watched):
                    self._recorder.begin(watched, Phase(ACTUAL))
                    self._loops = 0
                return
            if not self._is_over(watched, self._loops > before):
                return
            self._end_actual(watched)
            if not self._brief:
                self._probes = self._alone(watched, inner)
        yield from self._probed(watched)
        self.observation.ended = EXAMINED
        self.observation.threads = torch.get_num_threads()
        self._end()

    def _loops_since(self, watched: Watched) -> list[Epoch]:
        """Loops over other loaders that began in this phase of one, but not those in lock-step with it."""
        since = self.observation.began + watched.phase.began
        latest = itertools.takewhile(lambda one: one.began >= since, reversed(self._epochs))
        return [one for one in latest if one.watched is not watched and one.loop.batches and not one.in_step]

    def _elsewhere(self, watched: Watched, since: float) -> float:
        """Seconds of loops over other loaders that began since then in this thread."""
        here = threading.get_ident()
        latest = itertools.takewhile(lambda one: one.began >= since, reversed(self._epochs))
        return sum(one.loop.seconds for one in latest if one.watched is not watched and one.thread == here)

    def _is_warm(self, watched: Watched) -> bool:
        steps, seconds = len(watched.phase.computes), self._recorder.now() - watched.phase.began
        return steps >= WARM_STEPS and (seconds >= WARM_SECONDS or steps >= 2 * prefetched(watched.loader))

    def _is_over(self, watched: Watched, looped: bool) -> bool:
        """Tells whether the actual phase has enough steps; it ends with a loop of another loader, if any."""
        phase = watched.phase
        seconds, steps = self._recorder.now() - phase.began, len(phase.computes)
        # What an epoch's start costs shows in the second: the one that the phase began in had started before.
        if phase.epochs_ended and not phase.startups and seconds < MOST_SECONDS:
            return False
        if self._steps is not None:
            enough = steps >= self._steps
        else:
            enough = steps >= LEAST_STEPS and seconds >= LEAST_SECONDS
            enough = enough or (steps >= FEW_STEPS and seconds >= SLOW_SECONDS)
        return enough and (looped or not self._loops or seconds >= MOST_SECONDS)

    def _end_actual(self, watched: Watched) -> None:
        self._recorder.end(watched)
        self._subject = watched
        for epoch in self._loops_since(watched):
            known = next((loop for one, loop in self._loops_over if one is epoch.watched), None)
            if known is None:
                self._loops_over.append((epoch.watched, replace(epoch.loop)))
            else:
                known.add(epoch.loop)
        self.observation.loops = [loop for _, loop in self._loops_over]

    def _probed(self, watched: Watched) -> Iterator[Any]:
        """The batches for the step alone; they go on in the next epoch if the script leaves its loop."""
        for batch in self._probes or ():
            self._left = True
            try:
                yield batch
                self._left = False
            finally:
                if self._left:
                    watched.phase = Phase("", began=self._recorder.now())  # its steps until then aren't kept
                    self._recorder.announce("")

    def _alone(self, watched: Watched, inner: Iterator[Any]) -> Generator[Any, None, None]:
        """The step and the loader, each by itself."""
        wait_until_quiet()
        yield from self._repeated(watched, DEMAND, DEMAND_SECONDS)
        cores, threads = usable_cores(), torch.get_num_threads()
        if threads > cores:
            torch.set_num_threads(cores)
            try:
                yield from self._repeated(watched, DEMAND, DEMAND_SECONDS, {"threads": cores})
            finally:
                torch.set_num_threads(threads)
        # Sampled often, which shows where its time goes.
        yield from self._repeated(watched, PARTS, PARTS_SECONDS)
        if torch.accelerator.is_available():
            yield from self._profiled(watched)
        self._measure_supplies(watched, inner)

    def _repeated(
        self, watched: Watched, kind: str, seconds: float, settings: dict[str, Any] | None = None
    ) -> Iterator[Any]:
        """A phase with the kept batches in turn, of `seconds`, or longer if two rounds take longer."""
        phase, away = Phase(name_of(kind, settings or {}), settings or {}), 0.0
        self._recorder.begin(watched, phase)
        for number in itertools.count():
            spent = self._recorder.now() - phase.began - away
            if spent >= (seconds if len(phase.computes) >= 2 * KEPT_BATCHES else SLOW_DEMAND_SECONDS):
                break
            kept = watched.kept[number % len(watched.kept)]
            batch = clone(kept)  # its time is neither waited for nor computed
            began = self._recorder.now()
            compute = yield from self._given(watched, batch)
            if self._left:  # the rest of that step can't be separated from what the script did elsewhere
                away += self._recorder.now() - began
                watched.phase = phase
                self._recorder.announce(phase.name)
                continue
            phase.add(began, 0.0, compute, batch_samples(kept, watched.loader.batch_size))
        self._recorder.end(watched)

    def _profiled(self, watched: Watched) -> Iterator[Any]:
        """A few repeated batches under the profiler; their times are its own, and not kept."""
        self._recorder.announce("profile")
        with profiling() as events:
            for number in range(PROFILED_STEPS):
                yield clone(watched.kept[number % len(watched.kept)])
                if self._left:
                    self.observation.notes.append("the script left its loop while its step was profiled")
                    return
            synchronise()
        device = device_facts(events, PROFILED_STEPS, watched.facts.batch_nbytes)
        if torch.cuda.is_available():
            device.memory_peak = torch.cuda.max_memory_reserved()
            device.memory_total = torch.cuda.get_device_properties().total_memory
        self.observation.device = device

    def _measure_supplies(self, watched: Watched, inner: Iterator[Any] | None) -> None:
        with self._own_work():
            self._supplies.measure(watched, inner, self._loops_over)
