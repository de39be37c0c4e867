"""Datasets that run as the user's Python: torch's workers, bad samples named, skipped or replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from headrace.engine.meter import Failures, Meter
from headrace.records import SampleFailure

MAX_REPLACEMENTS = 16
EMPTY = "headrace: every sample of this batch was skipped"


class Guarded(Dataset[Any]):
    """A map-style dataset whose failing samples are named, skipped or replaced; otherwise the dataset itself.

    Args:
        dataset: the user's.
        on_error: "raise": the user's own exception, with a note of index and path. "skip", "replace": a
            `Failed` or `Replaced`, for `GuardedCollate` to take apart.
    """

    def __init__(self, dataset: Any, on_error: str) -> None:
        self.dataset = dataset
        self.on_error = on_error
        if on_error == "raise" and getattr(dataset, "__getitems__", None):
            # torch fetches whole batches through this where it exists.
            self.__getitems__ = dataset.__getitems__

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            if self.on_error == "raise":
                if hasattr(error, "add_note"):  # Python 3.11
                    error.add_note(
                        f"headrace: this was sample {index}{_in_file(self.dataset, index)} of the dataset."
                    )
                raise
            cause = f"{type(error).__name__}: {error}"
        path = _path(self.dataset, index)
        if self.on_error == "replace":
            for other in _others(index, len(self.dataset)):
                try:
                    return Replaced(self.dataset[other], SampleFailure(index, path, cause, "replaced"))
                except Exception:
                    continue
        return Failed(SampleFailure(index, path, cause, "skipped"))


@dataclass(frozen=True)
class Failed:
    """In place of a sample that is left out."""

    failure: SampleFailure


@dataclass(frozen=True)
class Replaced:
    """A sample that stands in for another."""

    sample: Any
    failure: SampleFailure


@dataclass(frozen=True)
class GuardedBatch:
    """What a worker sends: the user's batch (or EMPTY), and what failed in it."""

    data: Any
    failures: tuple[SampleFailure, ...]


@dataclass(frozen=True)
class GuardedCollate:
    """The user's collate function, given only samples that exist; `batched`: it takes a list of them."""

    collate: Callable[[Any], Any]
    batched: bool

    def __call__(self, samples: Any) -> GuardedBatch:
        listed = list(samples) if self.batched else [samples]
        failures = tuple(s.failure for s in listed if isinstance(s, (Failed, Replaced)))
        kept = [s.sample if isinstance(s, Replaced) else s for s in listed if not isinstance(s, Failed)]
        if not kept and failures:
            return GuardedBatch(EMPTY, failures)
        return GuardedBatch(self.collate(kept if self.batched else kept[0]), failures)


@dataclass(frozen=True)
class WorkerInit:
    """Shows the user's dataset, not the guard around it, to code in a worker that asks for it."""

    user_init: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, Guarded):
            object.__setattr__(info, "dataset", info.dataset.dataset)  # torch means it to be read only
        if self.user_init is not None:
            self.user_init(worker)


def guarded_loader(loader: DataLoader[Any], on_error: str) -> DataLoader[Any]:
    """torch's own DataLoader with the settings of `loader` and its map-style dataset guarded."""
    batched = loader.batch_sampler is not None
    collate = loader.collate_fn if on_error == "raise" else GuardedCollate(loader.collate_fn, batched)
    return DataLoader(
        Guarded(loader.dataset, on_error),
        batch_size=1 if batched else None,
        sampler=None if batched else loader.sampler,
        batch_sampler=loader.batch_sampler,
        num_workers=loader.num_workers,
        collate_fn=collate,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=WorkerInit(loader.worker_init_fn),
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        pin_memory_device=loader.pin_memory_device,
        in_order=loader.in_order,
    )


class PythonIterator(Iterator[Any]):
    """torch's iterator, with what Headrace adds: failures recorded, waits counted, images cast.

    Args:
        batches: torch's iterator.
        meter, failures: of the loader.
        dtype, memory_format: of four-dimensional tensors; None and contiguous_format: as they are.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        meter: Meter,
        failures: Failures,
        dtype: torch.dtype | None,
        memory_format: torch.memory_format,
    ) -> None:
        self._batches = batches
        self._meter = meter
        self._failures = failures
        self._dtype = dtype
        self._memory_format = memory_format

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]  # torch's iterators have one

    def __next__(self) -> Any:
        while True:
            start = time.monotonic()
            batch = next(self._batches)
            self._meter.wait_seconds += time.monotonic() - start
            if isinstance(batch, GuardedBatch):
                for failure in batch.failures:
                    self._failures.add(failure)
                batch = batch.data
                if isinstance(batch, str) and batch == EMPTY:
                    continue
            self._meter.batches += 1
            self._meter.samples += _batch_size(batch)
            return self._cast(batch)

    def _cast(self, value: Any) -> Any:
        if self._dtype is None and self._memory_format is torch.contiguous_format:
            return value
        if isinstance(value, torch.Tensor):
            return (
                value.to(dtype=self._dtype, memory_format=self._memory_format) if value.ndim == 4 else value
            )
        if isinstance(value, dict):
            return {key: self._cast(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._cast(item) for item in value)
        return value


def _others(index: int, size: int) -> range | list[int]:
    return [(index + step) % size for step in range(1, min(MAX_REPLACEMENTS, size - 1) + 1)]


def _path(dataset: Any, index: Any) -> str | None:
    """The file of a sample, where the dataset lists files the way torchvision's do."""
    samples = getattr(dataset, "samples", None)
    if not isinstance(samples, Sequence) or not isinstance(index, int):
        return None
    if not -len(samples) <= index < len(samples):
        return None
    entry = samples[index]
    first = entry[0] if isinstance(entry, Sequence) and len(entry) > 0 else entry
    return first if isinstance(first, str) else None


def _in_file(dataset: Any, index: Any) -> str:
    path = _path(dataset, index)
    return "" if path is None else f" ({path})"


def _batch_size(batch: Any) -> int:
    """Samples in a batch as far as its shape tells; 1 where it doesn't."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim else 1
    if isinstance(batch, dict):
        return _batch_size(next(iter(batch.values()))) if batch else 1
    if isinstance(batch, (list, tuple)) and batch:
        return _batch_size(batch[0])
    return 1
