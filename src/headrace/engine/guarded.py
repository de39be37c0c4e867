"""What runs where the user's map-style dataset runs: samples seeded, bad ones named, skipped or replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch.utils.data import Dataset, Subset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from headrace.engine.seeding import generators_kept, seed_generators
from headrace.engine.stream import Stream
from headrace.records import SampleFailure

MAX_REPLACEMENTS = 16
EMPTY = "headrace: every sample of this batch was skipped"


class Ticket(NamedTuple):
    """What a worker is asked for: a sample, and the seed of what is drawn for it; None: nothing is drawn."""

    index: Any
    seed: int | None


class Guarded(Dataset[Any]):
    """A map-style dataset that is asked by `Ticket`, and gives batches as the user's collate function makes
    them: generators are seeded for each sample, failing samples are named, skipped or replaced.

    Args:
        dataset: the user's.
        collate: the user's function, or torch's.
        on_error: "raise": the user's own exception, with a note of index and path. "skip", "replace": what
            comes is a `GuardedBatch`, of only those samples that exist.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], on_error: str) -> None:
        self.dataset = dataset
        self.collate = collate
        self.on_error = on_error

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, ticket: Ticket) -> Any:
        """One sample that isn't to be batched."""
        with _generators_kept(ticket.seed):
            return self._collate([self._sample(ticket)], ticket.seed, batched=False)

    def __getitems__(self, tickets: Sequence[Ticket]) -> Any:
        """A batch; torch's loader prefers this to `__getitem__`."""
        seed = tickets[0].seed if tickets else None
        whole = _batch_getter(self.dataset) if self.on_error == "raise" else None
        with _generators_kept(seed):
            if whole is None:
                return self._collate([self._sample(ticket) for ticket in tickets], seed, batched=True)
            _seed(seed)
            samples = whole([ticket.index for ticket in tickets])
            return self._collate(samples, seed, batched=True)

    def _collate(self, samples: Any, seed: int | None, *, batched: bool) -> Any:
        _seed(seed)
        if self.on_error == "raise":
            return self.collate(samples if batched else samples[0])
        failures = tuple(s.failure for s in samples if isinstance(s, (Failed, Replaced)))
        kept = [s.sample if isinstance(s, Replaced) else s for s in samples if not isinstance(s, Failed)]
        if not kept and failures:
            return GuardedBatch(EMPTY, failures)
        return GuardedBatch(self.collate(kept if batched else kept[0]), failures)

    def _sample(self, ticket: Ticket) -> Any:
        index = ticket.index
        try:
            return self._draw(index, ticket.seed)
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
                    sample = self._draw(other, ticket.seed)
                except Exception:
                    continue
                return Replaced(sample, SampleFailure(index, path, cause, "replaced"))
        return Failed(SampleFailure(index, path, cause, "skipped"))

    def _draw(self, index: Any, seed: int | None) -> Any:
        _seed(seed)
        return self.dataset[index]


def as_it_is(batch: Any) -> Any:
    """The collate function of torch's loader inside: `Guarded` has collated."""
    return batch


def _seed(seed: int | None) -> None:
    if seed is not None:
        seed_generators(seed)


def _generators_kept(seed: int | None) -> AbstractContextManager[None]:
    # A worker process has nobody else's generators.
    return nullcontext() if seed is None or get_worker_info() is not None else generators_kept()


def _batch_getter(dataset: Any) -> Callable[[list[Any]], Any] | None:
    """The dataset's own way to give a batch at once; None: it is asked for its samples one by one."""
    inner = dataset
    while type(inner) is Subset:  # passes batches on to a dataset that takes them; others it asks one by one
        inner = inner.dataset
    return getattr(dataset, "__getitems__", None) if getattr(inner, "__getitems__", None) else None


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

    def pin_memory(self) -> GuardedBatch:
        """As torch's loader asks for it."""
        return replace(self, data=pin_memory(self.data))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class WorkerInit:
    """Shows the user's dataset, not the guard around it, to code in a worker that asks for it."""

    user_init: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, (Guarded, Stream)):
            object.__setattr__(info, "dataset", info.dataset.dataset)  # torch means it to be read only
        if self.user_init is not None:
            self.user_init(worker)


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
