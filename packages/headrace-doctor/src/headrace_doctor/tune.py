"""The settings that make a loader fastest, found by trying: torch's own DataLoader, and Headrace's."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from headrace_doctor.errors import ConfigError
from headrace_doctor.machine import usable_cores
from headrace_doctor.measure import subject
from headrace_doctor.measure.subject import batch_samples, headrace_loader, length_of, worker_counts

# Numbers of workers are tried upwards until so many in a row brought nothing.
TRIES_IN_VAIN = 2
GAIN_THAT_COUNTS = 1.03
# More threads than this only take turns with the GIL.
MOST_THREADS = 64
THREAD_SAFE = (
    "only if the dataset, its transforms and collate_fn are thread-safe: no file handle, scratch buffer or"
    " drawn parameter that two samples share, no random draws; see docs/workers.md"
)
# Arguments that torch's loader has, but that are tried here, or that hold for worker processes only.
ABOUT_WORKERS = ("num_workers", "worker_init_fn", "in_order", *subject.OF_WORKERS)


@dataclass(frozen=True)
class Trial:
    """One setting, measured.

    Attributes:
        loader: "torch" or "headrace".
        arguments: of it that differ from its defaults.
        samples_per_second: once the first batch is there.
        first_batch_seconds: from iter() until then.
        remark: Headrace's workers in words; empty for torch's.
    """

    loader: str
    arguments: dict[str, Any]
    samples_per_second: float
    first_batch_seconds: float
    remark: str = ""

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

    def best(self, loader: str) -> Trial:
        """The fastest of "torch" or "headrace" that any dataset may be given to: on processes or in the
        caller."""
        return _fastest([t for t in self.trials if t.loader == loader and not t.on_threads])

    def advice(self) -> str | None:
        """What worker threads gain, and on what condition; None where they weren't tried or gain nothing."""
        on_threads = [trial for trial in self.trials if trial.on_threads]
        if not on_threads:
            return None
        fastest, without = _fastest(on_threads), self.best("headrace")
        gain = fastest.samples_per_second / max(without.samples_per_second, 1e-9)
        if gain < GAIN_THAT_COUNTS:
            return None
        return f"{fastest.code()} gives {gain:.2f} times as many samples per second, {THREAD_SAFE}"

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return {
            "trials": [asdict(trial) for trial in self.trials],
            "best": {name: asdict(self.best(name)) for name in sorted({t.loader for t in self.trials})},
        }


def tune(
    loader: TorchDataLoader[Any],
    *,
    seconds: float = 3.0,
    threads: bool = False,
    progress: Callable[[str], None] = lambda what: None,  # noqa: ARG005
) -> TuneReport:
    """Tries numbers of workers and of batches ahead, by how fast batches come when nobody trains with them.

    Settings of the native engine are kept for this machine: Headrace's loader of the same dataset starts with
    them.

    Args:
        loader: torch's or Headrace's; it is left alone, others like it are made.
        seconds: to measure each setting for; see `measure`.
        threads: whether a dataset that runs as Python is tried on worker threads as well. It must be
            thread-safe: code that isn't may fail in any way.
        progress: called with what is tried next, as code.

    Raises:
        ConfigError: `loader` isn't a DataLoader, or its dataset is an `IterableDataset`, whose samples more
            workers would repeat.
    """
    if not isinstance(loader, TorchDataLoader):
        raise ConfigError(f"{type(loader).__name__} isn't a DataLoader; give one, torch's or Headrace's.")
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            f"{type(loader.dataset).__name__} is an IterableDataset: it alone knows how many workers it can"
            " have, as each would give all of its samples again."
        )
    given, headrace = arguments_of(loader), headrace_loader()
    trials: list[Trial] = []

    def attempt(name: str, **arguments: Any) -> float:
        progress(Trial(name, arguments, 0.0, 0.0).code())
        make: Any = headrace if name == "headrace" else TorchDataLoader
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of more workers than cores: that is what is tried
            made: Any = make(**{**given, **arguments})
            rate, first = measure(made, seconds)
        remark = made.workers_text() if name == "headrace" else ""
        trials.append(Trial(name, arguments, rate, first, remark))
        return rate

    best = _climb_workers(attempt)
    if best > 0:
        attempt("torch", num_workers=best, prefetch_factor=4, persistent_workers=True)
    if headrace is None:
        return TuneReport(tuple(trials))
    attempt("headrace")
    ours: Any = headrace(**given)
    if ours.plan().runs_python:
        attempt("headrace", num_workers=best)
        for count in _thread_counts() if threads else ():
            attempt("headrace", num_workers=count, worker_kind="thread")
    return TuneReport(tuple(trials))


def _fastest(trials: list[Trial]) -> Trial:
    return max(trials, key=lambda trial: trial.samples_per_second)


def _thread_counts() -> list[int]:
    """The usable cores, and twice as many again and again: samples may wait."""
    cores = usable_cores()
    return [cores] + [cores * 2**k for k in range(1, 7) if cores * 2**k <= MOST_THREADS]


def _climb_workers(attempt: Callable[..., float]) -> int:
    best, best_rate, in_vain = 0, attempt("torch", num_workers=0), 0
    for workers in worker_counts(max(16, 4 * usable_cores())):
        rate = attempt("torch", num_workers=workers, persistent_workers=True)
        in_vain = 0 if rate > GAIN_THAT_COUNTS * best_rate else in_vain + 1
        if rate > best_rate:
            best, best_rate = workers, rate
        if in_vain == TRIES_IN_VAIN and workers >= usable_cores():
            break
    return best


def arguments_of(loader: TorchDataLoader[Any]) -> dict[str, Any]:
    """What makes another loader of the same batches, but for workers and batches ahead."""
    return {name: value for name, value in subject.arguments_of(loader).items() if name not in ABOUT_WORKERS}


def measure(loader: TorchDataLoader[Any], seconds: float) -> tuple[float, float]:
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

    def __init__(self, loader: TorchDataLoader[Any]) -> None:
        super().__init__("a loader was found")
        self.loader = loader


def capture(run: Callable[[], None], number: int = 1) -> TorchDataLoader[Any] | None:
    """The loader that is the `number`-th over which `run` iterates, which is ended then; None: there weren't
    as many."""
    seen: list[int] = []
    classes = [cls for cls in (TorchDataLoader, headrace_loader()) if cls is not None]
    originals = {cls: cls.__iter__ for cls in classes}

    def watch(loader: TorchDataLoader[Any]) -> Any:
        if id(loader) not in seen:
            seen.append(id(loader))
        if len(seen) == number:
            raise Captured(loader)
        return next(originals[cls] for cls in type(loader).__mro__ if cls in originals)(loader)

    for cls in classes:
        cls.__iter__ = watch  # type: ignore[method-assign]
    try:
        run()
    except Captured as captured:
        return captured.loader
    finally:
        for cls, original in originals.items():
            cls.__iter__ = original  # type: ignore[method-assign]
    return None
