"""Tunes a loader while the user trains: measures windows of steps, and lets `climb` decide.

The tuner of a loader is made for its plan, and starts where an earlier run left off.
"""

from __future__ import annotations

import logging
import statistics
import weakref
from collections.abc import Generator, Sequence
from typing import Any, Protocol

import torch

from headrace._machine import processor_name, usable_cores
from headrace.tuning import cache
from headrace.tuning.climb import Knob, Settings, Window, climb

WORDS = {
    "decode_threads": "decode threads",
    "read_threads": "reads in flight",
    "depth": "batches in flight",
}
log = logging.getLogger("headrace")
# A window is at least this long, in batches and seconds: long enough for batches that come in bursts (one
# from each worker), short enough that a dozen windows are a small part of an epoch.
WINDOW_BATCHES = 8
WINDOW_SECONDS = 0.1
# A step that worked, its wait aside, this many times as long as a typical one takes held something else: a
# checkpoint, validation. Its wait counts all the same: of batches that come in bursts, most wait for nothing.
ODD_STEP = 10.0
# Once settled: windows to watch the stall by, and how far it must move for another climb.
WATCH_BATCHES = 64
WATCH_SECONDS = 2.0
STALL_CHANGE = 0.15


class Tunable(Protocol):
    """A stream with settings."""

    @property
    def in_flight(self) -> int:
        """Batches that are being made, or wait to be taken."""

    def tune(self, settings: Settings) -> None:
        """From now on these settings."""


class SelfTuning:
    """Of one loader, over all its epochs; a copy of the loader makes its own.

    Attributes:
        settings: those in use; none before the first epoch, or where there is nothing to set.
        history: (settings, what was measured under them) of the present plan.
        lost_seconds: how much longer steps took while settings were tried than they would have under those
            that were kept; of climbs that have ended.
    """

    def __init__(self) -> None:
        self.settings: Settings = {}
        self.history: list[tuple[Settings, Window]] = []
        self.lost_seconds = 0.0
        self._knobs: tuple[Knob, ...] = ()
        self._key = ""  # before the first epoch
        self._from_cache = False
        self._stream: weakref.ref[Tunable] | None = None
        self._climb: Generator[Settings, Window, Settings] | None = None
        self._first = 0  # place in the history of the first window of this climb
        self._stall: float | None = None  # when settled
        self._forget(0)

    def begin(self, what: str, start: Settings, knobs: Sequence[Knob]) -> None:
        """Chooses the settings to begin an epoch with.

        Args:
            what: dataset, plan and kind of workers in words: another one is tuned again.
            start: where nothing better is known.
            knobs: what the user has left open; none: nothing is ever tried.
        """
        values = {knob.name: knob.values for knob in knobs}
        given = {name: value for name, value in start.items() if name not in values}
        machine = {"processor": processor_name(), "cores": usable_cores(), "torch": torch.__version__}
        key = cache.key_of({"what": what, "knobs": values, "given": given, **machine})
        if key == self._key:
            return
        known = _known(cache.load(key), start, knobs) if knobs else None
        self._key = key
        self._knobs = tuple(knobs)
        self._from_cache = known is not None
        self.settings = known or start
        self.history = []
        self._climb = None
        if knobs:
            self._start_climb()

    @property
    def climbing(self) -> bool:
        """Whether settings are being tried."""
        return self._climb is not None

    def attach(self, stream: Tunable) -> None:
        """The stream that `begin`'s settings were for. Its first batches, which wait for threads to start,
        aren't measured."""
        # It may know the loader, which must end with the last reference to it.
        self._stream = weakref.ref(stream)
        self._forget(stream.in_flight)

    def forget_stream(self) -> None:
        """What comes next has no settings."""
        self._stream = None

    def after_step(self, waited: float, period: float) -> None:
        """One more batch was received.

        Args:
            waited: seconds for it.
            period: seconds from asking for the batch before to asking for this one.
        """
        stream = None if self._stream is None or not self._knobs else self._stream()
        if stream is None:
            return
        if self._skip > 0:
            self._skip -= 1
            return
        self._periods.append(period)
        self._waits.append(waited)
        batches, seconds = (
            (WINDOW_BATCHES, WINDOW_SECONDS) if self.climbing else (WATCH_BATCHES, WATCH_SECONDS)
        )
        if len(self._periods) >= batches and sum(self._periods) >= seconds:
            window = _window(self._periods, self._waits)
            self._forget(0)
            self._decide(window, stream)

    def __str__(self) -> str:
        """For explanations: what is being done, or was found."""
        if not self._key:
            return "starts with the first epoch"
        if not self._knobs:
            return "off: all settings were given"
        settings = ", ".join(f"{WORDS[name]} {value}" for name, value in self.settings.items())
        if self.history:
            how = "trying" if self.climbing else "settled at"
            return f"{how} {settings} ({len(self.history)} measurements)"
        return f"started with {settings}" + (", found in an earlier run" if self._from_cache else "")

    def _start_climb(self) -> None:
        self._climb = climb(self.settings, self._knobs)
        self._first = len(self.history)
        next(self._climb)

    def _decide(self, window: Window, stream: Tunable) -> None:
        if self._climb is None:
            if self._stall is None or abs(window.stall - self._stall) > STALL_CHANGE:
                self._start_climb()
            return
        self.history.append((self.settings, window))
        try:
            wanted = self._climb.send(window)
        except StopIteration as end:
            wanted = end.value
            self._climb = None
        if wanted != self.settings:
            self.settings = wanted
            # As many steps as batches are in flight still see what was before.
            self._forget(stream.in_flight)
            stream.tune(wanted)
        if self._climb is None:
            self._stall = window.stall
            self.lost_seconds += _lost(self.history[self._first :], wanted)
            log.info("tuned: %s", dict(wanted))
            rate = round(window.rate, 3)
            cache.save(self._key, {"settings": dict(wanted), "batches_per_second": rate})

    def _forget(self, skip: int) -> None:
        self._skip = skip
        self._periods: list[float] = []
        self._waits: list[float] = []


def _known(entry: dict[str, Any] | None, start: Settings, knobs: Sequence[Knob]) -> Settings | None:
    """The settings of a cache's entry, as far as they are possible here."""
    found = entry.get("settings") if entry is not None else None
    if not isinstance(found, dict) or set(found) != set(start):
        return None
    allowed = {knob.name: knob.values for knob in knobs}
    possible = all(found[name] in allowed.get(name, (start[name],)) for name in start)
    return found if possible else None


def _window(periods: Sequence[float], waits: Sequence[float]) -> Window:
    works = [period - wait for period, wait in zip(periods, waits, strict=True)]
    usual = statistics.median(works)
    limit = ODD_STEP * max(usual, statistics.median(periods))
    waited = sum(waits)
    seconds = waited + sum(work if work <= limit else usual for work in works)
    return Window(len(periods) / seconds, min(1.0, waited / seconds), seconds)


def _lost(tried: Sequence[tuple[Settings, Window]], kept: Settings) -> float:
    """How many seconds longer the windows in `tried` were than under the settings `kept`, one of them."""
    rate = statistics.mean(window.rate for settings, window in tried if settings == kept)
    return max(0.0, sum(window.seconds * (1 - window.rate / rate) for _, window in tried))
