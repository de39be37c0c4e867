"""The front door: torch's DataLoader, planned."""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial, wraps
from typing import Any, Literal, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterableDataset, IterDataPipe, Sampler, TensorDataset

from headrace._machine import available_memory, usable_cores
from headrace.build import StreamBuilder, plan_of
from headrace.config import (
    DEFAULT_MEMORY_SHARE,
    LeftOpen,
    LoaderConfig,
    OnError,
    Resident,
    WorkerKind,
    refuses_removed,
)
from headrace.device.place import check_device, pinning_helps
from headrace.engine.caller_stream import TorchStream
from headrace.engine.daemons import daemon_threads
from headrace.engine.iterable import has_state
from headrace.engine.iterator import LoaderIterator
from headrace.engine.stream import BatchStream
from headrace.errors import ConfigError
from headrace.export import live
from headrace.export.figures import figures
from headrace.export.perfetto import write_trace
from headrace.export.prometheus import MetricsServer
from headrace.order.batches import Batches, OrderedBatches, SampledBatches, StreamBatches, count_batches
from headrace.order.progress import Progress, TorchDraws
from headrace.order.sampling import OwnSamplers, wrapped_samplers
from headrace.order.shard import Remainder, detect_rank
from headrace.plan import Plan, explain
from headrace.plan.environment import Environment, starts_processes, why_no_init
from headrace.plan.planner import check_output
from headrace.plan.recognize import dataset_identity
from headrace.records import LoaderStats
from headrace.sources.source import source_of

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)


