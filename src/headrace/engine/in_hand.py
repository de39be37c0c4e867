"""What each worker process is at, in memory that outlives it: who died can't be asked."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any

NONE = -1
_CELLS = 3  # of a worker: the request's number, the sample's place in it, what stands in for that sample


@dataclass(frozen=True)
class Note:
    """What a worker had in hand.

    Attributes:
        request: its number; NONE: it waited for one.
        place: of the sample in the request's batch; NONE: none, as the batch was begun, collated or sent.
        stand_in: index of the sample that was tried in its place (`on_error="replace"`); NONE: none was.
    """

    request: int
    place: int
    stand_in: int


class Hand:
    """Where one worker notes what it is at. A note takes less than a microsecond."""

    def __init__(self, cells: memoryview) -> None:
        self._cells = cells

    def begin(self, request: int) -> None:
        """A request is begun."""
        self._cells[1], self._cells[2] = NONE, NONE
        self._cells[0] = request

    def each(self, indices: Sequence[Any], first: int = 0) -> Iterator[Any]:
        """The indices; each is in hand until the next is asked for. `first`: place of the first of them."""
        for place, index in enumerate(indices, first):
            self._cells[2] = NONE
            self._cells[1] = place
            yield index
        self._cells[1] = NONE

    def stand_in(self, index: int) -> None:
        """Another sample is tried in place of that in hand."""
        self._cells[2] = index

    def done(self) -> None:
        """The request is done with, whatever came of it."""
        self._cells[0] = NONE


class InHand:
    """The notes of all workers of a group: given to them when they start, by fork or pickled, and read by the
    process that starts them."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        # Not in /dev/shm, which may be full.
        self._file: int | None = os.memfd_create("headrace-in-hand")
        os.ftruncate(self._file, 8 * _CELLS * workers)
        self._cells = _mapped(self._file, workers)
        for i in range(_CELLS * workers):
            self._cells[i] = NONE

    def __reduce__(self) -> tuple[Any, ...]:
        # Called while a process starts.
        assert self._file is not None
        return _arrived, (DupFd(self._file), self._workers)

    def __del__(self) -> None:
        self.started()

    def started(self) -> None:
        """To be called once all processes have started."""
        file, self._file = self.__dict__.get("_file"), None
        if file is not None:
            os.close(file)

    def of(self, worker: int) -> Hand:
        """For the worker to write to."""
        return Hand(self._cells[_CELLS * worker : _CELLS * (worker + 1)])

    def read(self, worker: int) -> Note:
        """What the worker noted last."""
        return Note(*self._cells[_CELLS * worker : _CELLS * (worker + 1)].tolist())


def _mapped(file: int, workers: int) -> memoryview:
    return memoryview(mmap.mmap(file, 8 * _CELLS * workers)).cast("q")


def _arrived(file: Any, workers: int) -> InHand:
    arrived = InHand.__new__(InHand)
    descriptor = file.detach()
    arrived._workers, arrived._file = workers, None
    arrived._cells = _mapped(descriptor, workers)
    os.close(descriptor)
    return arrived
