"""What iter(loader) gives: batches to the user, in order, on the device that was asked for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from headrace.device.feed import Step
from headrace.engine.meter import Meter
from headrace.engine.producer import Made, Producer
from headrace.order.cursor import Cursor
from headrace.records import BatchKeys


class Feed(Protocol):
    """What takes batches to where the user wants them; see `headrace.device.feed`.

    Attributes:
        ahead: batches that are sent before they are asked for.
    """

    ahead: int

    def send(self, batch: Any, keys: BatchKeys | None) -> Any:
        """Begins the copy."""

    def receive(self, sent: Any) -> Any:
        """The batch on the device, usable in the caller's current stream."""


class InPlace:
    """Batches stay where they were made.

    Args:
        prepare, finish: done to each, as by `headrace.device.feed.Feed`.
    """

    ahead = 0

    def __init__(self, prepare: Step | None, finish: Step | None) -> None:
        self._steps = [step for step in (prepare, finish) if step is not None]

    def send(self, batch: Any, keys: BatchKeys | None) -> Any:
        """The batch itself, and its keys."""
        return batch, keys

    def receive(self, sent: Any) -> Any:
        """The batch, finished."""
        batch, keys = sent
        for step in self._steps:
            batch = step(batch, keys)
        return batch


class Front(Iterator[Any]):
    """One epoch for the user.

    Args:
        producer: makes the batches.
        cursor: told of every batch that the user receives, and of the end.
        length: what len() says; None: it raises TypeError.
        meter: told of every batch and how long it was waited for.
        feed: takes batches to where the user wants them.
        after_step: called with the seconds waited for a batch, and the seconds since the one before was asked
            for; the tuner's way in.
    """

    def __init__(
        self,
        producer: Producer,
        cursor: Cursor,
        length: int | None,
        meter: Meter,
        feed: Feed,
        after_step: Callable[[float, float], None] | None = None,
    ) -> None:
        self._producer = producer
        self._cursor = cursor
        self._length = length
        self._meter = meter
        self._feed = feed
        self._after_step = after_step
        self._sent: deque[tuple[Made, Any] | BaseException] = deque()
        self._asked = 0.0

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the sampler of this loader has no len()")
        return self._length

    def __next__(self) -> Any:
        start = time.monotonic()
        ready = len(self._sent)
        made, batch = self._next()
        waited = time.monotonic() - start
        if made.stream is not None:
            worker, state = made.stream
            self._cursor.streams[worker] = state
        self._cursor.received(made.taken)
        self._send_ahead()
        self._meter.received(samples=made.samples, wait_seconds=waited, in_flight=self.in_flight, ready=ready)
        if self._after_step is not None:
            self._after_step(waited, start - self._asked if self._asked else 0.0)
        self._asked = start
        return batch

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Gives up what is in flight."""
        producer = getattr(self, "_producer", None)
        if producer is not None:
            producer.close()

    @property
    def in_flight(self) -> int:
        """Batches that are being made, or wait to be received."""
        return len(self._sent) + self._producer.in_flight

    def _next(self) -> tuple[Made, Any]:
        if not self._sent:
            self._send_next()
        first = self._sent.popleft()
        if isinstance(first, BaseException):
            raise first
        made, sent = first
        return made, self._feed.receive(sent)

    def _send_next(self) -> None:
        try:
            made = next(self._producer)
        except StopIteration:
            self._cursor.finished = True
            raise
        self._sent.append((made, self._feed.send(made.data, made.keys)))

    def _send_ahead(self) -> None:
        while len(self._sent) < self._feed.ahead and self._producer.ready():
            try:
                made = next(self._producer)
            except StopIteration:
                return
            except Exception as error:  # for a batch that is asked for later
                self._sent.append(error)
                return
            self._sent.append((made, self._feed.send(made.data, made.keys)))
