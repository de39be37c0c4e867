"""The current and past work of each worker, in memory that outlives it: one that died can't be asked."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from typing import Any

from headrace.records import Work

NONE = -1
ALL = sys.maxsize
# Of a worker: request, the sample's place in it, index of the sample's stand-in, first request wanted;
# batches made, nanoseconds that they took, nanoseconds on a core, nanoseconds that it waited for one.
_WORDS = 8


@dataclass(frozen=True)
class Note:
    """The place in its work where a worker was."""

    request: int  # its number; NONE if the worker waited for one
    place: int  # position of the sample in the batch; NONE if the batch was started, collated or sent
    stand_in: int  # index of the sample tried in its place (`on_error="replace"`), or NONE


class Cancelled(BaseException):
    """The rest of a batch isn't wanted any more. Never leaves the worker."""


class ProgressCell:
    """Holds what one worker is making, noted in less than a microsecond, and what its parent wants."""

    def __init__(self, words: memoryview) -> None:
        self._words = words

    def start(self, request: int) -> None:
        """A request was started."""
        self._words[1], self._words[2] = NONE, NONE
        self._words[0] = request

    def each(self, indices: Iterable[Any]) -> Iterator[Any]:
        """The indices; each is noted until the next is asked for. Raises Cancelled once the request isn't
        wanted any more."""
        words = self._words
        request = words[0]
        for place, index in enumerate(indices):
            if words[3] > request:
                raise Cancelled
            words[1] = place
            yield index
        words[1] = NONE

    def stand_in(self, index: int) -> None:
        """Another sample is tried in place of the one noted; NONE: that is over."""
        self._words[2] = index

    def done(self) -> None:
        """The request is done with, whatever came of it."""
        self._words[0] = NONE

    def add_work(self, seconds_ns: int, on_core_ns: int, queued_ns: int | None) -> None:
        """A batch was made, in that many nanoseconds, so many of them on a core, and waiting for one."""
        words = self._words
        words[4] += 1
        words[5] += seconds_ns
        words[6] += on_core_ns
        words[7] = NONE if queued_ns is None or words[7] == NONE else words[7] + queued_ns

    @property
    def work(self) -> Work:
        """The work done so far."""
        batches, seconds_ns, on_core_ns, queued_ns = self._words[4:].tolist()
        queued = None if queued_ns == NONE else queued_ns / 1e9
        return Work(batches, seconds_ns / 1e9, on_core_ns / 1e9, queued)

    def wanted(self, request: int) -> bool:
        """Returns whether the parent still waits for the request."""
        return request >= self._words[3]

    @property
    def ending(self) -> bool:
        """True if nothing is wanted any more, of this epoch or later ones."""
        return self._words[3] == ALL

    def want_from(self, request: int) -> None:
        """Requests of lower numbers aren't wanted any more."""
        self._words[3] = request

    def read(self) -> Note:
        """Returns the latest note."""
        return Note(*self._words[:3].tolist())


class Progress:
    """The cells of all workers of a pool; they get it when they start, by fork or pickled."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._words = RawArray("q", _WORDS * workers)
        for worker in range(workers):
            self._words[_WORDS * worker] = NONE

    def __getitem__(self, worker: int) -> ProgressCell:
        """The cell of one worker."""
        words = memoryview(self._words).cast("B").cast("q")
        return ProgressCell(words[_WORDS * worker : _WORDS * (worker + 1)])

    @property
    def work(self) -> Work:
        """The work that all workers have done so far."""
        each = [self[worker].work for worker in range(self._workers)]
        queued = [w.queued for w in each if w.queued is not None]
        return Work(
            sum(w.batches for w in each),
            sum(w.seconds for w in each),
            sum(w.on_core for w in each),
            sum(queued) if len(queued) == len(each) else None,
        )
