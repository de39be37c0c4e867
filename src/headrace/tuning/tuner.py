"""Tunes a loader while the user trains: measures windows of steps, and lets `climb` decide."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Generator, Sequence

from headrace.tuning.climb import Knob, Settings, Window, climb

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


class Tuner:
    """Of one loader, over all its epochs.

    Args:
        start: the settings in use.
        knobs: what may be changed; none: nothing is ever done.
        settled: called with the best settings whenever a climb has ended.

    Attributes:
        lost_seconds: how much longer steps took while settings were tried than they would have under those
            that were kept; of climbs that have ended.
    """

    def __init__(
        self, start: Settings, knobs: Sequence[Knob], settled: Callable[[Settings, float], None] | None = None
    ) -> None:
        self.settings = start
        self.knobs = tuple(knobs)
        self.history: list[tuple[Settings, Window]] = []
        self.lost_seconds = 0.0
        self._settled = settled
        self._tried: list[tuple[Settings, Window]] = []  # in this climb
        self._apply: Callable[[Settings], None] | None = None
        self._skip = 0
        self._periods: list[float] = []
        self._waits: list[float] = []
        self._stall: float | None = None  # when settled
        self._climb: Generator[Settings, Window, Settings] | None = None
        if self.knobs:
            self._begin()

    @property
    def climbing(self) -> bool:
        """Whether settings are being tried."""
        return self._climb is not None

    def attach(self, apply: Callable[[Settings], None], in_flight: int) -> None:
        """A new epoch: `apply` changes the settings of what makes its batches. The first batches, which wait
        for workers to start, aren't measured."""
        self._apply = apply
        self._forget(in_flight)

    def after_step(self, waited: float, period: float, in_flight: int) -> None:
        """One more batch was received.

        Args:
            waited: seconds for it.
            period: seconds from asking for the batch before to asking for this one.
            in_flight: batches made ahead: as many steps after a change still see what was before it.
        """
        if not self.knobs or self._apply is None:
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
            self._decide(window, in_flight)

    def _begin(self) -> None:
        self._climb = climb(self.settings, self.knobs)
        next(self._climb)

    def _decide(self, window: Window, in_flight: int) -> None:
        if self._climb is None:
            if self._stall is None or abs(window.stall - self._stall) > STALL_CHANGE:
                self._begin()
            return
        self.history.append((self.settings, window))
        self._tried.append((self.settings, window))
        try:
            wanted = self._climb.send(window)
        except StopIteration as end:
            wanted, self._climb, self._stall = end.value, None, None
        if wanted != self.settings:
            assert self._apply is not None
            self.settings = wanted
            self._apply(wanted)
            self._forget(in_flight)
        if self._climb is None:
            self._stall = window.stall
            self.lost_seconds += _lost(self._tried, self.settings)
            self._tried = []
            log.info("tuned: %s", dict(self.settings))
            if self._settled is not None:
                self._settled(self.settings, window.rate)

    def _forget(self, skip: int) -> None:
        self._skip = skip
        self._periods, self._waits = [], []


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
