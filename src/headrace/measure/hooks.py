"""Samplers in this process and in the workers of torch's loaders, installed through its public parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.util import Finalize
from pathlib import Path
from time import perf_counter
from typing import Any

from torch.utils.data import DataLoader

from headrace.measure.sampler import Sampler, announce_phase


class TimedDataset:
    """A dataset, each of whose samples is timed while a sampler runs; all else is the dataset's own."""

    def __init__(self, dataset: Any) -> None:
        vars(self)["_dataset"] = dataset

    def __getitem__(self, index: Any) -> Any:
        began = perf_counter()
        sample = self._dataset[index]
        _note(index, perf_counter() - began)
        return sample

    def __iter__(self) -> Iterator[Any]:
        samples = iter(self._dataset)
        while True:
            began = perf_counter()
            try:
                sample = next(samples)
            except StopIteration:
                return
            _note(None, perf_counter() - began)
            yield sample

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # asked for before it is there, as when this is copied
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return TimedDataset, (self._dataset,)

    # A worker_init_fn may ask what get_worker_info().dataset is an instance of.
    __class__ = property(lambda self: type(self._dataset))


def _note(index: Any, seconds: float) -> None:
    if Sampler.current is not None:
        Sampler.current.add_sample(index, seconds)


class SampledWorker:
    """A worker_init_fn that starts the worker's sampler, then calls the user's."""

    def __init__(self, folder: str, init: Callable[[int], object] | None) -> None:
        self._folder = folder
        self._init = init

    def __call__(self, worker_id: int) -> None:
        """Runs in the worker, before its first sample."""
        sampler = Sampler(Path(self._folder), "worker")
        sampler.start()
        Finalize(None, sampler.stop, exitpriority=0)
        if self._init is not None:
            self._init(worker_id)


@contextmanager
def sampled(folder: Path) -> Iterator[Callable[[str], None]]:
    """Samples this process and the workers that torch's loaders start meanwhile, however started.

    Headrace's own loader isn't hooked: it counts its stages itself.

    Args:
        folder: an existing folder; the samplers' files go there.

    Yields:
        A function that announces the name of the phase that begins now.
    """
    announce_phase(folder, "")
    sampler = Sampler(folder, "main")
    original = DataLoader.__iter__

    @functools.wraps(original)
    def begin(loader: DataLoader[Any]) -> Any:
        if type(loader).__module__.startswith("headrace.") or isinstance(loader.dataset, TimedDataset):
            return original(loader)
        dataset, init = loader.dataset, loader.worker_init_fn
        # The loader refuses other datasets by setattr(); this one yields the same samples.
        vars(loader)["dataset"] = TimedDataset(dataset)
        loader.worker_init_fn = SampledWorker(str(folder), init)
        try:
            return original(loader)
        finally:
            vars(loader)["dataset"], loader.worker_init_fn = dataset, init

    DataLoader.__iter__ = begin  # type: ignore[method-assign]
    sampler.start()
    try:
        yield functools.partial(announce_phase, folder)
    finally:
        DataLoader.__iter__ = original  # type: ignore[method-assign]
        sampler.stop()
