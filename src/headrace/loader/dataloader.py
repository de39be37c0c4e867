"""The front door: torch's DataLoader, planned."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from headrace._machine import available_memory
from headrace.device.feed import Feed, Step
from headrace.device.place import check_device, resolve_device
from headrace.device.postprocess import Postprocess, in_turn
from headrace.device.resident import Residence, check_resident
from headrace.engine.ahead import Ahead, Coming, NextUse
from headrace.engine.epoch import Epoch, NativeProducer
from headrace.engine.finish import BatchTransform
from headrace.engine.front import Front, InPlace
from headrace.engine.gather import GatherProducer
from headrace.engine.keyed import Keyed
from headrace.engine.native import READ_THREADS, NativeEngine
from headrace.engine.prefixed import FinishLevels
from headrace.engine.producer import Producer
from headrace.engine.python import Cast, TorchProducer
from headrace.engine.runtime import Runtime
from headrace.errors import ConfigError
from headrace.export import live
from headrace.export.perfetto import write_trace
from headrace.export.prometheus import MetricsServer
from headrace.loader.asked import Asked, T_co, pinning_asked, workers_asked
from headrace.loader.describe import native_text, sharing_text
from headrace.loader.tuning import SelfTuning
from headrace.loader.watched import figures
from headrace.loader.workers import PythonWorkers, drawing_text, workers_of
from headrace.options import (
    DEFAULT_MEMORY_SHARE,
    LeftOpen,
    OnError,
    OnWorkerDeath,
    WorkerKind,
    check_options,
    check_ranks,
)
from headrace.order.batches import IndexBatch, OrderedBatches, SampledBatches, StreamBatches
from headrace.order.cursor import Cursor
from headrace.order.progress import Batches, Progress
from headrace.order.sampling import OwnSamplers, wrapped_samplers
from headrace.order.shard import Remainder, detect_rank
from headrace.plan import Plan, explain, make_plan
from headrace.plan.recognise import dataset_identity
from headrace.plan.segments import NativeSegment
from headrace.records import LoaderStats
from headrace.sources.remote import RemoteSamples, remote_samples
from headrace.tuning.climb import Knob, Settings, ladder

# Batches in flight unless the user says otherwise. All decode threads work on one batch at a time, so that
# two already keep them busy; two more cover a training step that takes longer now and then.
DEFAULT_DEPTH = 4
# More reads in flight have brought nothing on any storage tried.
MOST_READ_THREADS = 128


class DataLoader(Asked[T_co]):
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
            only slow down). 0: everything in the calling thread, when it asks. The attribute is the number in
            use; a loader that is made again from the attributes of another chooses for itself again.
        pin_memory: "auto" (the default): page-locked batches where CUDA is available.
        worker_init_fn: as in torch, where there are worker processes. `explain()` and a warning say where
            there are none: native threads, and datasets gathered from memory, don't call it.
        prefetch_factor: batches in flight are this × num_workers if given, else 4; fewer where
            `memory_budget` says so.
        memory_budget: bytes that batches in flight and batches still held may take together; the queue
            shrinks rather than exceed it, down to one batch. Default: an eighth of the memory available when
            the loader is made. Natively planned loaders only.
        on_error: what happens to a sample that can't be loaded. "raise" (the default): `SampleError` with
            index, path and cause. "skip": its batch is smaller. "replace": the next sample of the dataset
            that loads takes its place. Skipped and replaced samples are listed in `stats().failures` and
            logged once each.
        seed: 0 to 2**64 - 1: the order of an epoch depends on this and the epoch's number (see `set_epoch`)
            alone, the random parameters of a sample on these and its index, also in your own code (some 8 µs
            a sample). None (the default): seeds are drawn from torch's generator for every epoch, as torch
            draws them, so that `torch.manual_seed` makes a run repeatable; with several ranks the order takes
            0. Your own code draws what it would with torch's DataLoader; see docs/order.md.
        rank: share the epoch with other processes, this one being number `rank`: each global batch of
            batch_size * world_size samples is the same set whatever the world size, and a rank has every
            world_size-th of them. "auto": rank and world size of torch.distributed, or of torchrun's
            environment; a sampler or batch sampler of yours and an `IterableDataset` are left to share by
            themselves. None (the default): not shared, as in torch; a shuffled loader warns where several
            ranks would get the same samples. A number is refused beside a sampler that isn't one of
            `headrace.order`, a batch sampler and an `IterableDataset`.
        world_size: how many processes share the epoch; given with a `rank` that isn't "auto". 1 alone says
            that every rank is meant to get every sample.
        remainder: what becomes of samples at the epoch's end that don't divide by the world size. "pad" (the
            default): some are repeated; "drop": left out; both as `DistributedSampler` does. "exact": every
            sample once, for evaluation; some ranks may then get one batch fewer.
        dtype: cast the images to this after the transform: torch.uint8, float16, bfloat16 or float32. None:
            as they are.
        memory_format: `torch.contiguous_format` (the default) or `torch.channels_last`, of the images.
        worker_kind: where samples are made of a dataset that runs as Python. "auto" (the default) and
            "process": in `num_workers` worker processes, as torch does it. "thread": on as many threads of
            this process, which share the dataset, its module and all generators, so that nothing is seeded:
            only for code that is thread-safe; docs/workers.md says what that takes.
        device: where batches are wanted, as "cuda". They are copied there beside the training step, and what
            the transform does to values (`ToTensor`, `Normalize`, …) is done there, to the same bits; see
            docs/feed.md. None (the default): batches stay where they are made.
        resident: whether a dataset that is gathered from memory (a `TensorDataset`, torchvision's MNIST,
            CIFAR and their like) lives on `device`, so that no batch has to be copied. "auto" (the default):
            where it fits in an eighth of the device's free memory; True: whatever it takes; False: never.
        batch_transform: called with each batch once it is on the device: `batch_transform(images, labels)`
            for a batch of two, else `batch_transform(batch)`; v2.MixUp and v2.CutMix, for example. All
            generators are seeded for it by (seed, epoch, first sample).
        decoder: JPEG decoders that may be used: "auto", or names joined by commas of "headrace" (our own),
            "libjpeg-restart", "libjpeg-crop", "libjpeg-full"; "pillow" alone for none of them. All give the
            same pixels; what they refuse, Pillow decodes.
        on_worker_death: what happens where a worker process is killed or exits in the middle of an epoch.
            "respawn" (the default): new ones are started and make the batches in flight again, the same ones
            in the same order; a sample that ends its process twice is an error, treated as `on_error` says.
            "raise": RuntimeError with the sample that was in hand. See docs/workers.md.
        lazy: whether `PIL.Image.open` postpones the decoding of JPEGs in worker processes (the default), so
            that a dataset that opens images itself decodes only the pixels that its crop leaves, natively.
            Pixels, errors and random numbers stay the same; see docs/lazy-images.md.

    The order with shuffle=True is a keyed permutation (`headrace.order`); with a `generator`, `sampler` or
    `batch_sampler` of yours it is exactly torch's. `state_dict()` and `load_state_dict()` save and restore
    the place in an epoch; see docs/order.md.

    Batches are ordinary tensors. Their memory is reused for later batches only after the last tensor on it is
    gone: keep what you like.

    Order: batches come in the sampler's order, whatever thread finishes first. Threads: each iterator is for
    one thread at a time. Fork: a loader and its iterators may be used in a forked child, which makes threads
    of its own.

    Raises:
        ConfigError: an argument can't be obeyed (a ValueError); torch's own errors for torch's own arguments.

    Examples:
        >>> from torch.utils.data import TensorDataset
        >>> import headrace, torch
        >>> loader = headrace.DataLoader(TensorDataset(torch.arange(6)), batch_size=4)
        >>> [batch[0].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5]]
    """

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
        decoder: str = "auto",
        rank: int | Literal["auto"] | None = None,
        world_size: int | None = None,
        remainder: Remainder = "pad",
        worker_kind: WorkerKind = "auto",
        device: str | torch.device | None = None,
        resident: bool | Literal["auto"] = "auto",
        batch_transform: Callable[..., Any] | None = None,
        on_worker_death: OnWorkerDeath = "respawn",
        lazy: bool = True,
    ) -> None:
        if memory_budget is None:
            memory_budget = int(available_memory() * DEFAULT_MEMORY_SHARE)
        check_options(memory_budget, on_error, seed, decoder, worker_kind, on_worker_death)
        check_ranks(rank, world_size, remainder)
        self.memory_budget = memory_budget
        self.on_error = on_error
        self.seed = seed
        self.dtype = dtype
        self.memory_format = memory_format
        self.decoder = decoder
        self.rank = rank
        self.world_size = world_size
        self.remainder = remainder
        self.worker_kind = worker_kind
        self.on_worker_death = on_worker_death
        self.lazy = lazy
        self.device = None if device is None else check_device(device)
        self.resident = check_resident(resident)
        if batch_transform is not None and not callable(batch_transform):
            raise ConfigError(f"batch_transform ({batch_transform!r}) must be callable, or None.")
        self.batch_transform = batch_transform
        self._progress = Progress(seed)
        self._in_torch = False
        self._warned_without_workers = False
        self._runtime = Runtime()
        self._workers = PythonWorkers()
        self._residence: Residence | None = None
        self.tuning = SelfTuning()
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            workers_asked(num_workers, dataset),
            collate_fn,
            pinning_asked(pin_memory),
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=None if isinstance(prefetch_factor, LeftOpen) else prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if self.prefetch_factor is not None and (
            prefetch_factor is None or isinstance(prefetch_factor, LeftOpen)
        ):
            self.prefetch_factor = LeftOpen(self.prefetch_factor)
        self._own_samplers = OwnSamplers(
            self.sampler if sampler is None else None, self.batch_sampler if batch_sampler is None else None
        )
        if rank is not None:
            self._batches()  # for its errors: now, not at the first epoch
        make_plan(None, batch_size=1, dtype=dtype, memory_format=memory_format)  # now, not at the first epoch

    def __iter__(self) -> Any:
        return self._start_epoch()

    def _get_iterator(self) -> Any:
        """torch's name for a new iterator with new workers, which subclasses such as Ultralytics' call."""
        if self._in_torch:
            return super()._get_iterator()
        self._workers = PythonWorkers()
        return self._start_epoch()

    def _torch_iterator(self) -> Any:
        """That of torch's own loader, which calls `_get_iterator`."""
        self._in_torch = True
        try:
            return super().__iter__()
        finally:
            self._in_torch = False

    def _start_epoch(self) -> Front:
        plan, batches = self._settled(self.plan()), self._batches()
        self._runtime.identity = None  # the dataset may have changed
        self.tuning.forget_producer()
        self._warn_of_duplicates(batches)
        self._warn_without_workers(plan)
        kept = self._workers.kept_key if self.persistent_workers else None
        cursor, indices = self._progress.begin(batches, self.generator, self._generators(), kept)
        meter = self.meter.begin_epoch(cursor.epoch)
        if isinstance(batches, StreamBatches) and not batches.resumable:
            producer: Producer = TorchProducer(
                self._torch_iterator(), self._runtime.failures, in_processes=self.num_workers > 0
            )
        else:
            producer = self._producer(plan, cursor, indices, batches)
        skipped = cursor.start // batches.positions_per_batch
        length, feed, after_step = self._length(batches), self._feed(plan), self.tuning.after_step
        front = Front(producer, cursor, length, skipped, meter, feed, after_step)
        self._runtime.latest = weakref.ref(front)
        live.publish(self, lambda loader: figures(loader, loader.stats()))
        return front

    def __len__(self) -> int:
        batches = self._batches()
        if not isinstance(batches, OrderedBatches):
            return super().__len__()
        length = batches.length()
        if length is None:
            raise TypeError("the order of this loader has no end, and so no len()")
        return length

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch; it goes up by one with every iter() by itself. Passed on to a sampler
        that has `set_epoch`. After `load_state_dict()` the number of the state's own epoch changes nothing.

        Matters where `seed` is given, where ranks share the epoch, or where the sampler (torch's
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
            ConfigError: an `IterableDataset` without a state in the middle of an epoch, or batches that come
                out of order (`in_order=False`).
        """
        if not self.in_order and self.plan().runs_python and self.num_workers > 0:
            raise ConfigError(
                "in_order=False: batches come as workers finish, so no place in the order is known."
            )
        return self._progress.save(self._batches(), self._identity())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next iter() goes on right after the state's last batch: with the same samples and random
        parameters (of your own code: if seeded), on any number of workers, batch size, rank and world size.

        Raises:
            ConfigError: the state is of another dataset, order or seed; the message says what differs.
        """
        self._progress.load(state_dict, self._batches(), self._identity(), self.seed)

    def random_key(self, epoch: int | None = None) -> tuple[int, int]:
        """(seed, epoch) that the random parameters of an epoch's samples depend on, beside their index.

        Args:
            epoch: its number; None: the epoch begun last.

        Raises:
            ConfigError: without `seed` only the epoch begun last can be told, and only once one was begun.
        """
        key = self._progress.random_key(self._batches(), epoch)
        if key is None:
            raise ConfigError(
                f"The random key of epoch {epoch} isn't known: without seed=… each epoch draws its own when"
                " it begins. Give the loader a seed, or ask without an epoch once one has begun."
            )
        return key

    def explain(self) -> str:
        """The plan as a table: each step, where it runs, how it compares with torchvision, and why."""
        plan = self.plan()
        batches = self._batches()
        seed = self._progress.seed_of(batches)
        sharing = sharing_text(batches, seed, rank_given=self.rank is not None)
        source = remote_samples(self.dataset)
        remote = "" if source is None else f"\nremote: {source.access}"
        drawing = drawing_text(self, seeded=self._progress.seed is not None) if plan.runs_python else ""
        return f"{explain(plan)}\n{sharing}\n{drawing}{self._resources(plan)}{remote}"

    def __getstate__(self) -> dict[str, Any]:
        # Threads and memory stay here; the copy makes its own.
        fresh = {
            "_runtime": Runtime(),
            "_workers": PythonWorkers(),
            "tuning": SelfTuning(),
            "_residence": None,
        }
        return {**self.__dict__, **fresh}

    def stats(self) -> LoaderStats:
        """What was done since the loader was made; str() of it is a table."""
        stats = self._runtime.stats(self.memory_budget, self._workers.live_nbytes)
        source = remote_samples(self.dataset)
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
        with self.meter.recording() as recorder, open(path, "w", encoding="utf-8") as file:
            try:
                yield
            finally:
                write_trace(file, list(recorder.events), dict(recorder.threads))

    def check_worker_number_rationality(self) -> None:
        """Says nothing here: torch's own loader says it where workers are processes."""

    def _producer(
        self, plan: Plan, cursor: Cursor, indices: Iterator[IndexBatch], batches: Batches
    ) -> Producer:
        if plan.native is not None:
            return self._native_producer(plan, plan.native, cursor, indices, batches)

        def make(batches: Iterator[IndexBatch]) -> Producer:
            if plan.gather is not None:
                return GatherProducer(plan, batches, pinned=self.pin_memory)
            return self._workers.producer(self, plan, cursor, batches)

        streamed = isinstance(self.dataset, IterableDataset)
        if self.batch_transform is None or streamed or not self.in_order:
            return make(indices)
        return Keyed(make, indices, cursor.random_key, self._samples())

    def _native_producer(
        self,
        plan: Plan,
        native: NativeSegment,
        cursor: Cursor,
        indices: Iterator[IndexBatch],
        batches: Batches,
    ) -> NativeProducer:
        runtime = self._runtime
        settings = self._begin_tuning(self.batches_that_fit(self._batch_nbytes(native)))
        depth = settings["depth"]
        threads = runtime.threads_for(self.num_workers)
        if self.num_workers > 0:
            threads.use(settings["decode_threads"], settings["read_threads"])
        slots = runtime.slots_for(self._batch_nbytes(native), pinned=self.pin_memory, keep=depth + 2)
        engine = NativeEngine(native, threads, slots, runtime.meter, self.decoder)
        key = cursor.random_key
        epoch = Epoch(*key, self.memory_budget, self.timeout, self.on_error)
        source = native.source
        wanted: Iterator[IndexBatch] = indices
        if isinstance(source, RemoteSamples):
            wanted = Ahead(indices, source, self._next_use(cursor, batches), _coming(cursor, batches))
        producer = NativeProducer(engine, plan, wanted, epoch, depth, runtime.failures)
        self.tuning.attach(producer)
        return producer

    def _next_use(self, cursor: Cursor, batches: Batches) -> NextUse | None:
        if not isinstance(batches, OrderedBatches) or self._progress.seed_of(batches) is None:
            return None
        return partial(batches.next_use, cursor)

    def _begin_tuning(self, most_batches: int) -> Settings:
        """Threads and batches in flight of the native engine."""
        start = {
            "decode_threads": self.num_workers,
            "read_threads": READ_THREADS,
            "depth": min(self._depth(), most_batches),
        }
        knobs = []
        if self.workers_given is None:
            knobs.append(Knob("decode_threads", ladder(self.num_workers, 2 * self.num_workers)))
            knobs.append(Knob("read_threads", ladder(READ_THREADS, MOST_READ_THREADS, least=8)))
        if self.prefetch_factor_given is None and self.num_workers > 0:
            most = max(start["depth"], min(4 * DEFAULT_DEPTH, most_batches))
            knobs.append(Knob("depth", ladder(start["depth"], most, least=2)))
        return self.tuning.begin(self.what(), start, knobs)

    def _settled(self, plan: Plan) -> Plan:
        """`plan` with a gathered dataset's tensors on the device, where they are to live there."""
        if plan.gather is None or self.device is None:
            if self.resident is True:
                why = (
                    "no device is given" if self.device is None else "its batches aren't gathered from memory"
                )
                raise ConfigError(f"resident=True: the dataset can't live on a device, as {why}.")
            return plan
        if self._residence is None:
            self._residence = Residence(resolve_device(self.device), self.resident)
        return self._residence.settle(plan)

    def _feed(self, plan: Plan) -> InPlace | Feed:
        """What takes batches to the device, and does there what the plan and the user want done."""
        cast = Cast(self.dtype, self.memory_format)
        late = plan.values if plan.head is None and plan.values and plan.values.where == "device" else None
        by_workers = self._workers.values if plan.head is not None else None
        take = partial(self._runtime.take, pinned=self.pin_memory)
        prepare = in_turn(
            None if late is None else Postprocess(late),
            None if by_workers is None else FinishLevels(by_workers, take),
            cast if plan.native is None and not cast.changes_nothing() else None,
        )
        finish: Step | None = None
        if self.batch_transform is not None:
            finish = BatchTransform(self.batch_transform, resolve_device(self.device))
        return InPlace(prepare, finish) if self.device is None else Feed(self.device, prepare, finish)

    def _identity(self) -> str:
        if self._runtime.identity is None:
            self._runtime.identity = dataset_identity(self.dataset)
        return self._runtime.identity

    def _warn_of_duplicates(self, batches: Batches) -> None:
        alone = self.rank is None and self.world_size is None
        if alone and isinstance(batches, OrderedBatches) and batches.shuffles and detect_rank()[1] > 1:
            warnings.warn(
                f"Each of {detect_rank()[1]} ranks gets every sample of this DataLoader. Pass rank='auto' to"
                " share them, or world_size=1 to say that this is meant.",
                stacklevel=4,
            )

    def _warn_without_workers(self, plan: Plan) -> None:
        why = self.no_workers(plan)
        if why and not self._warned_without_workers:
            self._warned_without_workers = True
            warnings.warn(
                f"worker_init_fn is not called: {why}. Leave it out; or do what it does in the dataset.",
                stacklevel=4,
            )

    def _depth(self) -> int:
        if self.num_workers == 0:
            return 1
        given = self.prefetch_factor_given
        return DEFAULT_DEPTH if given is None else given * self.num_workers

    def _batch_nbytes(self, plan: NativeSegment) -> int:
        return self.samples_of_a_batch * plan.sample_nbytes

    def _length(self, batches: Batches) -> int | None:
        """Batches of an epoch; None: it isn't known, or there is no end."""
        if isinstance(batches, OrderedBatches):
            return batches.length()
        try:
            if isinstance(batches, SampledBatches):
                return super().__len__()
            # As torch's len(), which would then warn of a dataset that gives more samples than it said.
            samples = len(self.dataset)  # type: ignore[arg-type]
            size = self.batch_size or 1
            return samples // size if self.drop_last else -(-samples // size)
        except TypeError:
            return None  # the user's batch sampler or IterableDataset has no len()

    def workers_text(self) -> str:
        """Who makes the samples, and why, in words."""
        plan = self.plan()
        if plan.gather is not None:
            where = "" if self._residence is None else f"; {self._residence.reason}"
            return f"none, batches are made when they are asked for{where}"
        if plan.native is not None:
            return f"{self.num_workers} decode threads; {self.tuning}"
        if isinstance(self.dataset, IterableDataset):
            return f"{self.num_workers} processes: an IterableDataset decides itself what comes next"
        return str(workers_of(self))

    def _resources(self, plan: Plan) -> str:
        why = self.no_workers(plan)
        uncalled = f"\nworker_init_fn: not called, as {why}" if why else ""
        if plan.native is None:
            return f"workers: {self.workers_text()}{uncalled}"
        batch = self._batch_nbytes(plan.native)
        settings = self.tuning.settings
        words = native_text(
            threads=settings.get("decode_threads", self.num_workers),
            readers=settings.get("read_threads", READ_THREADS),
            depth=min(settings.get("depth", self._depth()), self.batches_that_fit(batch)),
            batch_nbytes=batch,
            pinned=self.pin_memory,
            budget=self.memory_budget,
            decoder=self.decoder,
        )
        return f"{words}\ntuning: {self.tuning}{uncalled}"


def _coming(cursor: Cursor, batches: Batches) -> Coming | None:
    if not isinstance(batches, OrderedBatches) or batches.length() is None:
        return None
    return partial(batches.coming, cursor)
