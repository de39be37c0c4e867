"""The tuner of one loader: made for its plan, started where an earlier run left off."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import torch

from headrace._machine import processor_name, usable_cores
from headrace.tuning import cache
from headrace.tuning.climb import Knob, Settings
from headrace.tuning.tuner import Tuner

WORDS = {
    "decode_threads": "decode threads",
    "read_threads": "reads in flight",
    "depth": "batches in flight",
}


class Tunable(Protocol):
    """A stream with settings."""

    @property
    def in_flight(self) -> int:
        """Batches that are being made, or wait to be taken."""

    def tune(self, settings: Settings) -> None:
        """From now on these settings."""


class SelfTuning:
    """Of one loader; a copy of it makes its own."""

    def __init__(self) -> None:
        self._tuner = Tuner({}, ())
        self._key = ""  # before the first epoch
        self._from_cache = False
        self._lost_before = 0.0  # by tuners of earlier plans
        self._stream: weakref.ref[Tunable] | None = None

    def begin(self, what: str, start: Settings, knobs: Sequence[Knob]) -> Settings:
        """The settings to begin an epoch with.

        Args:
            what: dataset, plan and kind of workers in words: another one is tuned again.
            start: where nothing better is known.
            knobs: what the user has left open.
        """
        values = {knob.name: knob.values for knob in knobs}
        given = {name: value for name, value in start.items() if name not in values}
        machine = {"processor": processor_name(), "cores": usable_cores(), "torch": torch.__version__}
        key = cache.key_of({"what": what, "knobs": values, "given": given, **machine})
        if key != self._key:
            self._lost_before = self.lost_seconds
            self._key = key
            known = _known(cache.load(key), start, knobs) if knobs else None
            self._from_cache = known is not None
            # Not a method: a loader must end with the last reference to it, not with the next collection.
            self._tuner = Tuner(known or start, knobs, partial(_keep, key))
        return self._tuner.settings

    @property
    def settings(self) -> Settings:
        """Those in use; none before the first epoch, or where there is nothing to set."""
        return self._tuner.settings

    @property
    def lost_seconds(self) -> float:
        """How much longer steps took than they would have without trying settings; see `Tuner`."""
        return self._lost_before + self._tuner.lost_seconds

    def attach(self, stream: Tunable) -> None:
        """The stream that `begin`'s settings were for."""
        # It may know the loader, which must end with the last reference to it.
        self._stream = weakref.ref(stream)
        self._tuner.attach(partial(_tune, self._stream), stream.in_flight)

    def after_step(self, waited: float, period: float) -> None:
        """One more batch was received; see `Tuner.after_step`."""
        stream = None if self._stream is None else self._stream()
        if stream is not None:
            self._tuner.after_step(waited, period, stream.in_flight)

    def forget_stream(self) -> None:
        """What comes next has no settings."""
        self._stream = None

    def __str__(self) -> str:
        """For explanations: what is being done, or was found."""
        tuner = self._tuner
        if not self._key:
            return "starts with the first epoch"
        if not tuner.knobs:
            return "off: all settings were given"
        settings = ", ".join(f"{WORDS[name]} {value}" for name, value in tuner.settings.items())
        if tuner.history:
            how = "trying" if tuner.climbing else "settled at"
            return f"{how} {settings} ({len(tuner.history)} measurements)"
        return f"started with {settings}" + (", found in an earlier run" if self._from_cache else "")


def _tune(stream: weakref.ref[Tunable], settings: Settings) -> None:
    found = stream()
    if found is not None:
        found.tune(settings)


def _keep(key: str, settings: Settings, rate: float) -> None:
    cache.save(key, {"settings": dict(settings), "batches_per_second": round(rate, 3)})


def _known(entry: dict[str, Any] | None, start: Settings, knobs: Sequence[Knob]) -> Settings | None:
    """The settings of a cache's entry, as far as they are possible here."""
    found = entry.get("settings") if entry is not None else None
    if not isinstance(found, dict) or set(found) != set(start):
        return None
    allowed = {knob.name: knob.values for knob in knobs}
    possible = all(found[name] in allowed.get(name, (start[name],)) for name in start)
    return found if possible else None
