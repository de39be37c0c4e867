"""An `IterableDataset`, in a worker process or in the caller's: each request is for its next batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import Any

from torch.utils.data import get_worker_info

from headrace._torch_compat import pin_memory
from headrace.engine.error_policy import STOPPED, Request
from headrace.engine.workers.progress import ProgressCell
from headrace.engine.workers.transport import collation


class EndOfStream:
    """In place of a batch: the dataset of this worker has given all of its epoch."""


@dataclass(frozen=True)
class ResumableBatch:
    """A batch of a dataset that can be resumed.

    Attributes:
        data: the user's batch.
        worker: number of the worker that made it; 0 for the caller's process.
        state: (state of the dataset after it, whether it had then given all of its epoch).
    """

    data: Any
    worker: int
    state: tuple[Any, bool]

    def pin_memory(self) -> ResumableBatch:
        """The same in pinned memory; torch's function for batches calls this."""
        return replace(self, data=pin_memory(self.data))


def has_state(dataset: Any) -> bool:
    """Whether `dataset` can be resumed: it has state_dict() and load_state_dict()."""
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")


class IterableBatches:
    """The batches of an `IterableDataset`, taken as torch's loader takes them. A request with the key of
    another epoch starts the dataset again.

    Args:
        dataset: the user's.
        collate: the user's function, or torch's.
        on_error: not followed: nobody knows what a dataset that fails would have given next.
        batch_size: samples of a batch.
        drop_last: whether a last batch of fewer samples is left out.
        states: states that the first epoch resumes from, by worker, as in `ResumableBatch`; batches are then
            of that class. None: the dataset has no state.

    Attributes:
        progress, quarantined: not used; which sample is being made isn't known.
    """

    progress: ProgressCell | None = None
    quarantined: Mapping[Any, str] = {}

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        on_error: str,  # noqa: ARG002
        *,
        batch_size: int,
        drop_last: bool,
        states: Mapping[int, tuple[Any, bool]] | None = None,
    ) -> None:
        self.dataset = dataset
        self._collate = collate
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._states = None if states is None else dict(states)
        self._epoch: tuple[int, int] | None = None
        self._samples: Iterator[Any] = iter(())
        self._ended = False

    def __getitem__(self, request: Request) -> Any:
        """The next sample, converted; `EndOfStream` where there is none."""
        samples = self._next_samples(request, 1)
        return self._with_state(self._collate(samples[0])) if samples else EndOfStream()

    def __getitems__(self, request: Request) -> Any:
        """The next batch; `EndOfStream` where there is none."""
        samples = self._next_samples(request, self._batch_size)
        if not samples or (self._drop_last and len(samples) < self._batch_size):
            return EndOfStream()
        with collation():
            batch = self._collate(samples)
        return self._with_state(batch)

    def start(self, key: tuple[int, int]) -> None:
        """Starts the dataset for the epoch of `key`, unless that is done."""
        if key == self._epoch:
            return
        self._epoch, self._ended = key, False
        self._samples = iter(())  # where the dataset fails, nothing of an earlier epoch is left
        worker = _worker()
        if self._states is not None and worker in self._states:
            state, self._ended = self._states.pop(worker)
            self.dataset.load_state_dict(state)
            if self._ended:  # its state is that of the next epoch's start
                return
        try:
            samples = iter(self.dataset)
        except StopIteration as error:
            raise RuntimeError(STOPPED.format("the dataset's __iter__")) from error
        # Not the iterator itself, which may start again when iter() is called with it, as where it is the
        # dataset: `islice` would do so for every batch. It may continue after an error.
        self._samples = map(next, repeat(samples))

    def _next_samples(self, request: Request, count: int) -> list[Any]:
        self.start(request.seeding.key)
        samples = [] if self._ended else list(islice(self._samples, count))
        if len(samples) < count:
            self._ended = True  # the dataset isn't asked again, as in torch
        return samples

    def _with_state(self, batch: Any) -> Any:
        if self._states is None:
            return batch
        return ResumableBatch(batch, _worker(), (copy.deepcopy(self.dataset.state_dict()), self._ended))


def _worker() -> int:
    """Number of this worker; 0 in the caller's process."""
    info = get_worker_info()
    return 0 if info is None else info.id
