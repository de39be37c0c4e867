"""Batches of a stream that torch's own loader has to make, as `IterDataPipe`s are."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from headrace import _torch_compat
from headrace.device.structure import batch_size
from headrace.engine.stream import BatchStream, HostBatch
from headrace.engine.workers.deaths import STREAM_LOST

WORKER_DIED = re.compile(r"DataLoader worker \(pid")  # torch's error begins like that, mostly
NOT_RESUMABLE = (
    "The epoch can't be resumed in its middle: an IterDataPipe without state_dict() and load_state_dict(), or"
    " a stream with a replaced sampler, is left to torch's own loader, which has no state. Load a state that"
    " was saved between epochs; or call iter() once more, which starts the next epoch."
)


class TorchStream(BatchStream):
    """The batches of an `IterableDataset` by an iterator of torch's loader.

    Args:
        batches: torch's iterator.
        in_processes: whether worker processes make them.
    """

    def __init__(self, batches: Iterator[Any], *, in_processes: bool) -> None:
        self._batches = batches
        self._taken = 0
        self._in_processes = in_processes
        self._lost_stream: RuntimeError | None = None

    @property
    def processes(self) -> list[Any]:
        return _torch_compat.processes_of(self._batches)

    def shut_down(self) -> None:
        _torch_compat.shut_down(self._batches)
        self._batches = iter(())

    def __next__(self) -> HostBatch:
        if self._lost_stream is not None:
            raise self._lost_stream  # torch would end the epoch without the rest of its samples
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            self._taken += 1  # torch's loader continues after a batch that failed
            if self._in_processes and _by_a_death(error):
                told = f"{str(error).strip().rstrip('.')}. {STREAM_LOST}"
                self._lost_stream = RuntimeError(told)
                raise self._lost_stream from error
            raise
        self._taken += 1
        return HostBatch(batch, batch_size(batch), self._taken)


def _by_a_death(error: Exception) -> bool:
    """Whether torch's iterator raised `error` as a worker has died, and no code in a worker did."""
    if "in DataLoader worker process" in str(error):
        return False
    receiving = isinstance(error, (ConnectionError, EOFError, FileNotFoundError))
    return receiving or WORKER_DIED.match(str(error)) is not None


def init_lazy_worker(user_init: Callable[[int], None] | None, worker: int) -> None:
    """The user's worker_init_fn in torch's workers, whose images are lazy."""
    if "PIL.Image" in sys.modules:
        from headrace import lazy

        lazy.start_worker()
    if user_init is not None:
        user_init(worker)
