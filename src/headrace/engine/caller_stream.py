"""Batches that the calling thread makes when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from headrace import _torch_compat
from headrace._torch_compat import pin_memory
from headrace.engine.error_policy import STOPPED, ErrorPolicyDataset, Request
from headrace.engine.meter import Failures
from headrace.engine.seeding import Seeding
from headrace.engine.slots import stacking
from headrace.engine.stream import PythonStream
from headrace.engine.thread_stream import SlotsByPath
from headrace.engine.workers.iterable import EndOfStream, IterableBatches
from headrace.order.batches import IndexBatch

# Bytes of a tensor from which on it is made in memory that is used again. The C library returns that of
# large arrays to the kernel when they are freed, or not, as they happen to lie: where it does, each page of
# the next batch is asked for and cleared again, which takes as long as copying to it.
LARGE_NBYTES = 1 << 19


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
        request = Request(indices, self._seeding, self._samples)
        try:
            made = self._make(request)
        except StopIteration as error:
            raise RuntimeError(STOPPED.format("collate_fn")) from error
        if type(made) is EndOfStream:
            self.ends = {} if made.state is None else {made.worker: made.state}
            raise StopIteration
        return pin_memory(made) if self._pinned else made


class ReusingCollate:
    """torch's `default_collate`, but for large tensors, which it makes in memory that is used again.

    Args:
        shelf: where the memory comes from.
    """

    def __init__(self, shelf: SlotsByPath) -> None:
        self._shelf = shelf
        self._number = 0  # of the large tensor in its batch
        by_torch = _torch_compat.default_collate_functions()
        stack = stacking(by_torch[torch.Tensor], self._take, smallest=LARGE_NBYTES, keep_strides=True)
        self._functions = {**by_torch, torch.Tensor: stack}

    def __call__(self, samples: list[Any]) -> Any:
        """What torch's function makes of `samples`."""
        self._number = 0
        return _torch_compat.collate(samples, self._functions)

    def _take(self, nbytes: int) -> torch.Tensor:
        self._number += 1
        return self._shelf.take((self._number,), nbytes)
