"""Makes the samples of the user's map-style dataset: seeded, and bad ones named, skipped or replaced."""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from operator import index as number_of
from operator import length_hint
from typing import Any

from torch.utils.data import ConcatDataset, Subset, get_worker_info

from headrace._torch_compat import pin_memory
from headrace.engine.progress import NONE, ProgressCell
from headrace.engine.seeding import Seeding, generators_kept, sample_seeds, seed_generators
from headrace.errors import SampleError
from headrace.order.batches import IndexBatch
from headrace.records import SampleFailure
from headrace.sources.source import samples_of, source_of

# A bad sample is replaced by the next one of the dataset that loads; so many bad ones in a row mean that
# something else is wrong.
MAX_REPLACEMENTS = 16
STOPPED = "{} raised StopIteration, which would have ended the epoch without a word"
FORKED_CUDA_SIGN = "Cannot re-initialize CUDA in forked subprocess"  # in the message of torch's error
UNWRITTEN_SIGN = "requested and 0 written"  # in the message of NumPy's error


@dataclass(slots=True, eq=False)  # frozen, it would take three times as long to make
class Request:
    """A request to a worker for a batch."""

    batch: IndexBatch
    seeding: Seeding
    samples: int  # of the dataset; 0 if it isn't known


class ErrorPolicyDataset:
    """A map-style dataset that is asked by `Request`, and gives batches as the user's collate function makes
    them: failing samples are named, skipped or replaced, and generators are seeded for each sample if the
    request says so. Each sample is asked for once.

    With "raise" as `on_error` the user's own exception gets a note of index and path; else what comes is a
    `BatchWithFailures`, of only those samples that exist.
    """

    progress: ProgressCell | None = None  # where it is noted which sample is being made
    quarantined: Mapping[Any, str] = {}  # samples that are errors before they are tried, each with the cause

    def __init__(
        self, dataset: Any, collate: Callable[[Any], Any], on_error: str, *, batched: bool = True
    ) -> None:
        self.dataset = dataset
        self.collate = collate
        self.on_error = on_error
        self._batched = batched
        self._whole = _batch_getter(dataset) if batched and on_error == "raise" else None
        source = source_of(dataset)
        self._leased = source is not None and source.leased

    def takes_batches(self) -> bool:
        """Returns whether the dataset itself is asked for whole batches."""
        return self._whole is not None

    def make(self, request: Request) -> Any:
        """A batch, or one sample that isn't to be batched."""
        indices, whole = request.batch.listed(), self._whole
        if not request.seeding.by_sample:
            make = whole or self._plain
            if self._leased:
                with files_held(self.dataset, indices):
                    samples = make(indices)
            else:
                samples = make(indices)
            return self.collated(samples, None)
        # In the calling process the generators are then put back.
        with generators_kept() if get_worker_info() is None else nullcontext():
            seeds = sample_seeds(request.seeding.key, request.batch, request.samples)
            first = seeds[0] if seeds else None
            with files_held(self.dataset, indices):
                if whole is None:
                    samples = [self.sample(*each) for each in zip(self._noted(indices), seeds, strict=True)]
                else:
                    if first is not None:
                        seed_generators(first)
                    samples = whole(indices)
            return self.collated(samples, first)

    def sample(self, index: Any, seed: int | None) -> Any:
        """The sample, or what stands in for it: `Replaced`, `Failed`. Raises if `on_error` is "raise"."""
        try:
            if self.quarantined:
                self._check(index)
            return self._draw(index, seed)
        except Exception as error:
            if self.on_error != "raise" and not (uses_forked_cuda(error) or wrote_unfilled(error)):
                return self._stand_in(index, error, seed)
            self._name(error, index)
            raise

    def collated(self, samples: Any, seed: int | None) -> Any:
        """A batch of what `sample` gave."""
        if seed is not None:
            seed_generators(seed)
        if self.on_error == "raise":
            return self.collate(samples if self._batched else samples[0])
        failures = tuple(s.failure for s in samples if isinstance(s, (Failed, Replaced)))
        kept = [s.sample if isinstance(s, Replaced) else s for s in samples if not isinstance(s, Failed)]
        if not kept and failures:
            return BatchWithFailures(None, failures, empty=True)
        return BatchWithFailures(self.collate(kept if self._batched else kept[0]), failures)

    def _plain(self, indices: list[Any]) -> list[Any]:
        """The samples, unseeded. `sample` gives the same, but takes longer than a small sample itself."""
        if self.on_error != "raise" or self.quarantined:
            return [self.sample(index, None) for index in self._noted(indices)]
        dataset, left = self.dataset, iter(indices)
        try:
            return [dataset[i] for i in (left if self.progress is None else self.progress.each(left))]
        except Exception as error:
            self._name(error, indices[len(indices) - length_hint(left) - 1])
            raise

    def _name(self, error: Exception, index: Any) -> None:
        """Notes on `error` which sample raised it. Raises another one in place of StopIteration."""
        if isinstance(error, StopIteration):
            named = RuntimeError(STOPPED.format("a sample"))
            name_sample(named, index, file_of(self.dataset, index))
            raise named from error
        name_sample(error, index, file_of(self.dataset, index))

    def _stand_in(self, index: Any, error: Exception, seed: int | None) -> Any:
        cause, path = cause_of(error), file_of(self.dataset, index)
        if self.on_error == "replace":
            for other in _others(index, len(self.dataset)):
                if self.progress is not None:
                    self.progress.stand_in(other)
                try:
                    self._check(other)
                    sample = self._draw(other, seed)
                except Exception:
                    continue
                finally:
                    if self.progress is not None:
                        self.progress.stand_in(NONE)
                return Replaced(sample, SampleFailure(index, path, cause, "replaced"))
        return Failed(SampleFailure(index, path, cause, "skipped"))

    def _draw(self, index: Any, seed: int | None) -> Any:
        if seed is not None:
            seed_generators(seed)
        return self.dataset[index]

    def _noted(self, indices: Sequence[Any]) -> Iterable[Any]:
        """`indices`, each noted while it is made."""
        return indices if self.progress is None else self.progress.each(indices)

    def _check(self, index: Any) -> None:
        cause = self.quarantined.get(index) if self.quarantined else None
        if cause is not None:
            raise SampleError.at(index, file_of(self.dataset, index), cause)


