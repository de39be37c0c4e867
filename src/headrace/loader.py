"""The front door: torch's DataLoader, planned."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, Sampler, TensorDataset

from headrace._native import ffi
from headrace.engine.iterator import Epoch, NativeIterator
from headrace.engine.lower import decoder_choice
from headrace.engine.meter import Failures, Meter
from headrace.engine.native import READ_THREADS, NativeEngine, Threads
from headrace.engine.python import PythonIterator, guarded_loader
from headrace.engine.slots import Slots
from headrace.errors import ConfigError
from headrace.measure.machine import available_memory, usable_cores
from headrace.options import DEFAULT_MEMORY_SHARE, OnError, check_options
from headrace.plan.explain import explain
from headrace.plan.physical import NativePlan, Plan, make_plan
from headrace.records import LoaderStats

# Batches in flight unless the user says otherwise. All decode threads work on one batch at a time, so that
# two already keep them busy; two more cover a training step that takes longer now and then.
DEFAULT_DEPTH = 4


class DataLoader(TorchDataLoader[Any]):
    """A `torch.utils.data.DataLoader` that runs what it understands of the dataset in native threads.

    An `ImageFolder` (or `DatasetFolder`, `ImageNet`, `headrace.ImageDataset`, a `Subset` of these) with
    ordinary torchvision transforms is read, decoded, cropped, resized, flipped and normalised without the
    GIL, straight into the batch's memory, bit for bit as torchvision does it on PIL images. Everything else
    runs as torch runs it. `explain()` says which, and why.

    All arguments of torch's DataLoader are taken, with torch's meaning. Those whose default differs, and
    those that are new:

    Args:
        num_workers: native decode threads, or worker processes where the dataset runs as Python. "auto" (the
            default): the cores that this process may use by affinity and cgroup quota; 0 for an
            `IterableDataset` (more would repeat its samples) and a `TensorDataset` (which a process would
            only slow down). 0: everything in the calling thread, when it asks.
        pin_memory: "auto" (the default): page-locked batches where CUDA is available.
        prefetch_factor: batches in flight are this × num_workers if given, else 4; fewer where
            `memory_budget` says so.
        memory_budget: bytes that batches in flight and batches still held may take together; the queue
            shrinks rather than exceed it, down to one batch. Default: an eighth of the memory available when
            the loader is made. Natively planned loaders only.
        on_error: what happens to a sample that can't be loaded. "raise" (the default): `SampleError` with
            index, path and cause. "skip": its batch is smaller. "replace": the next sample of the dataset
            that loads takes its place. Skipped and replaced samples are listed in `stats().failures` and
            logged once each.
        seed: 0 to 2**64 - 1: random parameters of a sample depend on this, the epoch's number (see
            `set_epoch`) and the sample's index alone. None (the default): a seed is drawn from torch's
            generator for every epoch, as torch draws one for its workers, so that `torch.manual_seed` makes a
            run repeatable.
        dtype: cast the images to this after the transform: torch.uint8, float16, bfloat16 or float32. None:
            as they are.
        memory_format: `torch.contiguous_format` (the default) or `torch.channels_last`, of the images.
        decoder: JPEG decoders that may be used: "auto", or names joined by commas of "headrace" (our own),
            "libjpeg-restart", "libjpeg-crop", "libjpeg-full"; "pillow" alone for none of them. All give the
            same pixels; what they refuse, Pillow decodes.

    Batches are ordinary tensors. Their memory is reused for later batches only after the last tensor on it is
    gone: keep what you like.

    Order: batches come in the sampler's order, whatever thread finishes first. Threads: each iterator is for
    one thread at a time. Fork: a loader and its iterators may be used in a forked child, which makes threads
    of its own.

    Raises:
        ConfigError: an argument can't be obeyed (a ValueError); torch's own errors for torch's own arguments.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> import headrace, torch
        >>> loader = headrace.DataLoader(TensorDataset(torch.arange(6)), batch_size=4)
        >>> [batch[0].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Literal["auto"] = "auto",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool | Literal["auto"] = "auto",
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        memory_budget: int | None = None,
        on_error: OnError = "raise",
        seed: int | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        decoder: str = "auto",
    ) -> None:
        if memory_budget is None:
            memory_budget = int(available_memory() * DEFAULT_MEMORY_SHARE)
        check_options(memory_budget, on_error, seed, decoder)
        self.memory_budget = memory_budget
        self.on_error = on_error
        self.seed = seed
        self.dtype = dtype
        self.memory_format = memory_format
        self.decoder = decoder
        self._prefetch_factor_given = prefetch_factor
        self._epoch = 0
        self._runtime = _Runtime()
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            _workers(num_workers, dataset),
            collate_fn,
            _pin(pin_memory),
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self._given_collate = collate_fn
        make_plan(None, batch_size=1, dtype=dtype, memory_format=memory_format)  # now, not at the first epoch

    def __iter__(self) -> Any:
        epoch, self._epoch = self._epoch, self._epoch + 1
        plan = self.plan()
        if plan.native is None:
            return self._python_iterator()
        # The same draws from torch's generator, in the same order, as torch's own iterators make.
        batches = iter(self._index_sampler)
        drawn = int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())
        key = self._runtime.last_key = (drawn, 0) if self.seed is None else (self.seed, epoch)
        return self._native_iterator(plan.native, batches, key)

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch; it goes up by one with every iter() by itself. Passed on to a sampler
        that has `set_epoch`.

        Matters where `seed` is given or the sampler (torch's `DistributedSampler`) wants it.
        """
        if epoch < 0:
            raise ConfigError(f"epoch ({epoch}) must be 0 or more.")
        self._epoch = epoch
        for sampler in (self.sampler, self.batch_sampler):
            pass_on = getattr(sampler, "set_epoch", None)
            if pass_on is not None:
                pass_on(epoch)

    def random_key(self, epoch: int | None = None) -> tuple[int, int]:
        """(seed, epoch) that the random parameters of an epoch's samples depend on, beside their index.

        Args:
            epoch: its number; None: the epoch begun last.

        Raises:
            ConfigError: without `seed` only the epoch begun last can be told, and only once one was begun.
        """
        if self.seed is not None and epoch is not None:
            return self.seed, epoch
        if epoch is not None or self._runtime.last_key is None:
            raise ConfigError(
                f"The random key of epoch {epoch} isn't known: without seed=… each epoch draws its own when"
                " it begins. Give the loader a seed, or ask without an epoch once one has begun."
            )
        return self._runtime.last_key

    def explain(self) -> str:
        """The plan as a table: each step, where it runs, how it compares with torchvision, and why."""
        plan = self.plan()
        return f"{explain(plan)}\n{self._resources(plan)}"

    def __getstate__(self) -> dict[str, Any]:
        # Threads and memory stay here; the copy makes its own.
        return {**self.__dict__, "_runtime": _Runtime()}

    def stats(self) -> LoaderStats:
        """What was done since the loader was made; str() of it is a table."""
        return self._runtime.stats(self.memory_budget)

    def check_worker_number_rationality(self) -> None:
        """Says nothing here: torch's own loader says it where workers are processes."""

    def plan(self) -> Plan:
        """Who runs what. Made for every epoch: a user may change the dataset's transform between epochs."""
        return make_plan(
            self.dataset,
            batch_size=1 if self._auto_collation else None,
            collate_fn=self._given_collate,
            dtype=self.dtype,
            memory_format=self.memory_format,
        )

    def _native_iterator(
        self, plan: NativePlan, batches: Iterator[Any], key: tuple[int, int]
    ) -> NativeIterator:
        runtime, depth = self._runtime, self._depth()
        slots = runtime.slots_for(self._batch_nbytes(plan), pinned=self.pin_memory, keep=depth + 2)
        engine = NativeEngine(plan, runtime.threads_for(self.num_workers), slots, runtime.meter, self.decoder)
        epoch = Epoch(*key, depth, self.memory_budget, self.timeout, self.on_error)
        iterator = NativeIterator(engine, batches, self._length(), epoch, runtime.failures)
        runtime.latest = weakref.ref(iterator)
        return iterator

    def _python_iterator(self) -> Iterator[Any]:
        runtime = self._runtime
        if isinstance(self.dataset, IterableDataset):
            batches = super().__iter__()
        else:
            if runtime.guarded is None:
                runtime.guarded = guarded_loader(self, self.on_error)
            batches = iter(runtime.guarded)
        return PythonIterator(batches, runtime.meter, runtime.failures, self.dtype, self.memory_format)

    def _depth(self) -> int:
        if self.num_workers == 0:
            return 1
        given = self._prefetch_factor_given
        return DEFAULT_DEPTH if given is None else given * self.num_workers

    def _batch_nbytes(self, plan: NativePlan) -> int:
        # A batch sampler of the user's own need not say how large its batches are.
        size = self.batch_size or getattr(self.batch_sampler, "batch_size", None)
        return (size if isinstance(size, int) else 1) * plan.sample_nbytes

    def _length(self) -> int | None:
        try:
            return len(self)
        except TypeError:
            return None  # the user's batch sampler has no len()

    def _resources(self, plan: Plan) -> str:
        if plan.native is None:
            return f"workers: {self.num_workers} processes of torch's DataLoader"
        batch = self._batch_nbytes(plan.native)
        depth = max(1, min(self._depth(), self.memory_budget // max(1, batch) - 1))
        pinned = ", pinned" if self.pin_memory else ""
        return (
            f"threads: {self.num_workers} decode, {READ_THREADS} more to read ahead once reads block\n"
            f"memory: up to {depth} batches in flight of {batch / 1e6:.1f} MB{pinned};"
            f" budget {self.memory_budget / 1e6:,.0f} MB\n"
            f"decoders: {', '.join(decoder_choice(self.decoder))} ({ffi.simd_active()})"
        )


class _Runtime:
    """What a loader keeps from epoch to epoch: threads, memory, counts."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.failures = Failures()
        self.guarded: TorchDataLoader[Any] | None = None
        self.last_key: tuple[int, int] | None = None
        self.latest: weakref.ref[NativeIterator] | None = None
        self._threads: Threads | None = None
        self._slots: Slots | None = None

    def threads_for(self, count: int) -> Threads:
        if self._threads is None:
            self._threads = Threads(count)
        return self._threads

    def slots_for(self, nbytes: int, *, pinned: bool, keep: int) -> Slots:
        if self._slots is None or self._slots.nbytes != nbytes:
            self._slots = Slots(nbytes, pinned=pinned, keep=keep)
        return self._slots

    def stats(self, budget: int) -> LoaderStats:
        meter, slots = self.meter, self._slots
        native = self._threads.stats() if self._threads is not None else None
        iterator = self.latest() if self.latest is not None else None
        decoded = dict(native.decoded_by) if native is not None else {}
        return LoaderStats(
            batches=meter.batches,
            samples=meter.samples,
            stages=meter.stages(native),
            decoded_by={**decoded, "pillow": meter.pillow_samples},
            stale_entries=0 if native is None else native.stale_entries,
            failures=tuple(self.failures.records),
            memory_used=0 if slots is None else slots.live * slots.nbytes,
            memory_allowed=budget,
            in_flight=0 if iterator is None else iterator.in_flight,
            decode_threads=0 if native is None else native.decode_threads,
            read_threads=0 if native is None else native.read_threads,
        )


def _workers(given: int | str, dataset: Any) -> int:
    if given == "auto":
        in_this_process = isinstance(dataset, (IterableDataset, TensorDataset))
        return 0 if in_this_process else usable_cores()
    if isinstance(given, bool) or not isinstance(given, int):
        raise ConfigError(f"num_workers ({given!r}) must be 'auto' or an int, 0 or more.")
    return given


def _pin(given: bool | str) -> bool:
    if given == "auto":
        return torch.cuda.is_available()
    if not isinstance(given, bool):
        raise ConfigError(f"pin_memory ({given!r}) must be 'auto', True or False.")
    return given and torch.cuda.is_available()
