"""The streams of batches for the outermost iterator: native, on threads, in processes, or in place."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from headrace.device.structure import batch_size
from headrace.engine.error_policy import BatchWithFailures
from headrace.engine.iterable import ResumableBatch
from headrace.engine.meter import Failures
from headrace.engine.seeding import batch_keys
from headrace.order.batches import IndexBatch
from headrace.order.epoch import StreamState
from headrace.records import BatchKeys


@dataclass(slots=True)
class HostBatch:
    """A batch on the host, as the user gets it but for the copy to a device."""

    data: Any
    samples: int  # number of samples in it, as far as its shape tells
    taken: int  # batches of the epoch that are done with once this one is received, skipped ones included
    stream: tuple[int, StreamState] | None = None  # (worker, state after it) of an `IterableDataset`
    keys: BatchKeys | None = None
    times: tuple[int, int] = (0, 0)  # `submitted_ns` and `made_ns` of `BatchTimes`, 0 if they aren't known


class BatchStream(ABC):
    """Makes the batches of one epoch, in order, several ahead if it can.

    Attributes:
        keyed: gives the keys of batches that come without, if their keys are needed.
        depth: number of batches that may be in flight now; 0 if it isn't known, or none are.
        ends: by worker, state of an `IterableDataset` at the epoch's end, see `Position`.
    """

    keyed: KeyedBatches | None = None
    depth = 0
    ends: Mapping[int, StreamState] = MappingProxyType({})

    @abstractmethod
    def __next__(self) -> HostBatch:
        """Waits for the next batch. Raises StopIteration at the end, and whatever the user's code raised for
        this batch: the one after it may still be asked for."""

    def ready(self) -> int:
        """Number of batches, an error or the end among them, that could be had without waiting; 0 if that
        isn't known: whoever asks for the next waits."""
        return 0

    @property
    def in_flight(self) -> int:
        """Number of batches that are being made, or are made and wait to be taken."""
        return 0

    @property
    def processes(self) -> list[Any]:
        """Worker processes that make the batches, by their number, and after their end as well."""
        return []

    def close(self) -> None:  # noqa: B027  (there may be nothing to do)
        """Gives up what is in flight."""

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's end threads and processes were ended before, and modules may be empty by now.
        if not _is_finalizing():
            self.close()

    def shut_down(self) -> None:
        """Closes the stream, and ends worker processes that would be kept for another epoch."""
        self.close()


class PythonStream(BatchStream):
    """A stream of batches that the user's Python makes."""

    _taken = 0  # batches that `_next` has given, or raised an error for
    _times = (0, 0)  # of the batch that `_next` gave last, as in `HostBatch`

    def __init__(self, failures: Failures) -> None:
        self._failures = failures

    def __next__(self) -> HostBatch:
        while True:
            data = self._next()
            if isinstance(data, ResumableBatch):
                place = data.worker, data.state
                return HostBatch(data.data, batch_size(data.data), self._taken, place)
            if not isinstance(data, BatchWithFailures):  # as nearly always
                return HostBatch(data, batch_size(data), self._taken, times=self._times)
            for failure in data.failures:
                self._failures.add(failure)
            if not data.empty:
                return HostBatch(data.data, batch_size(data.data), self._taken, times=self._times)

    @abstractmethod
    def _next(self) -> Any:
        """The next batch as `ErrorPolicyDataset` or `IterableBatches` made it; counts it."""


class KeyedBatches(Iterator[IndexBatch]):
    """Hands `batches` to a stream that takes them in order, and remembers them until they have come.
    `samples` is the length of the dataset, for indices from its end."""

    def __init__(self, batches: Iterator[IndexBatch], key: tuple[int, int], samples: int) -> None:
        self._batches = batches
        self._key = key
        self._samples = samples
        self._handed = 0
        self._noted: dict[int, IndexBatch] = {}

    def __next__(self) -> IndexBatch:
        batch = next(self._batches)
        self._handed += 1
        self._noted[self._handed] = batch
        return batch

    def keys_of(self, number: int) -> BatchKeys:
        """The keys of batch `number`, the first being 1; it and those before it are then forgotten."""
        batch = self._noted[number]
        for passed in [n for n in self._noted if n <= number]:
            del self._noted[passed]
        return batch_keys(self._key, batch, self._samples)