def uses_forked_cuda(error: Exception) -> bool:
    """Returns whether CUDA was used in a process that was forked from one that uses it."""
    return isinstance(error, RuntimeError) and FORKED_CUDA_SIGN in str(error)


def wrote_unfilled(error: Exception) -> bool:
    """Returns whether deferred memory may have been passed to the system before it was filled."""
    return isinstance(error, OSError) and (error.errno == errno.EFAULT or UNWRITTEN_SIGN in str(error))


def name_sample(error: Exception, index: Any, path: str | None) -> None:
    """Notes on `error` which sample raised it; a `SampleError` says so itself."""
    if hasattr(error, "add_note") and not isinstance(error, SampleError):  # Python 3.11
        in_file = "" if path is None else f" ({path})"
        error.add_note(f"headrace: this was sample {index}{in_file} of the dataset.")


def cause_of(error: Exception) -> str:
    """Describes what was wrong with a sample, for `SampleFailure`."""
    return error.cause if isinstance(error, SampleError) else f"{type(error).__name__}: {error}"


def files_held(dataset: Any, indices: Sequence[Any]) -> AbstractContextManager[None]:
    """Within this, one of Headrace's datasets, or a Subset of one, finds the files of these samples without
    waiting for them one by one. Raises what kept all of them from it."""
    source = source_of(dataset)
    if source is None or not source.leased:
        return nullcontext()
    while type(dataset) is Subset:
        inner = samples_of(indices, len(dataset))
        if inner is None:
            return nullcontext()
        dataset, indices = dataset.dataset, [dataset.indices[i] for i in inner]
    order = samples_of(indices, len(source))
    return nullcontext() if order is None else source.holding(order)


def file_of(dataset: Any, index: Any) -> str | None:
    """The file or URL of a sample, if the dataset, or what it is a Subset or a ConcatDataset of, lists files
    the way torchvision's or Headrace's do."""
    while type(dataset) in (Subset, ConcatDataset):
        if not isinstance(index, int) or not -len(dataset) <= index < len(dataset):
            return None
        if type(dataset) is Subset:
            dataset, index = dataset.dataset, int(dataset.indices[index])
        else:
            index %= len(dataset)
            part = bisect_right(dataset.cumulative_sizes, index)
            dataset, index = dataset.datasets[part], index - (0, *dataset.cumulative_sizes)[part]
    source = source_of(dataset)
    if source is not None and isinstance(index, int) and -len(source) <= index < len(source):
        return source.path(index)
    samples = getattr(dataset, "samples", None)
    if not isinstance(samples, Sequence) or not isinstance(index, int):
        return None
    if not -len(samples) <= index < len(samples):
        return None
    entry = samples[index]
    first = entry[0] if isinstance(entry, Sequence) and len(entry) > 0 else entry
    return first if isinstance(first, str) else None


def _batch_getter(dataset: Any) -> Callable[[list[Any]], Any] | None:
    """The dataset's own way to give a batch at once, or None if it is asked for its samples one by one."""
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
class BatchWithFailures:
    """The user's batch, and what failed in it; `empty`: all of its samples were skipped, so that it isn't
    given out."""

    data: Any
    failures: tuple[SampleFailure, ...]
    empty: bool = False

    def pin_memory(self) -> BatchWithFailures:
        """Returns the same in page-locked memory, as torch's loader asks for it."""
        return replace(self, data=pin_memory(self.data))


def _others(index: Any, size: int) -> list[int]:
    """Indices of samples that may stand in for another; none, if samples aren't numbered."""
    try:
        index = number_of(index)
    except TypeError:
        return []
    return [(index + step) % size for step in range(1, min(MAX_REPLACEMENTS, size - 1) + 1)]
