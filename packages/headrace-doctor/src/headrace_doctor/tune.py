"""The settings that make a loader fastest, found by trying: torch's own DataLoader, and Headrace's."""

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
    """One setting, measured.

    Attributes:
        loader: "torch" or "headrace".
        arguments: of it that differ from its defaults.
        samples_per_second: once the first batch is there.
        first_batch_seconds: from iter() until then.
    """

    loader: str
    arguments: dict[str, Any]
    samples_per_second: float
    first_batch_seconds: float

    @property
    def on_threads(self) -> bool:
        """Whether the user's Python ran on threads that share its state."""
        return self.arguments.get("worker_kind") == "thread"

    def code(self) -> str:
        """As it is written in a program."""
        name = "headrace.DataLoader" if self.loader == "headrace" else "torch.utils.data.DataLoader"
        arguments = "".join(f", {key}={value!r}" for key, value in self.arguments.items())
        return f"{name}(dataset, …{arguments})"


@dataclass(frozen=True)
class TuneReport:
    """What was tried, in order."""

    trials: tuple[Trial, ...]

    def best(self) -> dict[str, Trial]:
        """The fastest of "torch" and, if it was tried, of "headrace" that any dataset may be given to: on
        processes or in the caller."""
        safe = [trial for trial in self.trials if not trial.on_threads]
        names = dict.fromkeys(trial.loader for trial in safe)
        return {name: _fastest([trial for trial in safe if trial.loader == name]) for name in names}

    def advice(self) -> str | None:
        """What worker threads gain, and on what condition, or None if they gain nothing or weren't tried."""
        on_threads = [trial for trial in self.trials if trial.on_threads]
        if not on_threads:
            return None
        fastest = _fastest(on_threads)
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
    given, headrace = like(loader), headrace_loader()
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
        if ours.explain().startswith(("plan: python", "plan: split")):
            attempt("headrace", num_workers=best)
            count = usable_cores()
            while threads and count <= MOST_THREADS:  # more than cores, as samples may wait
                attempt("headrace", num_workers=count, worker_kind="thread")
                count *= 2
    return TuneReport(tuple(trials))


def _fastest(trials: list[Trial]) -> Trial:
    return max(trials, key=lambda trial: trial.samples_per_second)


def like(loader: DataLoader[Any]) -> dict[str, Any]:
    """What makes another loader of the same batches, but for workers and batches ahead."""
    return {name: value for name, value in arguments_of(loader).items() if name not in ABOUT_WORKERS}


def measure(loader: DataLoader[Any], seconds: float) -> tuple[float, float]:
    """(samples per second, seconds until the first batch).

    What is made ahead while the first batch is waited for must not count as made in no time: of a long epoch
    the batches of the first twentieth aren't counted; short epochs are started again, and counted with their
    start-up.
    """
    skip = (length_of(loader) or 0) // 20
    start = began = time.perf_counter()
    first, samples, received = 0.0, 0, 0
    while time.perf_counter() - began < seconds:
        empty = True
        for batch in loader:
            empty, received = False, received + 1
            first = first or time.perf_counter() - start
            # Of a loader that is too slow to wait for so long, what comes after twice the time is counted.
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
    """The loader that is the `number`-th over which `run` iterates, which is ended then, or None if there
    weren't as many."""
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
