"""Datasets that run as the user's Python: in the caller's thread, or, if iterable, by torch's own loader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from headrace._torch_compat import pin_memory
from headrace.config import LoaderConfig
from headrace.device.structure import batch_size
from headrace.engine.guarded import EMPTY, STOPPED, Guarded, GuardedBatch, Request, WorkerInit
from headrace.engine.meter import Failures
from headrace.engine.producer import Made
from headrace.engine.seeding import Seeding
from headrace.engine.stream import PLACEHOLDER, Stream, StreamBatch, StreamCollate
from headrace.order.batches import IndexBatch
from headrace.order.cursor import Cursor
from headrace.records import BatchKeys

WORKER_DIED = re.compile(r"DataLoader worker \(pid")  # torch's error begins like that, mostly
STREAM_LOST = (
    "A worker of an IterableDataset can't be replaced within an epoch, whatever on_worker_death says: nobody"
    " else knows where it was in its stream. Begin another epoch; or give the dataset state_dict() and"
    " load_state_dict(), save loader.state_dict() now and then, and go on from the last one. Where memory"
    " runs out, use fewer workers."
)


class CallerProducer:
    """The batches of a map-style dataset, made in the caller's thread when they are asked for: a `Producer`.

    Args:
        guarded: makes them.
        batches: samples of each batch.
        seeding: what the samples' random numbers depend on.
        samples: number of samples of the dataset; 0: not known.
        batched: whether samples are collated to batches; False: each comes by itself.
        pinned: whether batches are moved to pinned memory.
        failures: where skipped and replaced samples are recorded.
    """

    def __init__(
        self,
        guarded: Guarded,
        batches: Iterator[IndexBatch],
        seeding: Seeding,
        samples: int,
        *,
        batched: bool,
        pinned: bool,
        failures: Failures,
    ) -> None:
        self._make = guarded.__getitems__ if batched else guarded.__getitem__
        self._batches = batches
        self._seeding = seeding
        self._samples = samples
        self._pinned = pinned
        self._failures = failures
        self._taken = 0

    def __next__(self) -> Made:
        while True:
            indices = next(self._batches)
            self._taken += 1  # those after a batch that fails may be asked for
            try:
                made = self._make(Request(indices, self._seeding, self._samples))
            except StopIteration as error:
                raise RuntimeError(STOPPED) from error
            batch = record_failures(made, self._failures)
            if isinstance(batch, str) and batch == EMPTY:
                continue
            if self._pinned:
                batch = pin_memory(batch)
            return Made(batch, batch_size(batch), self._taken)

    def ready(self) -> int:
        """None: whoever asks waits."""
        return 0

    @property
    def depth(self) -> int:
        """None: batches are made when they are asked for."""
        return 0

    @property
    def in_flight(self) -> int:
        """None."""
        return 0

    def close(self) -> None:
        """Nothing is in flight."""


def stream_loader(config: LoaderConfig, cursor: Cursor) -> DataLoader[Any]:
    """torch's own DataLoader with the settings of `config` and its stateful `IterableDataset`, which goes on
    from `cursor` in the first epoch."""
    turn = cursor.start % max(1, config.num_workers)
    batch_size = getattr(config.batch_sampler, "batch_size", None)
    stream = Stream(config.dataset, batch_size, cursor.streams, turn)
    inner = DataLoader(
        stream,
        batch_size=batch_size,
        drop_last=config.drop_last,
        collate_fn=StreamCollate(config.collate_fn, stream),
        generator=config.generator,
        **_settings(config),
    )
    # Workers that stay follow changes of it from epoch to epoch, too.
    object.__setattr__(inner, "batch_sampler", config.batch_sampler)
    return inner


def _settings(config: LoaderConfig) -> dict[str, Any]:
    in_processes = config.num_workers > 0
    return {
        "num_workers": config.num_workers,
        "pin_memory": config.pin_memory,
        "timeout": config.timeout,
        "worker_init_fn": WorkerInit(config.worker_init_fn),
        "multiprocessing_context": config.multiprocessing_context if in_processes else None,
        "prefetch_factor": config.prefetch_factor if in_processes else None,
        "persistent_workers": config.persistent_workers and in_processes,
        "pin_memory_device": config.pin_memory_device,
        "in_order": config.in_order,
    }


class TorchProducer:
    """The batches of an `IterableDataset` by an iterator of torch's loader: a `Producer`.

    Args:
        batches: torch's iterator.
        failures: where skipped and replaced samples are recorded.
        in_processes: whether worker processes make them.
    """

    def __init__(self, batches: Iterator[Any], failures: Failures, *, in_processes: bool) -> None:
        self._batches = batches
        self._taken = 0
        self._failures = failures
        self._in_processes = in_processes
        self._lost_stream: RuntimeError | None = None

    def __next__(self) -> Made:
        while True:
            batch = self._next()
            stream = None
            if isinstance(batch, StreamBatch):
                if isinstance(batch.data, str) and batch.data == PLACEHOLDER:
                    self._taken -= 1
                    continue
                stream, batch = (batch.worker, batch.state), batch.data
            batch = record_failures(batch, self._failures)
            if isinstance(batch, str) and batch == EMPTY:
                continue
            return Made(batch, batch_size(batch), self._taken, stream)

    def ready(self) -> int:
        """Not known: whoever asks waits."""
        return 0

    @property
    def depth(self) -> int:
        """Not known."""
        return 0

    @property
    def in_flight(self) -> int:
        """Not known."""
        return 0

    def close(self) -> None:
        """torch's iterator ends by itself."""

    def _next(self) -> Any:
        if self._lost_stream is not None:
            raise self._lost_stream  # torch would end the epoch without the rest of its samples
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            self._taken += 1  # torch's loader goes on after a batch that failed
            if self._in_processes and _by_a_death(error):
                told = f"{str(error).strip().rstrip('.')}. {STREAM_LOST}"
                self._lost_stream = RuntimeError(told)
                raise self._lost_stream from error
            raise
        self._taken += 1
        return batch


def _by_a_death(error: Exception) -> bool:
    """Whether torch's iterator raised `error` as a worker has died, and no code in a worker did."""
    if "in DataLoader worker process" in str(error):
        return False
    receiving = isinstance(error, (ConnectionError, EOFError, FileNotFoundError))
    return receiving or WORKER_DIED.match(str(error)) is not None


@dataclass(frozen=True)
class Cast:
    """What the user asked for of the images, where Python makes them: four-dimensional tensors.

    Attributes:
        dtype: None: as they are.
        memory_format: `torch.contiguous_format`: as they are.
    """

    dtype: torch.dtype | None
    memory_format: torch.memory_format

    def __call__(self, batch: Any, keys: BatchKeys | None) -> Any:  # noqa: ARG002
        """The batch, its images cast."""
        return self._cast(batch)

    def changes_nothing(self) -> bool:
        """Whether nothing was asked for."""
        return self.dtype is None and self.memory_format is torch.contiguous_format

    def _cast(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(dtype=self.dtype, memory_format=self.memory_format) if value.ndim == 4 else value
        if isinstance(value, dict):
            return {key: self._cast(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._cast(item) for item in value)
        return value


def record_failures(batch: Any, failures: Failures) -> Any:
    """What the user gets of a batch that `Guarded` made, or EMPTY; its failures are recorded."""
    if not isinstance(batch, GuardedBatch):
        return batch
    for failure in batch.failures:
        failures.add(failure)
    return batch.data
