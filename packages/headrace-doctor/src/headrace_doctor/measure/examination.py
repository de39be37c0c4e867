"""A training loop, examined from inside its own loader: as it is, step and loader alone, and changed.

The script's loop stays the driver. Its loader gives it batches as always for a while (*actual*), then the
same few batches again and again (*demand*: what the step would do if loading cost nothing). After that the
loop gets nothing for a while, and batches are taken from the loader as fast as it makes them (*supply*), with
its own settings and with others. In the end, the loop continues with the settings that promise most.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from headrace_doctor.machine import usable_cores
from headrace_doctor.measure.device_profile import device_facts, profiling
from headrace_doctor.measure.observed import (
    ACTUAL,
    DEMAND,
    EXAMINED,
    KEPT_BATCHES,
    PARTS,
    Loop,
    Observation,
    Phase,
)
from headrace_doctor.measure.processes import children_memory, own_memory, wait_until_quiet
from headrace_doctor.measure.subject import (
    Watched,
    WatchedIterator,
    Window,
    batch_samples,
    clone,
    describe,
    is_replaceable,
    name_of,
    nbytes,
    prefetched,
    where_from,
    with_settings,
)
from headrace_doctor.measure.supplies import LAST_SUPPLY_SECONDS, Recorder, Supplies, last_line, synchronise

WARM_UP = "warm-up"
WARM_STEPS = 3  # the first ones allocate, compile and choose kernels
WARM_SECONDS = 8.0  # to use up what was ready before the first step
LEAST_STEPS, LEAST_SECONDS, MOST_SECONDS = 20, 4.0, 20.0
MOST_TRIAL_SECONDS = 10.0
DEMAND_SECONDS, SLOW_DEMAND_SECONDS, PARTS_SECONDS = 2.0, 8.0, 1.5
PROFILED_STEPS = 6
# No change is tried so long after the examination began; see `Recorder.spent`.
LAST_TRIAL_SECONDS = 45.0
# On a machine of which other processes use this share of the cores, probes are repeated.
BUSY_SHARE = 0.25


class Enough(BaseException):
    """Ends the script: all is measured."""


class Examination:
    """Of one script.

    Args:
        observation: what is measured goes there.
        steps: of the actual phase; None: as many as take a few seconds.
        announce: called with the name of each phase that begins.
        headrace: Headrace's DataLoader, to be tried in the place of torch's; None: it is not tried.
        counted: returns what the samplers have counted so far.
        decided: whether an observation on a busy machine suffices to tell the first cause from the second.
        promising: (settings, where their loader is iterated over, "" for the examined one) of the change that
            an observation lets expect most of, if it has not been tried; None: nothing is to be tried.

    Attributes:
        brief: whether nothing is measured after the actual phase.
        save: called before each trial, with what is known if that kills the process, or never ends.
    """

    def __init__(
        self,
        observation: Observation,
        steps: int | None,
        announce: Callable[[str], None],
        headrace: type[DataLoader[Any]] | None,
        counted: Callable[[], list[dict[str, Any]]] = list,
        decided: Callable[[Observation], bool] = lambda _: True,
        promising: Callable[[Observation], tuple[dict[str, Any], str] | None] = lambda _: None,
    ) -> None:
        self.observation = observation
        self.save: Callable[[Observation], object] = lambda _: None
        self.brief = False
        self.busy = False  # with loaders of its own
        self._steps = steps
        self._headrace = headrace
        self._counted = counted
        self._decided = decided
        self._promising = promising
        self._giving: list[Watched] = []  # whose batches the script is working on
        self._recorder = Recorder(observation, announce)
        self._supplies = Supplies(self._recorder, headrace, counted)
        self._watched: dict[int, Watched] = {}
        self._others: list[tuple[Watched, Loop]] = []  # those of the observation's loops, with them
        self._subject: Watched | None = None  # whose actual phase is over, and with which changes are tried
        self._probes: Iterator[Any] = iter(())  # batches for the step alone, those that are still to be given
        self._left = False  # the script left its loop with the last of these
        self._tried: list[tuple[dict[str, Any], str]] = []
        self._changed: Watched | None = None  # with which the last of these is being tried
        self._threads = 0  # of operators, before others were set
        self._loops = 0  # over other loaders, in this phase so far
        # Where the phase began with the end of such a loop, and is to end with one: what was before.
        self._before: Window | None = None
        self._over = False

    def iterate(self, loader: DataLoader[Any], begin: Callable[[], Iterator[Any]]) -> WatchedIterator:
        """What the script gets in the place of iter(loader), which `begin` is."""
        if self._over:
            self._end()
        watched = self._watched.get(id(loader))
        if watched is None:
            watched = self._watched[id(loader)] = Watched(loader, begin, describe(loader, where_from()))
        watched.nested = not watched.companion and any(one is not watched for one in self._giving)
        inner_began = time.perf_counter()
        with self._own_work():
            inner = (watched.instead or begin)()
        return WatchedIterator(inner, self._epoch(watched, inner, inner_began))

    @property
    def is_trying(self) -> bool:
        """Whether the script runs with a change that is being tried."""
        return self._changed is not None

    def script_ended(self) -> None:
        """By itself: what can still be measured is."""
        subject = self._subject
        if self._over or not self._watched:
            return
        self._complete_window()
        if subject is not None and self.observation.ended == EXAMINED:
            enough = len(subject.phase.computes) >= LEAST_STEPS or self._is_over(subject, True)
            if self._changed is not None and subject.phase.name != WARM_UP and enough:
                self._end_trial(subject)
            self.restore()
            return
        if subject is None:
            subject = max(self._watched.values(), key=lambda one: one.phase.seconds)
            if not subject.phase.computes:
                return
            if subject.phase.name != ACTUAL:
                self.observation.notes.append(
                    f"the script ended after {subject.steps} steps, the first ones included: give it more"
                    " steps or epochs for surer figures"
                )
                subject.phase.name = ACTUAL
            self._recorder.end(subject)
            self._note_loops(subject)
        self.restore()
        if not self.brief:
            if self.observation.phase(DEMAND) is None:
                self.observation.notes.append(
                    "the script ended before its step was measured by itself: the demand is that of the"
                    " steps as they were"
                )
            self._measure_supplies(subject, None)

    @contextmanager
    def _own_work(self) -> Iterator[None]:
        """Loaders that are iterated over meanwhile are parts of this one, or the examination's own."""
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    def _end(self) -> None:
        self._over = True
        if threading.current_thread() is not threading.main_thread():
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)  # which waits for this thread, perhaps
        raise Enough("all is measured")

    def _epoch(self, watched: Watched, inner: Iterator[Any], began: float) -> Iterator[Any]:
        """Batches for the script; where a loader fails while a change is tried, its own from the first on."""
        while True:
            try:
                yield from self._batches(watched, inner, began)
                return
            except Exception as error:  # the user's code may raise anything
                if self._changed is None:
                    raise
                self._refuse(self.observation, last_line(error))
            self.restore()
            began = time.perf_counter()
            with self._own_work():
                inner = watched.begin()

    def _batches(self, watched: Watched, inner: Iterator[Any], began: float) -> Iterator[Any]:
        try:
            with self._own_work():
                batch = next(inner)
        except StopIteration:
            return
        if not watched.phase.began:
            self._begin(watched, watched.phase.name)
        if not self.observation.memory:
            own = own_memory(os.getpid())
            self.observation.memory = {"main_at_first": own, "workers_at_first": children_memory()}
        seconds = time.perf_counter() - began
        watched.loop.loops += 1
        watched.loop.waits += seconds
        watched.phase.startups.append(seconds)
        watched.facts.first_batch_seconds = watched.facts.first_batch_seconds or seconds
        wait = 0.0
        while True:
            yield from self._step(watched, batch, wait)
            if self._is_leading(watched):
                inner = yield from self._after_step(watched, inner)
            asked = time.perf_counter()
            try:
                with self._own_work():
                    batch = next(inner)
            except StopIteration:
                watched.phase.epochs_ended += 1
                return
            wait = time.perf_counter() - asked
            watched.loop.waits += wait

    def _after_step(self, watched: Watched, inner: Iterator[Any]) -> Generator[Any, None, Iterator[Any]]:
        """Begins the next phase where one is over; returns the batches to continue with."""
        if watched is self._subject and self._changed is None:  # it left its loop, or a trial failed
            return (yield from self._rest(watched, inner))
        before, self._loops = self._loops, self._count_loops(watched)
        if watched.phase.name == WARM_UP:
            if self._is_warm(watched):
                self._begin_actual(watched)
        elif self._loops and self._before is None:
            others = [(one, one.loop) for one in self._beside(watched)]
            window = Window(watched, watched.phase, watched.times, others)
            self._begin_actual(watched)
            self._before = window
        elif self._is_over(watched, self._loops > before):
            return (yield from self._rest(watched, inner))
        return inner

    def _step(self, watched: Watched, batch: Any, wait: float) -> Iterator[Any]:
        phase = watched.phase
        if phase.name == WARM_UP and self._subject is None and not watched.nested:
            watched.kept = [*watched.kept[1 - KEPT_BATCHES :], clone(batch)]
        samples = batch_samples(batch, watched.loader.batch_size)
        watched.facts.batch_nbytes = watched.facts.batch_nbytes or nbytes(batch)
        began = self._recorder.now() - wait
        given, elsewhere = time.perf_counter(), self._elsewhere(watched)
        self._giving.append(watched)
        try:
            yield batch
            self._find_companions(watched)
        finally:
            self._giving.remove(watched)
        # A loop over another loader in another thread counts as a whole when its step ends.
        compute = max(0.0, time.perf_counter() - given - (self._elsewhere(watched) - elsewhere))
        phase.steps_at.append(began)
        phase.computes.append(compute)
        phase.waits.append(wait)
        phase.samples.append(samples)
        watched.steps += 1
        watched.loop.batches += 1
        watched.loop.samples += samples
        watched.loop.computes += compute

    def _find_companions(self, watched: Watched) -> None:
        """Those that gave a batch within its step, and whose loops haven't ended with it."""
        later = self._giving[self._giving.index(watched) + 1 :]
        for one in [] if watched.nested else later:
            watched.companion = one.companion = True
            one.nested = False

    def _is_leading(self, watched: Watched) -> bool:
        """Whether its steps decide about phases: a loop within another loader's step leaves that to
        that one. Of loaders in lock-step, the one that is waited for longest is examined."""
        if watched.nested or watched in self._giving:
            return False
        if self._subject is not None or not watched.companion:
            return self._subject in (None, watched)
        return all(watched.loop.waits >= one.loop.waits for one in self._watched.values() if one.companion)

    def _beside(self, watched: Watched) -> list[Watched]:
        """The loaders of other loops; those in lock-step with this one are waited for within its step."""
        others = (one for one in self._watched.values() if one is not watched)
        return [one for one in others if not (watched.companion and one.companion)]

    def _elsewhere(self, watched: Watched) -> float:
        """Seconds spent on loops over other loaders so far."""
        return sum(one.loop.seconds for one in self._beside(watched))

    def _begin_actual(self, watched: Watched) -> None:
        """Begins the phase with the script's own settings, or with those that are being tried.

        Where another loader is iterated over every so many steps, it starts again after the first such loop.
        """
        settings, where = self._tried[-1] if self._changed is not None else ({}, "")
        self._begin(watched, name_of(ACTUAL, settings, where), settings)
        self._forget_loops()

    def _count_loops(self, watched: Watched) -> int:
        return sum(one.loop.loops for one in self._beside(watched))

    def _complete_window(self) -> None:
        """Where no loop over another loader followed the first, the phase is that with the first: a loop so
        seldom takes its time all the same."""
        before = self._before
        if before is None or self._count_loops(before.watched):
            return
        before.phase.prepend_to(before.watched.phase)
        before.watched.times = before.times
        for watched, loop in before.loops:
            watched.loop = loop
        self._before = None

    def _forget_loops(self) -> None:
        self._loops, self._before = 0, None
        for one in self._watched.values():
            one.forget_loops()

    def _is_warm(self, watched: Watched) -> bool:
        phase, ahead = watched.phase, prefetched(watched.loader, watched.settings)
        steps, seconds = len(phase.computes), self._recorder.now() - phase.began
        if steps < WARM_STEPS or seconds >= WARM_SECONDS:
            return steps >= WARM_STEPS
        return steps >= 2 * ahead and not (self._tries_a_loop() and not self._count_loops(watched))

    def _is_over(self, watched: Watched, looped: bool) -> bool:
        phase = watched.phase
        aligned = self._before is not None
        trying = self._changed is not None
        most = MOST_TRIAL_SECONDS if trying or aligned else MOST_SECONDS
        seconds = self._recorder.now() - phase.began
        steps = len(phase.computes)
        # What an epoch's start costs shows in the second: the one that the phase began in had started before.
        if phase.epochs_ended and not phase.startups and seconds < most:
            return False
        if self._steps is not None and not trying:
            enough = steps >= self._steps
        else:
            enough = (steps >= LEAST_STEPS and seconds >= LEAST_SECONDS) or (steps >= 5 and seconds >= most)
        return enough and (seconds >= most or looped or not (aligned or self._tries_a_loop()))

    def _tries_a_loop(self) -> bool:
        """Whether other settings are tried for a loader that isn't the examined one."""
        return self._changed is not None and self._changed is not self._subject

    def _rest(self, watched: Watched, inner: Iterator[Any]) -> Generator[Any, None, Iterator[Any]]:
        """What is measured after an actual phase; returns the batches of the next trial, or ends the
        script."""
        self._complete_window()
        if self._subject is None:
            self._recorder.end(watched)
            self._note_loops(watched)
            self._subject = watched
            if not self.brief:
                self._probes = self._alone(watched, inner)
        if self._changed is not None:
            self._end_trial(watched)
        elif self.observation.ended != EXAMINED:
            yield from self._probed(watched)
            self.observation.ended = EXAMINED
            self.observation.threads = torch.get_num_threads()
        batches = self._next_trial(watched)
        if batches is None:
            self._end()
            raise AssertionError
        return batches

    def _probed(self, watched: Watched) -> Iterator[Any]:
        """The probes; where the script leaves its loop amid them, its next epoch continues with them."""
        for batch in self._probes:
            self._giving.append(watched)
            self._left = True
            try:
                yield batch
                self._left = False
            finally:
                self._giving.remove(watched)
                if self._left:
                    watched.phase = Phase("", began=self._recorder.now())  # its steps until then aren't kept
                    self._recorder.announce("")

    def _alone(self, watched: Watched, inner: Iterator[Any]) -> Iterator[Any]:
        """The step and the loader, each by itself."""
        wait_until_quiet()
        began = self._recorder.now()
        yield from self._demands(watched)
        # Sampled often, which shows where its time goes.
        yield from self._repeated(watched, PARTS, PARTS_SECONDS)
        if torch.accelerator.is_available():
            yield from self._profiled(watched)
        self._measure_supplies(watched, inner)
        while not self._is_settled(began):
            began = self._recorder.now()
            yield from self._demands(watched)
            self._measure_supplies(watched, None)

    def _next_trial(self, watched: Watched) -> Iterator[Any] | None:
        """Batches from the loader with the settings that promise most; None: no more is to be tried."""
        self.restore()
        self.observation.looks = self._counted()
        wanted = None if self.brief else self._promising(self.observation)
        if wanted is None or wanted in self._tried or self._recorder.spent() > LAST_TRIAL_SECONDS:
            return None
        settings, where = wanted
        # More than one where the script has one function for several loops, or a new loader for each.
        alike = [one for one in self._watched.values() if one.facts.where == where] if where else [watched]
        if len(alike) > 1 or not ("threads" in settings or is_replaceable(alike[0].loader)):
            return None
        self._tried.append(wanted)
        killed = replace(self.observation)
        self._refuse(killed, "its process was killed meanwhile")
        self.save(killed)
        changed = self._changed = alike[0]
        changed.settings = settings
        try:
            with self._own_work(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's, of more workers than cores: that is what is tried
                if "threads" in settings:
                    self._set_threads(settings["threads"])
                else:
                    other = with_settings(changed.loader, settings, self._headrace)
                    changed.instead = functools.partial(iter, other)
                batches = (watched.instead or watched.begin)()
        except Exception as error:  # a loader of the user's own making may refuse in its own way
            self._refuse(self.observation, last_line(error))
            return self._next_trial(watched)
        self._begin(watched, WARM_UP)
        self._forget_loops()
        return batches

    def _end_trial(self, watched: Watched) -> None:
        if self._changed is not None and self._changed is not watched:
            loop, phase = self._changed.loop, watched.phase
            phase.loops, phase.loop_seconds = loop.loops, loop.seconds
        self._recorder.end(watched)

    def _refuse(self, observation: Observation, reason: str) -> None:
        """Notes there why the last change can't be tried."""
        trial = self._tried[-1]
        note = f"{name_of('the script', *trial)} can't be tried: {reason}"
        observation.notes = [*observation.notes, note]
        observation.refused = [*observation.refused, name_of(ACTUAL, *trial)]

    def _set_threads(self, count: int) -> None:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(count)

    def restore(self) -> None:
        """Leaves the script, and the process's threads, as they were before a change was tried."""
        for one in self._watched.values():
            one.settings, one.instead = {}, None
        self._changed = None
        if self._threads:
            torch.set_num_threads(self._threads)
            self._threads = 0

    def _is_settled(self, began: float) -> bool:
        """Whether probes need not be repeated: the machine is free, one cause is ahead, or the time does not
        suffice for another round, as long as the last one, which began then."""
        busy = [phase.others for phase in self.observation.phases]
        another = self._recorder.now() - began
        late = self._recorder.spent() + another > LAST_SUPPLY_SECONDS
        if late or sum(busy) < BUSY_SHARE * usable_cores() * len(busy):
            return True
        self.observation.looks = self._counted()
        return self._decided(self.observation)

    def _demands(self, watched: Watched) -> Iterator[Any]:
        """The step alone; where its operators use more threads than there are cores, also with fewer."""
        yield from self._repeated(watched, DEMAND, DEMAND_SECONDS)
        cores = usable_cores()
        if torch.get_num_threads() > cores:
            self._set_threads(cores)
            yield from self._repeated(watched, DEMAND, DEMAND_SECONDS, {"threads": cores})
            self.restore()

    def _repeated(
        self, watched: Watched, kind: str, seconds: float, settings: dict[str, Any] | None = None
    ) -> Iterator[Any]:
        """A phase with the kept batches in turn, of `seconds`; longer where two rounds take longer."""
        self._begin(watched, name_of(kind, settings or {}), settings)
        phase, away = watched.phase, 0.0
        samples = [batch_samples(batch, watched.loader.batch_size) for batch in watched.kept]
        for number in itertools.count():
            spent = self._recorder.now() - phase.began - away
            if spent >= (seconds if len(phase.computes) >= 2 * KEPT_BATCHES else SLOW_DEMAND_SECONDS):
                break
            which = number % len(watched.kept)
            batch = clone(watched.kept[which])  # its time is neither waited for nor computed
            began = self._recorder.now()
            given, elsewhere = time.perf_counter(), self._elsewhere(watched)
            yield batch
            if self._left:  # the rest of that step can't be separated from what the script did elsewhere
                away += self._recorder.now() - began
                watched.phase = phase
                self._recorder.announce(phase.name)
                continue
            phase.steps_at.append(began)
            compute = time.perf_counter() - given - (self._elsewhere(watched) - elsewhere)
            phase.computes.append(max(0.0, compute))
            phase.waits.append(0.0)
            phase.samples.append(samples[which])
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
        kind = torch.accelerator.current_accelerator()
        name = str(kind) if kind is None or kind.type != "cuda" else torch.cuda.get_device_name()
        device = device_facts(events, PROFILED_STEPS, watched.facts.batch_nbytes, name)
        if torch.cuda.is_available():
            device.memory_peak = torch.cuda.max_memory_reserved()
            device.memory_total = torch.cuda.get_device_properties().total_memory
        self.observation.device = device

    def _measure_supplies(self, watched: Watched, inner: Iterator[Any] | None) -> None:
        with self._own_work():
            self._supplies.measure(watched, inner)
            for other, loop in self._others:
                self._supplies.measure_loop(other, loop)

    def _note_loops(self, watched: Watched) -> None:
        """Records what was spent on other loaders in the phase that has just ended."""
        others = self._beside(watched)
        self._others = [(one, replace(one.loop)) for one in others if one.loop.batches]
        self.observation.loops += [loop for _, loop in self._others]
        self.observation.notes += [
            f"the loader at {one.facts.where} is iterated over in lock-step with the examined one at"
            f" {watched.facts.where}: waiting for it counts as a part of the step: {one.facts.code}"
            for one in self._watched.values()
            if one is not watched and one.companion
        ]
        self.observation.notes += [
            f"the loop at {one.facts.where} ran before the steps that were measured, not between them: what"
            " it takes of the script's time isn't known"
            for one in others
            if one.steps and not one.loop.batches
        ]

    def _begin(self, watched: Watched, name: str, settings: dict[str, Any] | None = None) -> None:
        # A loader whose iteration starts meanwhile, as for validation, is not a phase of the loader before.
        announced = len(self._watched) == 1 or name != WARM_UP
        self._recorder.begin(watched, Phase(name, settings or {}), announced=announced)
