"""Tries settings of a loader, of torch's own DataLoader and of Headrace's, to find the fastest."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from headrace_doctor.errors import ConfigError
from headrace_doctor.machine import usable_cores
from headrace_doctor.measure.hooks import Begin, intercepted
from headrace_doctor.measure.subject import (
    FACTOR_THAT_COUNTS,
    OF_WORKERS,
    arguments_of,
    batch_samples,
    best_workers,
    headrace_loader,
    length_of,
)

# More threads than this only take turns with the GIL.
MOST_THREADS = 64
THREAD_SAFE = (
    "only if the dataset, its transforms and collate_fn are thread-safe: no file handle, scratch buffer or"
    " drawn parameter that two samples share, no random draws; see docs/workers.md"
)
# Arguments that torch's loader has, but that are tried here, or that hold for worker processes only.
ABOUT_WORKERS = ("num_workers", "worker_init_fn", "in_order", *OF_WORKERS)


@dataclass(frozen=True)
class Trial:
    """One setting, measured."""

    loader: str  # "torch" or "headrace"
    arguments: dict[str, Any]  # that differ from its defaults
    samples_per_second: float  # once the first batch is there
    first_batch_seconds: float  # from iter() until then

    @property
    def on_threads(self) -> bool:
        """Tells whether the user's Python ran on threads that share its state."""
        return self.arguments.get("worker_kind") == "thread"

    def code(self) -> str:
        """The call of the loader, as it is written in a program."""
        name = "headrace.DataLoader" if self.loader == "headrace" else "torch.utils.data.DataLoader"
        arguments = "".join(f", {key}={value!r}" for key, value in self.arguments.items())
        return f"{name}(dataset, …{arguments})"


@dataclass(frozen=True)
class TuneReport:
    """The settings that were tried, in order."""

    trials: tuple[Trial, ...]

    def best(self) -> dict[str, Trial]:
        """The fastest of "torch" and, if it was tried, of "headrace", worker threads left out."""
        safe = [trial for trial in self.trials if not trial.on_threads]
        slowest_first = sorted(safe, key=lambda trial: (trial.loader == "headrace", _rate(trial)))
        return {trial.loader: trial for trial in slowest_first}

    def advice(self) -> str | None:
        """The gain by worker threads, and their condition, or None if they gain nothing or weren't tried."""
        fastest = max((trial for trial in self.trials if trial.on_threads), key=_rate, default=None)
        if fastest is None:
            return None
        gain = fastest.samples_per_second / max(self.best()["headrace"].samples_per_second, 1e-9)
        if gain < FACTOR_THAT_COUNTS:
            return None
        return f"{fastest.code()} gives {gain:.2f} times as many samples per second, {THREAD_SAFE}"

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        best = {name: asdict(trial) for name, trial in self.best().items()}
        return {"trials": [asdict(trial) for trial in self.trials], "best": best}


def tune(
    loader: DataLoader[Any],
    *,
    seconds: float = 3.0,
    threads: bool = False,
    progress: Callable[[str], None] = lambda what: None,  # noqa: ARG005
) -> TuneReport:
    """Tries numbers of workers and of batches ahead, by how fast batches come when nobody trains with them.

    Args:
        loader: torch's or Headrace's; it is left alone, others like it are made.
        seconds: to measure each setting for; see `measure`.
        threads: whether a dataset that runs as Python is tried on worker threads of Headrace as well. It must
            be thread-safe: code that isn't may fail in any way.
        progress: called with what is tried next, as code.

    Raises:
        ConfigError: `loader` isn't a DataLoader, or its dataset is an `IterableDataset`, whose samples more
            workers would repeat.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigError(f"{type(loader).__name__} isn't a DataLoader; give one, torch's or Headrace's.")
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            f"{type(loader.dataset).__name__} is an IterableDataset: it alone knows how many workers it can"
            " have, as each would give all of its samples again."
        )
    kept = arguments_of(loader)
    given = {name: value for name, value in kept.items() if name not in ABOUT_WORKERS}
    headrace = headrace_loader()
    trials: list[Trial] = []

    def attempt(name: str, **arguments: Any) -> float:
        progress(Trial(name, arguments, 0.0, 0.0).code())
        make: Any = headrace if name == "headrace" else DataLoader
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of more workers than cores: that is what is tried
            rate, first = measure(make(**{**given, **arguments}), seconds)
        trials.append(Trial(name, arguments, rate, first))
        return rate

    alone = attempt("torch", num_workers=0)
    best = best_workers(0, lambda n: attempt("torch", num_workers=n, persistent_workers=True), alone) or 0
    if best > 0:
        attempt("torch", num_workers=best, prefetch_factor=4, persistent_workers=True)
    if headrace is not None:
        attempt("headrace")
        ours: Any = headrace(**given)
        if ours.explain().startswith("plan: python"):
            attempt("headrace", num_workers=best)
            count = usable_cores()
            while threads and count <= MOST_THREADS:  # more than cores, as samples may wait
                attempt("headrace", num_workers=count, worker_kind="thread")
                count *= 2
    return TuneReport(tuple(trials))


def _rate(trial: Trial) -> float:
    return trial.samples_per_second


def measure(loader: DataLoader[Any], seconds: float) -> tuple[float, float]:
    """Samples per second, and seconds until the first batch.

    A twentieth of the first epoch isn't counted: much of it was made before it was asked for. Epochs that end
    are started again, and counted with their start-up.
    """
    skip = (length_of(loader) or 0) // 20
    start = began = time.perf_counter()
    first, samples, received = 0.0, 0, 0
    while time.perf_counter() - began < seconds:
        empty = True
        for batch in loader:
            empty, received = False, received + 1
            first = first or time.perf_counter() - start
            # A slow loader is counted after twice the time at the latest.
            if received <= skip and time.perf_counter() - start < 2 * seconds:
                began = time.perf_counter()
                continue
            samples += batch_samples(batch, loader.batch_size)
            if time.perf_counter() - began > seconds:
                break
        if empty:
            break
    elapsed = time.perf_counter() - began
    return (samples / elapsed if samples else 0.0), first


class Captured(BaseException):
    """Ends a script at the moment it begins to iterate over the loader that was looked for."""


def capture(run: Callable[[], None], number: int = 1) -> DataLoader[Any] | None:
    """Runs until it iterates over the `number`-th loader. Returns this one, or None if there are fewer."""
    seen: list[DataLoader[Any]] = []

    def begin(loader: DataLoader[Any], original: Begin) -> Iterator[Any]:
        if not any(loader is one for one in seen):
            seen.append(loader)
        if len(seen) == number:
            raise Captured
        return original(loader)

    try:
        with intercepted(begin):
            run()
    except Captured:
        return seen[-1]
    return None
