"""Batches of a stream that torch's own loader has to make, as `IterDataPipe`s are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace import _torch_compat
from headrace.device.structure import batch_size
from headrace.engine.stream import BatchStream, HostBatch

NOT_RESUMABLE = (
    "The epoch can't be resumed in its middle: an IterDataPipe without state_dict() and load_state_dict(), or"
    " a stream with a replaced sampler, is left to torch's own loader, which has no state. Load a state that"
    " was saved between epochs; or call iter() once more, which starts the next epoch."
)


class TorchStream(BatchStream):
    """The batches of an `IterableDataset` by an iterator of torch's loader.

    Args:
        batches: torch's iterator.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._taken = 0

    @property
    def processes(self) -> list[Any]:
        return _torch_compat.processes_of(self._batches)

    def shut_down(self) -> None:
        _torch_compat.shut_down(self._batches)
        self._batches = iter(())

    def __next__(self) -> HostBatch:
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception:
            self._taken += 1  # torch's loader continues after a batch that failed
            raise
        self._taken += 1
        return HostBatch(batch, batch_size(batch), self._taken)
