"""One epoch by several producers, one after the other: how the kind of workers is changed while it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from headrace.engine.producer import Made, Producer
from headrace.order.batches import IndexBatch


class Leg(Producer, Protocol):
    """A producer with settings."""

    def tune(self, settings: Mapping[str, int]) -> None:
        """From now on these settings."""


class Gate(Iterator[IndexBatch]):
    """Batches for one producer, until it is shut."""

    def __init__(self, batches: Iterator[IndexBatch]) -> None:
        self._batches = batches
        self._shut = False
        self.handed = 0

    def __next__(self) -> IndexBatch:
        if self._shut:
            raise StopIteration
        batch = next(self._batches)
        self.handed += 1
        return batch

    def shut(self) -> None:
        """From now on there are no more."""
        self._shut = True


class Relay:
    """A `Producer` whose batches come from one producer at first, and from another once `tune` says so; the
    first one finishes what it has begun, so that the order stays.

    Args:
        make: makes the producer of a kind (a number, as it is in the settings under "processes").
        batches: of the epoch.
        kind: to begin with.
    """

    def __init__(
        self, make: Callable[[int, Iterator[IndexBatch]], Leg], batches: Iterator[IndexBatch], kind: int
    ) -> None:
        self._make = make
        self._batches = batches
        self._kind = kind
        self._before = 0
        self._legs: deque[tuple[Gate, Leg]] = deque()
        self._begin()

    def __next__(self) -> Made:
        while True:
            gate, producer = self._legs[0]
            try:
                made = next(producer)
            except StopIteration:
                if len(self._legs) == 1:
                    raise
                self._before += gate.handed
                self._legs.popleft()
                continue
            made.taken += self._before
            return made

    def ready(self) -> int:
        """Batches, an error or the end among them, that could be had without waiting."""
        return self._legs[0][1].ready()

    @property
    def depth(self) -> int:
        """Batches that the producer asked last may have in flight; 0: not known."""
        return self._legs[-1][1].depth

    @property
    def in_flight(self) -> int:
        """Batches that are being made or wait to be taken."""
        return sum(producer.in_flight for _, producer in self._legs)

    def tune(self, settings: Mapping[str, int]) -> None:
        """From now on these settings, "processes" among them."""
        if settings["processes"] != self._kind:
            self._kind = settings["processes"]
            self._legs[-1][0].shut()
            self._begin()
        self._legs[-1][1].tune(settings)

    def close(self) -> None:
        """Gives up what is in flight."""
        for gate, producer in self._legs:
            gate.shut()
            producer.close()

    def _begin(self) -> None:
        gate = Gate(self._batches)
        self._legs.append((gate, self._make(self._kind, gate)))
