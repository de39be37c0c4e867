"""How long samples and collating take, timed where torch's loader asks for them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

from torch.utils.data import _DatasetKind

MOST_SLOWEST = 10
# Upper edges of the histogram's bins, seconds: each half an octave above the one before, from 10 µs to 160 s.
EDGES = tuple(1e-5 * 2 ** (step / 2) for step in range(49))


class FetchTimes:
    """Durations of single samples, and of batches."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.squares = 0.0
        self.bins = [0] * (len(EDGES) + 1)
        self.slowest: list[tuple[float, int, Any]] = []
        self.together = 0
        self.batches = 0
        self.batch_seconds = 0.0
        self.collate_seconds = 0.0

    def sample(self, index: Any, seconds: float) -> None:
        """One sample was made."""
        self.count += 1
        self.seconds += seconds
        self.squares += seconds * seconds
        self.bins[_bin(seconds)] += 1
        if len(self.slowest) < MOST_SLOWEST:
            heapq.heappush(self.slowest, (seconds, self.count, index))
        elif seconds > self.slowest[0][0]:
            heapq.heapreplace(self.slowest, (seconds, self.count, index))

    def samples_together(self, count: int, seconds: float) -> None:
        """Samples were made by one call of `__getitems__`: how long each took can't be known."""
        self.count += count
        self.together += count
        self.seconds += seconds

    def to_json(self) -> dict[str, Any]:
        """For a line of the sampler's file.

        Returns:
            "samples": {"count", "total_seconds", "sum_of_squares" of seconds, "bins": [[upper edge in
            seconds, samples], …] without empty bins, "together": of the count, those made by one call for
            several, which are in no other number than the total, "slowest": [[seconds, index], …]
            longest first; of an iterable dataset, the index is None}; "batches": {"count", "total_seconds",
            "collate_seconds"}. Of a loader without batches (batch_size=None) one sample is one batch.
        """
        bins = [
            [round(EDGES[at], 6) if at < len(EDGES) else None, count]
            for at, count in enumerate(self.bins)
            if count
        ]
        slowest = [
            [round(row[0], 6), _plain(row[2])] for row in sorted(self.slowest, key=lambda row: -row[0])
        ]
        return {
            "samples": {
                "count": self.count,
                "total_seconds": round(self.seconds, 6),
                "sum_of_squares": round(self.squares, 9),
                "together": self.together,
                "bins": bins,
                "slowest": slowest,
            },
            "batches": {
                "count": self.batches,
                "total_seconds": round(self.batch_seconds, 6),
                "collate_seconds": round(self.collate_seconds, 6),
            },
        }


def _bin(seconds: float) -> int:
    low, high = 0, len(EDGES)
    while low < high:
        middle = (low + high) // 2
        if EDGES[middle] < seconds:
            low = middle + 1
        else:
            high = middle
    return low


def _plain(index: Any) -> Any:
    """The index as JSON has it."""
    return index if isinstance(index, (int, str, type(None))) else repr(index)[:200]


# Where this process notes its times; None while nobody samples it.
_noting: FetchTimes | None = None
_on_fetcher: Callable[[], None] | None = None


def note_into(times: FetchTimes | None, on_fetcher: Callable[[], None] | None = None) -> None:
    """From now on, this process's loaders note their times there.

    Args:
        times: None: nowhere.
        on_fetcher: called whenever a loader is about to make samples in this process.
    """
    global _noting, _on_fetcher
    _noting, _on_fetcher = times, on_fetcher


class TimedDataset:
    """The user's dataset, timed; all but `__getitem__` and `__getitems__` is the dataset's own."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, index: Any) -> Any:
        began = perf_counter()
        sample = self._dataset[index]
        if _noting is not None:
            _noting.sample(index, perf_counter() - began)
        return sample

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # asked for before it is there, as when this is copied
            raise AttributeError(name)
        value = getattr(self._dataset, name)
        return _together(value) if name == "__getitems__" and value else value


def _together(getitems: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A dataset's `__getitems__`, timed."""

    def timed(indices: Any) -> Any:
        began = perf_counter()
        samples = getitems(indices)
        if _noting is not None:
            _noting.samples_together(len(indices), perf_counter() - began)
        return samples

    return timed


class TimedIterator:
    """An iterable dataset's iterator, timed."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def __iter__(self) -> TimedIterator:
        return self

    def __next__(self) -> Any:
        began = perf_counter()
        sample = next(self._iterator)
        if _noting is not None:
            _noting.sample(None, perf_counter() - began)
        return sample

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)


class TimedCollate:
    """The user's collate_fn, timed."""

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        self._collate_fn = collate_fn

    def __call__(self, samples: Any) -> Any:
        began = perf_counter()
        batch = self._collate_fn(samples)
        if _noting is not None:
            _noting.collate_seconds += perf_counter() - began
        return batch


def time_fetcher(fetcher: Any) -> Any:
    """Times what a fetcher of torch's loader does from now on; its own code does it still.

    Returns:
        The same fetcher.
    """
    if type(fetcher.dataset).__module__.startswith("headrace."):
        return fetcher  # our loader has its own numbers
    fetcher.collate_fn = TimedCollate(fetcher.collate_fn)
    if hasattr(fetcher, "dataset_iter"):
        fetcher.dataset_iter = TimedIterator(fetcher.dataset_iter)
    else:
        fetcher.dataset = TimedDataset(fetcher.dataset)
    fetch = fetcher.fetch
    if _on_fetcher is not None:
        _on_fetcher()

    def timed(indices: Any) -> Any:
        began = perf_counter()
        batch = fetch(indices)
        if _noting is not None:
            _noting.batches += 1
            _noting.batch_seconds += perf_counter() - began
        return batch

    fetcher.fetch = timed
    return fetcher


_create_fetcher: Callable[..., Any] = _DatasetKind.create_fetcher


def _create_timed(*args: Any, **kwargs: Any) -> Any:
    return time_fetcher(_create_fetcher(*args, **kwargs))


def time_fetchers() -> None:
    """From now on, fetchers that torch's loaders make in this process are timed, while a sampler runs."""
    _DatasetKind.create_fetcher = staticmethod(_create_timed)  # type: ignore[method-assign]


def leave_fetchers() -> None:
    """Undoes `time_fetchers` for fetchers that aren't made yet."""
    _DatasetKind.create_fetcher = staticmethod(_create_fetcher)  # type: ignore[method-assign]
