"""Batches that the calling thread makes, or asks torch's own loader for, when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from headrace import _torch_compat
from headrace._torch_compat import pin_memory
from headrace.config import LoaderConfig
from headrace.device.postprocess import BITS, host_postprocess
from headrace.device.structure import batch_size
from headrace.engine.error_policy import STOPPED, ErrorPolicyDataset, Request
from headrace.engine.iterable import EndOfStream, IterableBatches
from headrace.engine.meter import Failures
from headrace.engine.seeding import Seeding
from headrace.engine.stream import BatchStream, HostBatch, PythonStream
from headrace.order.batches import NO_INDICES, IndexBatch
from headrace.plan.segments import Plan


class CallerStream(PythonStream):
    """The batches of a dataset, made in the caller's thread when they are asked for."""

    _interrupted = False  # by Ctrl-C: the same batch is made if the next one is asked for

    def __init__(
        self,
        guarded: ErrorPolicyDataset | IterableBatches,
        batches: Iterator[IndexBatch],
        seeding: Seeding,
        config: LoaderConfig,
        failures: Failures,
    ) -> None:
        super().__init__(failures)
        if isinstance(guarded, IterableBatches):
            guarded.start(seeding.key)  # with the epoch, as in torch
        self._make = guarded.make
        self._batches = batches
        # Seeds depend on the length of the dataset.
        self._request = Request(NO_INDICES, seeding, config.samples if seeding.by_sample else 0)
        self._pinned = config.pin_memory

    def _next(self) -> Any:
        request = self._request
        if not self._interrupted:
            request.batch = next(self._batches)
        self._interrupted = False
        self._taken += 1  # those after a batch that fails may be asked for
        try:
            made = self._make(request)
        except KeyboardInterrupt:
            self._interrupted = True
            self._taken -= 1
            raise
        except StopIteration as error:
            raise RuntimeError(STOPPED.format("collate_fn")) from error
        if type(made) is EndOfStream:
            self.ends = {} if made.state is None else {made.worker: made.state}
            raise StopIteration
        return pin_memory(made) if self._pinned else made


class GatherStream(BatchStream):
    """For each batch what torch's collation makes of its samples: a list of new tensors [n, …].

    They are on the device of the plan's tensors, and its table, if it has one, is applied here. An index
    outside the dataset raises IndexError; the batches after it can still be asked for, as in torch.
    """

    def __init__(self, plan: Plan, batches: Iterator[IndexBatch], *, pinned: bool) -> None:
        gather = plan.gather
        assert gather is not None
        self._gather = gather
        self._batches = batches
        self._pinned = pinned
        self._taken = 0
        self._postprocess = host_postprocess(plan)

    def __next__(self) -> HostBatch:
        batch = next(self._batches)
        self._taken += 1
        plan = self._gather
        rows = torch.as_tensor(batch.indices, dtype=torch.int64, device="cpu")
        if plan.rows is not None:
            rows = plan.rows[rows]
        rows = torch.where(rows < 0, rows + len(plan.tensors[0]), rows)
        gathered = [_take(tensor, rows) for tensor in plan.tensors]
        if self._postprocess is not None:  # a table: nothing that draws, and needs keys, is gathered
            gathered[0] = self._postprocess.images(gathered[0], None)
        if self._pinned:
            gathered = [t.pin_memory() if t.device.type == "cpu" else t for t in gathered]
        return HostBatch(gathered, len(rows), self._taken)

    def ready(self) -> int:
        """Always one: a batch is a copy of rows, made when it is asked for."""
        return 1


class TorchStream(BatchStream):
    """The batches of an `IterableDataset` by an iterator of torch's loader. Once an error has come and a
    worker process has died, every further batch raises that error."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._taken = 0
        self._lost: Exception | None = None

    @property
    def processes(self) -> list[Any]:
        return _torch_compat.processes_of(self._batches)

    def shut_down(self) -> None:
        _torch_compat.shut_down(self._batches)
        self._batches = iter(())

    def __next__(self) -> HostBatch:
        if self._lost is not None:
            raise self._lost
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            self._taken += 1  # torch's loader continues after a batch that failed
            if any(process.exitcode for process in self.processes):
                self._lost = error  # it would wait for the dead worker, or end the epoch without its samples
            raise
        self._taken += 1
        return HostBatch(batch, batch_size(batch), self._taken)


def _take_on_cpu(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    bits = BITS.get(tensor.element_size())
    plain = not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg()) and tensor.is_contiguous()
    if bits is None or not plain:
        return tensor.index_select(0, rows)
    # torch would share rows of some size out among its threads, which wait for each other where the machine
    # is busy: thirty times as long.
    return torch.from_numpy(np.take(tensor.view(bits).numpy(), rows.numpy(), axis=0)).view(tensor.dtype)


def _take(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    if tensor.device.type == "cpu":
        return _take_on_cpu(tensor, rows)
    # A device notices a bad index late, and then stops for good.
    outside = (rows < 0) | (rows >= len(tensor))
    if outside.any():
        raise IndexError(f"index {int(rows[outside][0])} is out of range for {len(tensor)} rows")
    rows = rows.pin_memory()  # or else the copy waits for all that is queued on the device
    # The data may be dropped, at the end of an epoch, before this stream has come to it.
    tensor.record_stream(torch.accelerator.current_stream(tensor.device))
    return tensor.index_select(0, rows.to(tensor.device, non_blocking=True))
