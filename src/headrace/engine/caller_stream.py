"""Batches that the calling thread makes when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from headrace._torch_compat import pin_memory
from headrace.device.structure import children, tensors
from headrace.engine.error_policy import STOPPED, ErrorPolicyDataset, Request
from headrace.engine.meter import Failures
from headrace.engine.seeding import Seeding
from headrace.engine.stream import PythonStream
from headrace.engine.thread_stream import PreallocatedCollate, SlotsByPath, tensor_bytes
from headrace.engine.workers.iterable import EndOfStream, IterableBatches
from headrace.order.batches import IndexBatch

# Bytes of a sample from which on a batch is made in memory that is used again. The C library returns that of
# large arrays to the kernel when they are freed, or not, as they happen to lie: where it does, each page of
# the next batch is asked for and cleared again, which takes as long as copying to it.
LARGE_NBYTES = 1 << 17


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

    Attributes:
        shelf: memory for batches of large samples; None where torch's default collation doesn't make them.
    """

    shelf: SlotsByPath | None = None

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
        self._guarded = guarded
        self._make = guarded.__getitems__ if batched else guarded.__getitem__
        self._places: bool | None = None  # None: it isn't known yet how large samples are
        self._batches = batches
        self._seeding = seeding
        self._samples = samples
        self._pinned = pinned

    def _next(self) -> Any:
        indices = next(self._batches)
        self._taken += 1  # those after a batch that fails may be asked for
        request = Request(indices, self._seeding, self._samples)
        try:
            made = self._place(request) if self.shelf is not None else self._make(request)
        except StopIteration as error:
            raise RuntimeError(STOPPED.format("collate_fn")) from error
        if type(made) is EndOfStream:
            raise StopIteration
        return pin_memory(made) if self._pinned else made

    def _place(self, request: Request) -> Any:
        """A batch in memory that is used again, once a first batch has shown that its samples are large."""
        shelf, guarded, samples = self.shelf, self._guarded, len(request.batch.indices)
        assert shelf is not None
        assert isinstance(guarded, ErrorPolicyDataset)
        if self._places:
            placing = PreallocatedCollate(samples, shelf)
            return guarded.placed(request, placing.place_made, placing.collate)
        made = guarded.placed(request, _as_made, self._first)
        if self._places is False:
            self.shelf = None
        return made

    def _first(self, samples: list[Any]) -> Any:
        """The first batch, by torch's collation. It decides whether the next ones are made in reused memory.

        torch's strides are kept: of samples that aren't contiguous, those of a batch needn't be, either.
        Samples that lie in the same memory are copied when all of them are made, as by torch.
        """
        batch = default_collate(samples)
        large = tensor_bytes(batch, arrays=False) >= LARGE_NBYTES * len(samples)
        self._places = large and all(map(_is_contiguous, tensors(batch))) and not _share_memory(samples)
        return batch


def _as_made(_position: int, sample: Any) -> Any:
    return sample


def _share_memory(samples: list[Any]) -> bool:
    """Whether arrays or tensors lie in the same memory, as where a dataset fills one buffer again."""
    ranges = sorted(_ranges(samples))
    return any(after[0] < before[1] for before, after in pairwise(ranges))


def _ranges(value: Any) -> Iterator[tuple[int, int]]:
    """(start, end) of the memory of each array and tensor."""
    if isinstance(value, torch.Tensor):
        yield value.data_ptr(), value.data_ptr() + value.nbytes
    elif isinstance(value, np.ndarray):
        yield value.ctypes.data, value.ctypes.data + value.nbytes
    else:
        yield from (each for child in children(value) for each in _ranges(child))


def _is_contiguous(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.is_contiguous()
