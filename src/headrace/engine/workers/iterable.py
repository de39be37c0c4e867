"""An `IterableDataset` in a worker process: each request is for its next batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice, repeat
from typing import Any

from headrace.engine.error_policy import Request
from headrace.engine.workers.progress import ProgressCell
from headrace.engine.workers.transport import collation


class EndOfStream:
    """In place of a batch: the dataset of this worker has given all of its epoch."""


def each_next(dataset: Any) -> Iterator[Any]:
    """The samples of `dataset`, whose own iterator may start again when iter() is called with it, as where it
    is the dataset itself: `islice` would do so for every batch. It may continue after an error."""
    return map(next, repeat(iter(dataset)))


class IterableBatches:
    """The batches of an `IterableDataset`, taken as torch's loader takes them. A request with the key of
    another epoch starts the dataset again.

    Args:
        dataset: the user's.
        collate: the user's function, or torch's.
        on_error: not followed: nobody knows what a dataset that fails would have given next.
        batch_size: samples of a batch.
        drop_last: whether a last batch of fewer samples is left out.

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
    ) -> None:
        self.dataset = dataset
        self._collate = collate
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._epoch: tuple[int, int] | None = None
        self._samples: Iterator[Any] = iter(())
        self._ended = False

    def __getitem__(self, request: Request) -> Any:
        """The next sample, converted; `EndOfStream` where there is none."""
        samples = self._next_samples(request, 1)
        return self._collate(samples[0]) if samples else EndOfStream()

    def __getitems__(self, request: Request) -> Any:
        """The next batch; `EndOfStream` where there is none."""
        samples = self._next_samples(request, self._batch_size)
        if not samples or (self._drop_last and len(samples) < self._batch_size):
            return EndOfStream()
        with collation():
            return self._collate(samples)

    def _next_samples(self, request: Request, count: int) -> list[Any]:
        if request.seeding.key != self._epoch:
            self._epoch, self._ended = request.seeding.key, False
            self._samples = iter(())  # where the dataset fails, nothing of an earlier epoch is left
            self._samples = each_next(self.dataset)
        samples = [] if self._ended else list(islice(self._samples, count))
        if len(samples) < count:
            self._ended = True  # the dataset isn't asked again, as in torch
        return samples