class DataLoader(TorchDataLoader[T_co]):
    """A `torch.utils.data.DataLoader` that runs the steps that it recognizes in native threads.

    An `ImageFolder` (or `DatasetFolder`, `ImageNet`, `headrace.ImageDataset`, a `Subset` of these, a
    `ConcatDataset` of those with the same transform), or timm's `ImageDataset` of a folder, with transforms
    of torchvision or timm is read, decoded and transformed without the GIL, directly into the memory of the
    batch, with the pixels that these compute on PIL images, bit for bit. Everything else runs as in torch.
    `explain()` reports which steps run natively, and why others do not.

    Takes all arguments of torch's DataLoader, with torch's meaning. The arguments whose default differs, and
    those that are new:

    Args:
        num_workers: number of native decode threads, or of worker processes if the dataset runs as Python.
            "auto" (the default) uses the cores that this process may use by affinity and cgroup quota, and 0
            for an `IterableDataset` (more would repeat its samples) and a `TensorDataset` (which processes
            would only slow down). With 0 everything runs in the calling thread, on demand. The attribute is
            the number in use; a loader that is re-created from the attributes of another chooses again.
        pin_memory: "auto" (the default) returns page-locked batches if CUDA is available.
        worker_init_fn: as in torch, if there are worker processes. Native threads and datasets gathered from
            memory do not call it, which `explain()` and a warning report.
        prefetch_factor: batches in flight per worker. By default four batches are in flight, or two per
            worker process; fewer if `memory_budget` requires it.
        memory_budget: bytes that batches in flight and batches still referenced may take together. The queue
            shrinks rather than exceed it, down to one batch. Default: an eighth of the memory that is
            available when the loader is created.
        on_error: what happens to a sample that cannot be loaded. "raise" (the default) raises `SampleError`
            with index, path and cause; "skip" makes its batch smaller; "replace" puts the next sample of the
            dataset that loads in its place. Skipped and replaced samples are listed in `stats().failures` and
            logged once each. timm's `ImageDataset` replaces unreadable files itself, whatever is given here.
        seed: 0 to 2**64 - 1. With a seed, the order of an epoch depends on the seed and the number of the
            epoch (see `set_epoch`) alone, and the random parameters of a sample on these and its index, also
            in your own code (about 8 µs per sample). With None (the default) a seed is drawn from torch's
            generator for every epoch, as torch does, so that `torch.manual_seed` makes a run repeatable; with
            several ranks the order uses 0. Your own code then draws what it draws with torch's DataLoader;
            see docs/order.md.
        rank: number of this process among those that share the epoch. Each global batch of
            batch_size * world_size samples contains the same samples whatever the world size, and each rank
            gets every world_size-th of them. "auto" takes rank and world size from torch.distributed or from
            torchrun's environment, and leaves sharding to your own sampler or batch sampler and to an
            `IterableDataset`. None (the default) does not shard the epoch, as in torch; a shuffled loader
            warns if several ranks would get the same samples. A number cannot be combined with a batch
            sampler, an `IterableDataset`, or a sampler that is not one of `headrace.order`.
        world_size: number of processes that share the epoch, given together with a number as `rank`.
            `world_size=1` alone confirms that every rank is to get every sample.
        remainder: what happens at the end of an epoch that the world size does not divide. "pad" (the
            default) repeats samples and "drop" omits some, both as `DistributedSampler` does; "exact" returns
            every sample once, for evaluation, and some ranks may then get one batch fewer.
        dtype: type that images are cast to after the transform: torch.uint8, float16, bfloat16 or float32.
            None (the default) keeps the type.
        memory_format: `torch.contiguous_format` (the default) or `torch.channels_last`, of the images.
        worker_kind: where a dataset that runs as Python makes its samples. "auto" (the default) and "process"
            mean `num_workers` worker processes, as in torch. "thread" means as many threads of this process,
            which share the dataset, its module and all generators, so that nothing is seeded: only for
            thread-safe code, see docs/workers.md.
        device: device of the batches, for example "cuda". They are copied there while the training step runs,
            and the pointwise end of the transform (`ToTensor`, `Normalize`, …) is computed there, with the
            same bits; see docs/feed.md. With None (the default) batches stay on the CPU.
        resident: whether a dataset that is gathered from memory (a `TensorDataset`, torchvision's MNIST,
            CIFAR and similar) is kept on `device`, so that no batch has to be copied. "auto" (the default)
            does so if it fits into an eighth of the device's free memory, True always, False never.
        batch_transform: called with each batch once it is on the device: `batch_transform(images, labels)`
            for a batch of two parts, otherwise `batch_transform(batch)`; for example v2.MixUp or v2.CutMix.
            All generators are seeded for it by (seed, epoch, first sample).
        deferred: whether images that are opened in worker processes are decoded late, and transforms of
            torchvision record what they do there (the default): native code decodes only the pixels that a
            crop leaves, and makes the tensor. Pixels, errors, random numbers and tensors are the same. With
            False, Pillow and torchvision do everything. See docs/deferred-images.md.

    The order with shuffle=True is a keyed permutation (`headrace.order`); with your own `generator`,
    `sampler` or `batch_sampler` it is exactly torch's. `state_dict()` and `load_state_dict()` save and
    restore the position in an epoch; see docs/order.md.

    Batches are ordinary tensors. Their memory is reused for later batches only after the last tensor on it is
    freed, so that holding on to batches is safe. They are returned in the sampler's order, whatever thread
    finishes first. Use an iterator in one thread at a time. A forked child may use a loader and its
    iterators, and starts threads of its own.

    Raises:
        ConfigError: an argument is invalid (a ValueError). torch's arguments raise torch's own errors.

    Examples:
        >>> from torch.utils.data import TensorDataset
        >>> import headrace, torch
        >>> loader = headrace.DataLoader(TensorDataset(torch.arange(6)), batch_size=4)
        >>> [batch[0].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]
    """

    memory_budget: int
    on_error: OnError
    seed: int | None
    dtype: torch.dtype | None
    memory_format: torch.memory_format
    rank: int | Literal["auto"] | None
    world_size: int | None
    remainder: Remainder
    worker_kind: WorkerKind
    deferred: bool
    device: torch.device | None
    resident: Resident
    batch_transform: Callable[..., Any] | None
    _progress: Progress
    _builder: StreamBuilder
    _identity: str | None = None  # of the dataset, once it is asked for
    _in_torch = False
    _torchs_iterator: Any = None  # whose worker processes are kept
    _reported_length: int | None = None  # samples of an IterableDataset, by len()
    _warned = False
    _advised = False

    @refuses_removed
    def __init__(
        self,
        dataset: Dataset[T_co],
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
        rank: int | Literal["auto"] | None = None,
        world_size: int | None = None,
        remainder: Remainder = "pad",
        worker_kind: WorkerKind = "auto",
        device: str | torch.device | None = None,
        resident: Resident = "auto",
        batch_transform: Callable[..., Any] | None = None,
        deferred: bool = True,
    ) -> None:
        budget = _default_budget(int(time.monotonic())) if memory_budget is None else memory_budget
        vars(self).update(  # by name it would take three times as long: see `__setattr__`
            memory_budget=budget,
            on_error=on_error,
            seed=seed,
            dtype=dtype,
            memory_format=memory_format,
            rank=rank,
            world_size=world_size,
            remainder=remainder,
            worker_kind=worker_kind,
            deferred=deferred,
            device=None if device is None else check_device(device),
            resident=resident,
            batch_transform=batch_transform,
            _progress=Progress(seed),
            _builder=StreamBuilder(),
        )
        left_open = prefetch_factor is None or isinstance(prefetch_factor, LeftOpen)
        super().__init__(  # by name: Lightning notes how torch's class is called, and calls this one so
            dataset=dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=_workers(num_workers, dataset),
            collate_fn=collate_fn,
            pin_memory=_pin(pin_memory),
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=None if left_open else prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if left_open and self.prefetch_factor is not None:
            self.prefetch_factor = LeftOpen(self.prefetch_factor)
        self._own_samplers = OwnSamplers(
            self.sampler if sampler is None else None, self.batch_sampler if batch_sampler is None else None
        )
        # For their errors: now, not at the first epoch.
        check_output(dtype, memory_format)
        config = self._builder.config_of(self)
        if rank is not None:
            self._batches(config)

    def __setattr__(self, attr: str, val: Any) -> None:
        if "_own_samplers" not in self.__dict__:  # the constructor is at work
            object.__setattr__(self, attr, val)
            return
        # Read as by the constructor, so that what is assigned later takes effect at the next epoch.
        read = READINGS.get(attr)
        super().__setattr__(attr, val if read is None else read(self, val))
        self._builder.forget_config()  # what isn't an argument is set in the `__dict__`, without this

    def __iter__(self) -> Any:
        with daemon_threads:
            return self._start_epoch()

    def _get_iterator(self) -> Any:
        """torch's name for a new iterator with new workers, which subclasses such as Ultralytics' call."""
        if self._in_torch:
            return super()._get_iterator()
        self._iterator = None
        with daemon_threads:
            return self._start_epoch()

    @property
    def _iterator(self) -> Any:
        """torch's name for what has the worker processes that are kept, or None. Clean-up code
        of trainers calls its `_shutdown_workers()`, and sets None."""
        return self._builder.keeper() if self._torchs_iterator is None else self._torchs_iterator

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        vars(self)["_torchs_iterator"] = iterator
        if iterator is None and "_own_samplers" in vars(self):  # or else the constructor is at work
            self._builder.end_workers()

    def _torch_iterator(self) -> Any:
        """The iterator of torch's own loader, which calls `_get_iterator`."""
        self._in_torch = True
        try:
            return super().__iter__()
        finally:
            self._in_torch = False

    def _start_epoch(self) -> LoaderIterator:
        config, builder, progress = self._builder.config_of(self), self._builder, self._progress
        batches = self._batches(config)
        if isinstance(batches, StreamBatches) and progress.resumes:
            builder.end_workers()  # those that stay know nothing of the state to resume from
        plan = builder.plan(config)
        if self._identity is not None:  # the dataset may have changed
            self._identity = None
        if config.num_workers or batches.shuffles:
            self._warn(config, plan, batches)
        by_torch = isinstance(batches, StreamBatches) and self._needs_torch()
        draws = TorchDraws(
            generator=self.generator,
            generators=self._generators() if isinstance(batches, SampledBatches) else (),
            kept=builder.kept(config),
            keyed=not plan.runs_python or self.batch_transform is not None,
            lazily=self.num_workers == 0,
            by_torch=by_torch,
        )
        epoch, indices = progress.begin(batches, draws)
        meter = builder.meter.begin_epoch(epoch.start.epoch)
        if by_torch:
            stream: BatchStream = TorchStream(self._torch_iterator())
        else:
            stream = builder.stream(config, plan, epoch, indices)
        iterator = LoaderIterator(
            stream,
            epoch,
            meter,
            builder.transfer(config, plan),
            None if by_torch else self._reported_length,  # torch warns itself
        )
        builder.latest = weakref.ref(iterator)
        live.publish(self, _figures)
        return iterator

    def _needs_torch(self) -> bool:
        """Returns whether an `IterableDataset` is left to torch's loader: torch seeds and shards an
        `IterDataPipe` itself (one with a state isn't left to it), and follows a subclass's own sampler."""
        followed = self._own_samplers.are_followed(self.sampler, self.batch_sampler)
        pipe = isinstance(self.dataset, IterDataPipe) and not has_state(self.dataset)
        return pipe or not followed

    def __len__(self) -> int:
        batches = self._batches()
        if isinstance(batches, OrderedBatches):
            length = batches.length()
            if length is None:
                raise TypeError("the order of this loader has no end, and so no len()")
            return length
        length = super().__len__()
        if isinstance(batches, StreamBatches):
            vars(self)["_reported_length"] = len(self.dataset)  # type: ignore[arg-type]
        return length

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch; it goes up by one with every iter() by itself. Passed on to a sampler
        that has `set_epoch`. After `load_state_dict()` the number of the state's own epoch changes nothing.

        Matters if `seed` is given, if ranks share the epoch, or if the sampler (torch's
        `DistributedSampler`) wants it.
        """
        if epoch < 0:
            raise ConfigError(f"epoch ({epoch}) must be 0 or more.")
        self._progress.set_epoch(epoch)
        for sampler in (self.sampler, *wrapped_samplers(self.batch_sampler)):
            pass_on = getattr(sampler, "set_epoch", None)
            if pass_on is not None:
                pass_on(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch that was received, whatever was prefetched beyond it: a dict of
        ints, strings and None, and of what the user's own sampler or `IterableDataset` gives as its state.
        It is the same on all ranks that share an epoch, each having received as many batches.

        Raises:
            ConfigError: batches come out of order (`in_order=False`).
        """
        if not self.in_order and self.num_workers > 0 and self.plan().runs_python:
            raise ConfigError(
                "in_order=False: batches come as workers finish, so no place in the order is known."
            )
        return self._progress.save(self._batches(), self._dataset_identity())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next iter() resumes right after the state's last batch: with the same samples and random
        parameters (of your own code: if seeded), on any number of workers, batch size, rank and world size.
        Of an `IterableDataset` without a state all samples before it are made again, and dropped.

        Raises:
            ConfigError: the state is of another dataset, order or seed; the message says what differs.
        """
        batches = self._batches()
        self._progress.load(state_dict, batches, self._dataset_identity(), self.seed)

    def random_key(self, epoch: int | None = None) -> tuple[int, int]:
        """(seed, epoch) that the random parameters of an epoch's samples depend on, with their index.

        Args:
            epoch: its number, or None for the epoch started last.

        Raises:
            ConfigError: without `seed` only the key of the epoch started last is known.
        """
        key = self._progress.random_key(self._batches(), epoch)
        if key is None:
            raise ConfigError(
                f"The random key of epoch {epoch} isn't known: without seed=… each epoch draws its own when"
                " it starts. Give the loader a seed, or ask without an epoch once one has started."
            )
        return key

    def __getstate__(self) -> dict[str, Any]:
        # Threads and memory stay here; the copy makes its own, and has a place of its own in the epoch.
        own = {"_builder": StreamBuilder(), "_progress": self._progress.copy(), "_torchs_iterator": None}
        return {**self.__dict__, **own}

    def plan(self) -> Plan:
        """Plans who runs what, for every epoch: a user may change the dataset's transform between epochs."""
        return plan_of(self._builder.config_of(self))

    def explain(self) -> str:
        """The plan as a table: each step, where it runs, how it compares with torchvision, and why."""
        config = self._builder.config_of(self)
        plan = plan_of(config)
        return explain(plan, self._environment(config, plan))

    def workers_text(self) -> str:
        """Says in words who makes the samples, and why."""
        config = self._builder.config_of(self)
        plan = plan_of(config)
        return self._environment(config, plan).workers(plan)

    def _environment(self, config: LoaderConfig, plan: Plan) -> Environment:
        batches, builder, source = self._batches(config), self._builder, source_of(self.dataset)
        return Environment(
            config=config,
            batches=batches,
            seed=self._progress.seed_of(batches),
            seeded=self._progress.seed is not None,
            counts=builder.deferral_counts,
            advice=builder.advice(config, plan),
            residence="" if builder.residence is None else builder.residence.reason,
            remote="" if source is None else source.store,
        )

    def stats(self) -> LoaderStats:
        """The statistics since the loader was made; str() of them is a table."""
        stats = self._builder.stats(self.memory_budget)
        source = source_of(self.dataset)
        return stats if source is None else replace(stats, remote=source.stats())

    def serve_metrics(self, port: int = 0, *, name: str = "loader") -> MetricsServer:
        """Serves `stats()` to Prometheus, on this machine only; see `headrace.export.MetricsServer`.

        Args:
            port: 0 (the default): any that is free.
            name: the value of the label `loader`.
        """
        return MetricsServer({name: self}, port)

    @contextmanager
    def trace(self, path: str | os.PathLike[str]) -> Iterator[None]:
        """Records every batch and step inside the `with` block, and writes them to `path` at its end, as JSON
        that ui.perfetto.dev opens; the latest 100,000 events are kept. See docs/stats.md.

        Raises:
            ConfigError: this loader is being traced already.
        """
        with self._builder.meter.recording() as recorder, open(path, "w", encoding="utf-8") as file:
            try:
                yield
            finally:
                write_trace(file, list(recorder.events), dict(recorder.threads))

    def check_worker_number_rationality(self) -> None:
        """Does nothing yet: the first epoch warns if there are more worker processes than cores."""

    def _batches(self, config: LoaderConfig | None = None) -> Batches:
        """Batches of an epoch that would start now; `config` is what the loader's attributes give, if known.

        Raises:
            ConfigError: they can't be shared among ranks.
        """
        config, own = config or self._builder.config_of(self), self._own_samplers
        rank = config.rank
        if config.streamed:
            if rank not in (None, "auto"):
                raise ConfigError(
                    f"rank ({rank!r}): the epoch can't be shared among ranks with an IterableDataset,"
                    " which must do that itself. rank='auto' leaves that to it."
                )
            length = partial(count_batches, self.dataset, self.batch_size, self.drop_last)
            return StreamBatches(self.num_workers, length)
        ranks = detect_rank() if rank == "auto" else (rank or 0, config.world_size or 1)
        batches = own.batches(self.sampler, self.batch_sampler, self.dataset, ranks, config.remainder)
        if rank is not None and isinstance(batches, SampledBatches):
            own.check_shareable(batches, rank)
        return batches

    def _generators(self) -> list[torch.Generator]:
        """The generators that the user's sampler may draw from besides torch's default one."""
        holders = [self, self.sampler, *wrapped_samplers(self.batch_sampler)]
        generators = [getattr(holder, "generator", None) for holder in holders]
        return list({id(g): g for g in generators if isinstance(g, torch.Generator)}.values())

    def _dataset_identity(self) -> str:
        if self._identity is None:
            self._identity = dataset_identity(self.dataset)
        return self._identity

    def _warn(self, config: LoaderConfig, plan: Plan, batches: Batches) -> None:
        """Warns of what is probably not meant."""
        alone = config.rank is None and config.world_size is None
        if alone and batches.shuffles and detect_rank()[1] > 1:
            text = (
                f"Each of {detect_rank()[1]} ranks gets every sample of this DataLoader. Pass rank='auto' to"
                " share them, or world_size=1 to say that this is meant."
            )
            warnings.warn(text, stacklevel=4)
        if config.workers_given is None and not self._advised:
            workers, reason = self._builder.advice(config, plan) or (None, "")
            if workers == 0:
                self._advised = True
                text = (
                    f"The {config.num_workers} processes of this DataLoader (its num_workers was left open)"
                    f" may be slower than none: {reason}. Pass num_workers=0, or the number you want."
                )
                warnings.warn(text, stacklevel=4)
        if self._warned or config.num_workers == 0:
            return
        vars(self)["_warned"] = True
        if starts_processes(config, plan):
            super().check_worker_number_rationality()
        why = why_no_init(config, plan)
        if why:
            text = f"worker_init_fn is not called: {why}. Leave it out; or do what it does in the dataset."
            warnings.warn(text, stacklevel=4)


def _figures(loader: DataLoader[Any]) -> dict[str, Any]:
    return figures(loader, loader._builder.latest())


class ReplacingDataLoader(DataLoader[T_co]):
    """A loader that a program creates by calling torch's class, after `headrace.install()`.

    Differs from `DataLoader` only if `num_workers` is left out and the dataset runs as Python: that means 0,
    as it does in torch, since the program was written for that.
    """

    # Lightning creates loaders again, with arguments by the names in the signature.
    @wraps(DataLoader.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(self.num_workers, LeftOpen) and self.num_workers and self.plan().runs_python:
            self.num_workers = 0


@lru_cache(maxsize=1)
def _default_budget(second: int) -> int:  # noqa: ARG001
    """The bytes that a loader created in that second may use. To ask the system each time would take longer
    than all else that creates a loader."""
    return int(available_memory() * DEFAULT_MEMORY_SHARE)


def _workers(given: int | str, dataset: Any) -> int:
    if given == "auto" or isinstance(given, LeftOpen):
        in_this_process = isinstance(dataset, (IterableDataset, TensorDataset))
        return LeftOpen(0 if in_this_process else usable_cores())
    if isinstance(given, bool) or not isinstance(given, int):
        raise ConfigError(f"num_workers ({given!r}) must be 'auto' or an int, 0 or more.")
    return given


def _pin(given: bool | str) -> bool:
    if given == "auto":
        return pinning_helps()
    if not isinstance(given, bool):
        raise ConfigError(f"pin_memory ({given!r}) must be 'auto', True or False.")
    return given and pinning_helps()


def _seed(loader: DataLoader[Any], given: int | None) -> int | None:
    loader._progress.seed = given
    return given


# What a loader makes of a value that is assigned to one of these attributes.
READINGS: dict[str, Callable[[DataLoader[Any], Any], Any]] = {
    "num_workers": lambda loader, given: _workers(given, loader.dataset),
    "pin_memory": lambda _, given: _pin(given),
    "device": lambda _, given: None if given is None else check_device(given),
    "seed": _seed,
}
