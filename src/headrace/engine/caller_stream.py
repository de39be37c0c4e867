"""Batches that the calling thread makes when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace._torch_compat import pin_memory
from headrace.engine.error_policy import STOPPED, ErrorPolicyDataset, Request
from headrace.engine.meter import Failures
from headrace.engine.seeding import Seeding
from headrace.engine.stream import PythonStream
from headrace.engine.workers.iterable import EndOfStream, IterableBatches
from headrace.order.batches import IndexBatch


class CallerStream(PythonStream):
    """The batches of a dataset, made in the caller's thread when they are asked for.

    Args:
        guarded: the dataset, which makes batches.
        batches: indices of the samples of each batch.
        seeding: what the samples' random numbers depend on.
        samples: length of the dataset; 0 where it isn't known.
        batched: whether samples are collated to batches; False: each comes by itself.
        pinned: whether batches are moved to pinned memory.
        failures: where skipped and replaced samples are recorded.
    """

    def __init__(
        self,
        guarded: ErrorPolicyDataset | IterableBatches,
        batches: Iterator[IndexBatch],
        seeding: Seeding,
        samples: int,
        *,
        batched: bool,
        pinned: bool,
        failures: Failures,
    ) -> None:
        super().__init__(failures)
        if isinstance(guarded, IterableBatches):
            guarded.start(seeding.key)  # with the epoch, as in torch
        self._make = guarded.__getitems__ if batched else guarded.__getitem__
        self._batches = batches
        self._seeding = seeding
        self._samples = samples
        self._pinned = pinned

    def _next(self) -> Any:
        indices = next(self._batches)
        self._taken += 1  # those after a batch that fails may be asked for
        try:
            made = self._make(Request(indices, self._seeding, self._samples))
        except StopIteration as error:
            raise RuntimeError(STOPPED.format("collate_fn")) from error
        if type(made) is EndOfStream:
            raise StopIteration
        return pin_memory(made) if self._pinned else made
