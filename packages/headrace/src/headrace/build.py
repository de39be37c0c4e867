"""From a configuration and a plan to a stream of batches: for the loader, and for stages of Ray."""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert

from headrace._torch_compat import default_collate_functions, default_collation_changed
from headrace.config import DEFAULT_DEPTH, LoaderConfig
from headrace.device.place import resolve_device
from headrace.device.postprocess import Postprocess, in_turn
from headrace.device.prefetcher import DevicePrefetcher
from headrace.device.resident import Residence
from headrace.engine.caller_stream import NOT_RESUMABLE, CallerStream, GatherStream
from headrace.engine.error_policy import ErrorPolicyDataset
from headrace.engine.finish import BatchTransform, Cast
from headrace.engine.iterator import KeptWorkers, LoaderIterator
from headrace.engine.meter import Failures, Meter
from headrace.engine.native import READ_THREADS, NativeEngine, NativeThreads
from headrace.engine.native_stream import NativeStream
from headrace.engine.prefetch import Prefetcher
from headrace.engine.seeding import Seeding
from headrace.engine.slots import ReusingCollate, Slots
from headrace.engine.split import ApplyTable, SplitPipelineFactory
from headrace.engine.stream import BatchStream, KeyedBatches
from headrace.engine.thread_pool import ThreadPool
from headrace.engine.thread_stream import ThreadStream
from headrace.engine.workers.iterable import REPEATS, IterableBatches, samples_to_repeat
from headrace.engine.workers.pool import Guard
from headrace.engine.workers.stream import WorkerPools, WorkerStream
from headrace.errors import ConfigError, assert_never
from headrace.order.batches import IndexBatch, OrderedBatches, SampledBatches
from headrace.order.cursor import UNDRAWN, Cursor, draw_seed
from headrace.order.progress import Batches
from headrace.order.shard import detect_rank
from headrace.plan import Plan, explain, make_plan
from headrace.plan.planner import with_batch_transform
from headrace.plan.segments import DatasetSegment, GatherSegment, NativeSegment, ValueSegment
from headrace.records import LazyCounts, LoaderStats
from headrace.sources.remote import RemoteSamples
from headrace.tuning.advice import WorkersAdvice, advise
from headrace.tuning.climb import Knob, ladder
from headrace.tuning.self_tuning import SelfTuning

# More reads in flight have brought nothing on any storage tried.
MOST_READ_THREADS = 128
# Batches that threads may have in flight: all threads work on one batch at a time, so that two already keep
# them busy; two more cover a training step that ends sooner, or a sample that takes longer, now and then.
THREAD_DEPTH = 4
MOST_NAMED = 4  # places in the user's code, of one kind
# Free slots kept where tables are applied to batches, one at a time.
KEPT = 2
# Free batches whose memory the caller's thread keeps: the one that the user holds is still in use.
CALLER_KEEPS = 1


@dataclass(frozen=True, eq=False)
class EpochOrder:
    """What comes when in one epoch.

    Attributes:
        cursor: where the epoch starts, and how far it has come.
        indices: indices of the samples of each batch, from the cursor's start to the end of the epoch.
        batches: the order that they come from.
        seeded: whether the orders of later epochs are known, too.
    """

    cursor: Cursor
    indices: Iterator[IndexBatch]
    batches: Batches
    seeded: bool = False


@dataclass(frozen=True)
class Workers:
    """Where the samples of a Python dataset are made.

    Attributes:
        kind: worker "process"es, "thread"s of this process, or the "caller"'s own thread.
        count: number of processes or threads; 0 with "caller".
        reason: reason why, in words.
    """

    kind: Literal["process", "thread", "caller"]
    count: int
    reason: str

    def __str__(self) -> str:
        """Such as ``8 processes: one for each usable core``."""
        if self.kind == "caller":
            return f"none: {self.reason}"
        plural = "" if self.count == 1 else "es" if self.kind == "process" else "s"
        return f"{self.count} {self.kind}{plural}: {self.reason}"


def plan_of(config: LoaderConfig) -> Plan:
    """Who runs what."""
    plan = make_plan(config.dataset, **plan_options(config))
    if config.batch_transform is None:
        return plan
    return with_batch_transform(plan, config.batch_transform, config.device)


def plan_options(config: LoaderConfig) -> dict[str, Any]:
    """What the plan depends on besides the dataset: arguments of `make_plan`."""
    default = not config.batched and config.collate_fn is default_convert
    recorded = config.lazy and config.num_workers > 0
    return {
        "batch_size": 1 if config.batched else None,
        "collate_fn": None if default else config.collate_fn,
        "dtype": config.dtype,
        "memory_format": config.memory_format,
        "device": config.device,
        "split": "never" if config.worker_kind == "thread" else "ops" if recorded else "always",
    }


def workers_of(config: LoaderConfig) -> Workers:
    """The workers that the user asked for: processes, unless threads are asked for by name; each stream of an
    `IterableDataset` has a process of its own."""
    count = config.num_workers
    if count == 0:
        if config.workers_given is not None:
            return Workers("caller", 0, "num_workers=0")
        of_rows = "a process would take longer to send a row than to pick it"
        return Workers("caller", 0, "the default for an IterableDataset" if config.streamed else of_rows)
    if config.streamed:
        return Workers("process", count, "each iterates over its own copy of the dataset")
    given = "one for each usable core" if config.workers_given is None else f"num_workers={count}"
    if config.worker_kind == "thread":
        return Workers("thread", count, f"{given}, worker_kind='thread'; they share the dataset's state")
    return Workers("process", count, f"{given}; each has a copy of the dataset")


def starts_processes(config: LoaderConfig, plan: Plan) -> bool:
    """Whether an epoch is made by worker processes."""
    return plan.runs_python and workers_of(config).kind == "process"


def why_no_init(config: LoaderConfig, plan: Plan) -> str:
    """Why nobody calls `worker_init_fn`, though the user passed one and asked for workers; or ""."""
    if config.worker_init_fn is None or config.num_workers == 0:
        return ""
    if not plan.runs_python and _is_timms(config.worker_init_fn):
        return ""
    on_threads = workers_of(config).kind == "thread" and plan.head is None
    by = "native code" if not plan.runs_python else "threads" if on_threads else ""
    return f"samples are made by {by}, and there are no worker processes" if by else ""


def _is_timms(worker_init: Callable[[int], Any]) -> bool:
    """Whether it is what timm's `create_loader` passes: it seeds generators that native code doesn't use."""
    if not isinstance(worker_init, partial):
        return False
    if not isinstance(worker_init.keywords.get("worker_seeding"), str):  # a function of the user's own
        return False
    name = getattr(worker_init.func, "__module__", ""), getattr(worker_init.func, "__name__", "")
    return name == ("timm.data.loader", "_worker_init")


def sharing_text(batches: Batches, seed: int | None, *, rank_given: bool) -> str:
    """Which sample comes when, and which share is this rank's; `seed` is None where one is drawn for each
    epoch."""
    order = f"order: {batches.identity()}"
    if isinstance(batches, OrderedBatches) and batches.shuffles:
        order += ", seed drawn by torch for each epoch" if seed is None else f", seed {seed}"
    if not isinstance(batches, OrderedBatches):
        whom = "sampler" if isinstance(batches, SampledBatches) else "dataset"
        why = "; rank='auto' changes nothing there" if rank_given else ""
        return f"{order}\nranks: left to the {whom}{why}"
    shard = batches.shard
    if shard.world_size == 1:
        others = 1 if rank_given else detect_rank()[1]
        each = "this process gets every sample"
        if others > 1:
            each = f"each of {others} gets every sample; pass rank='auto' to share them"
        return f"{order}\nranks: not shared, {each}"
    return (
        f"{order}\nranks: {shard.rank} of {shard.world_size}, global batches of {shard.global_batch},"
        f" remainder {'dropped' if shard.drop_last else shard.remainder}"
    )


def python_text(config: LoaderConfig, plan: Plan, counts: LazyCounts | None, *, seeded: bool) -> str:
    """The lines of `explain()` on the user's Python, where there is any; `counts` is of the first samples of
    worker processes, None where none were made."""
    if not plan.runs_python:
        return ""
    lines = []
    if isinstance(plan.samples, DatasetSegment):
        lines.append(f"images: {_images_text(config, plan, counts)}")
    if lines and counts is not None:
        own = [
            f"{name} runs as Python on the pixels of {count} images" for name, count in _most(counts.readers)
        ]
        own += [f"{name} runs as Python on {count} tensors" for name, count in _most(counts.tensor_steps)]
        lines += [f"your code: {'; '.join(own)}"] if own else []
    lines.append(f"random numbers in Python: {_drawing_text(config, seeded=seeded)}")
    return "".join(f"{line}\n" for line in lines)


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])[:MOST_NAMED]


def _images_text(config: LoaderConfig, plan: Plan, counts: LazyCounts | None) -> str:
    """What native code does for a dataset whose own code makes the samples."""
    by_pillow = "Pillow decodes those that the dataset opens"
    if not config.lazy:
        return f"{by_pillow}, because of lazy=False"
    if not starts_processes(config, plan):
        return f"{by_pillow}; native code does so in worker processes (num_workers=1 or more)"
    if counts is None:
        return "not known yet; call explain() again after the first batch"
    if counts.tensors:
        seen = f"{counts.opened} images, {counts.tensors} tensors in the first batch of each worker"
        return f"native code decodes and transforms them, and writes the tensors ({seen})"
    if counts.opened:
        why = "Python makes the tensors, because no Compose converts an image to a float tensor"
        return f"native code decodes them; {why} ({counts.opened} images in the first batch of each worker)"
    return "the dataset opened none that native code decodes, in the first batch of each worker"


def _drawing_text(config: LoaderConfig, *, seeded: bool) -> str:
    """What random numbers of the user's Python depend on."""
    kind = workers_of(config).kind
    if config.streamed:
        return "seeded as torch seeds an IterableDataset"
    if kind == "thread":
        return "not seeded, because threads share the generators"
    if seeded:
        return "seeded for each sample by seed, epoch and index"
    place = "drawn from this process's generators" if kind == "caller" else "seeded once per worker"
    return f"{place}, as in torch; pass seed=… to seed them for each sample"


class StreamBuilder:
    """Makes the streams of batches of one loader, and keeps what they share from epoch to epoch: threads,
    memory, worker processes, tensors on the device, counts. A copy of the loader has its own.

    Attributes:
        meter: counts of what was done since the loader was created.
        failures: record of samples that were skipped or replaced.
        latest: gives the iterator made last; None: there is none any more.
        tuning: settings of the native engine, and how they were found.
        residence: tensors of a gathered dataset on the device; None where there are none.
    """

    def __init__(self) -> None:
        self.meter = Meter()
        self.failures = Failures()
        self.latest: Callable[[], LoaderIterator | None] = lambda: None
        self.tuning = SelfTuning()
        self.residence: Residence | None = None
        self._processes = WorkerPools()
        self._latest: weakref.ref[WorkerStream] | None = None  # stream of worker processes started last
        self._split: Plan | None = None  # of the epoch started last, where workers finish native images
        self._threads: ThreadPool | None = None
        self._collate: ReusingCollate | None = None
        self._slots: Slots | None = None
        # Those of the caller's own thread (0 of them) and others: a pool can't change from one to the other.
        self._native: dict[bool, NativeThreads] = {}

    def __reduce__(self) -> tuple[type[StreamBuilder], tuple[()]]:
        return StreamBuilder, ()

    @property
    def lazy_counts(self) -> LazyCounts | None:
        """How the first samples of the worker processes started last were made; None: not known."""
        return self._processes.lazy_counts

    def advice(self, config: LoaderConfig, plan: Plan) -> WorkersAdvice | None:
        """Another number of worker processes to try, as far as the latest epoch shows it."""
        work, epochs = self._processes.work, self.meter.epochs()
        if work is None or not epochs or config.streamed or not starts_processes(config, plan):
            return None
        return advise(work, epochs[-1], config.num_workers)

    def end_workers(self) -> None:
        """The next epoch gets new worker processes and threads."""
        self._processes.end_idle()
        self._processes, self._latest = WorkerPools(), None
        self._threads = self._collate = None

    def keeper(self) -> Any:
        """What has worker processes that are kept for another epoch: the iterator that uses them now, or what
        stands for one; None: there are none."""
        if self._processes.idle is not None:
            return KeptWorkers(self._processes.idle)
        stream = None if self._latest is None else self._latest()
        kept = stream is not None and stream.persistent
        return self.latest() if kept else None

    def kept_key(self, config: LoaderConfig) -> tuple[int, int] | None:
        """Random key of another epoch by worker processes that were kept; None where there are none."""
        return self._processes.kept_key if config.persistent_workers else None

    def settle(self, config: LoaderConfig, plan: Plan) -> Plan:
        """`plan` with a gathered dataset's tensors on the device, where they are to live there.

        Raises:
            ConfigError: `resident=True` can't be had.
        """
        if plan.gather is None or config.device is None:
            if config.resident is True:
                why = "its batches aren't gathered from memory" if config.device else "no device is given"
                raise ConfigError(f"resident=True: the dataset can't live on a device, as {why}.")
            return plan
        asked = resolve_device(config.device), config.resident
        if self.residence is None or (self.residence.device, self.residence.wanted) != asked:
            self.residence = Residence(*asked)
        return self.residence.settle(plan)

    def stream(self, config: LoaderConfig, plan: Plan, order: EpochOrder) -> BatchStream:
        """The batches of one epoch."""
        self.tuning.forget_stream()
        if plan.native is not None:
            return self._native_stream(config, plan, plan.native, order)
        keyed = None
        if config.batch_transform is not None and config.in_order and not config.streamed:
            keyed = KeyedBatches(order.indices, order.cursor.random_key, config.samples)
            order = replace(order, indices=keyed)
        samples = plan.samples
        match samples:
            case GatherSegment():
                stream: BatchStream = GatherStream(plan, order.indices, pinned=config.pin_memory)
            case NativeSegment() | DatasetSegment():
                stream = self._python_stream(config, plan, order)
            case _:
                return assert_never(samples)
        stream.keyed = keyed
        return stream

    def transfer(self, config: LoaderConfig, plan: Plan) -> DevicePrefetcher:
        """What takes the batches of the stream made last to the device, and does there what is left to do."""
        cast = Cast(config.dtype, config.memory_format)
        values = self._values(plan)

        def take(nbytes: int) -> torch.Tensor:
            if self._slots is None or self._slots.nbytes < nbytes:
                self._slots = Slots(nbytes, pinned=config.pin_memory, keep=KEPT)
            return self._slots.take(nbytes)

        prepare = in_turn(
            None if values is None or plan.runs_python or values.where != "device" else Postprocess(values),
            ApplyTable(values, take) if values is not None and plan.runs_python else None,
            cast if plan.native is None and not cast.changes_nothing() else None,
        )
        finish = None
        if config.batch_transform is not None:
            finish = BatchTransform(config.batch_transform, resolve_device(config.device))
        return DevicePrefetcher(config.device, prepare, finish)

    def stats(self, memory_budget: int) -> LoaderStats:
        """What was done so far; `memory_budget` is the number of bytes allowed. For any thread."""
        meter, slots, native, iterator = self.meter, self._slots, self.meter.native(), self.latest()
        sent = None if self._latest is None else self._latest()
        used = 0 if self._collate is None else self._collate.live_nbytes
        used += 0 if sent is None else sent.nbytes_in_flight
        used += 0 if slots is None else slots.live * slots.nbytes
        with meter.lock:
            stages, waits = meter.stages(), meter.waits
            pillow = sum(stage.samples for stage in stages if stage.name == "pillow")
            return LoaderStats(
                batches=meter.batches,
                samples=meter.samples,
                startup_seconds=meter.startup_seconds,
                stall_seconds=waits.total,
                waits=waits.cumulative(),
                epochs_begun=meter.epochs_begun,
                epochs=meter.epochs(),
                stages=stages,
                decoded_by={**({} if native is None else native.decoded_by), "pillow": pillow},
                stale_entries=0 if native is None else native.stale_entries,
                failures=tuple(self.failures.records),
                memory_used=used,
                memory_allowed=memory_budget,
                in_flight=0 if iterator is None else iterator.in_flight,
                decode_threads=0 if native is None else native.decode_threads,
                read_threads=0 if native is None else native.read_threads,
                tuning_seconds=self.tuning.lost_seconds,
            )

    def native_settings(self, config: LoaderConfig, native: NativeSegment) -> dict[str, int]:
        """Decode threads, read threads and batches in flight that are in use, or would be."""
        settings = self.tuning.settings
        fit = config.batches_that_fit(config.samples_of_a_batch * native.sample_nbytes)
        return {
            "decode_threads": settings.get("decode_threads", config.num_workers),
            "read_threads": settings.get("read_threads", READ_THREADS),
            "depth": min(settings.get("depth", config.depth), fit),
        }

    def _values(self, plan: Plan) -> ValueSegment | None:
        # Workers that are kept keep the plan that they were started for.
        if not plan.runs_python:
            return plan.values
        return None if self._split is None else self._split.values

    def _native_stream(
        self, config: LoaderConfig, plan: Plan, native: NativeSegment, order: EpochOrder
    ) -> NativeStream:
        cursor, batches = order.cursor, order.batches
        nbytes = config.samples_of_a_batch * native.sample_nbytes
        ours = isinstance(batches, OrderedBatches)
        self._begin_tuning(config, plan, config.batches_that_fit(nbytes), tunes_depth=ours)
        settings = self.tuning.settings
        depth = settings["depth"]
        threads = self._native.setdefault(config.num_workers == 0, NativeThreads(config.num_workers))
        self.meter.count_native(threads.stats)
        if config.num_workers > 0:
            threads.use(settings["decode_threads"], settings["read_threads"])
        if self._slots is None or self._slots.nbytes != nbytes:
            self._slots = Slots(nbytes, pinned=config.pin_memory, keep=depth + 2)
        slots, key = self._slots, cursor.random_key
        engine = NativeEngine(native, key, threads, slots, self.meter, config.decoder)
        indices = order.indices
        if isinstance(native.source, RemoteSamples):
            next_use = coming = None
            if isinstance(batches, OrderedBatches):
                next_use = partial(batches.next_use, cursor) if order.seeded else None
                coming = None if batches.length() is None else partial(batches.coming, cursor)
            indices = Prefetcher(indices, native.source, next_use, coming)
        stream = NativeStream(engine, plan, indices, config, depth, self.failures)
        self.tuning.attach(stream)
        return stream

    def _begin_tuning(
        self, config: LoaderConfig, plan: Plan, most_batches: int, *, tunes_depth: bool
    ) -> None:
        """Threads and batches in flight of the native engine. The latter are left alone for a sampler of the
        user's: what it has drawn, where an epoch is left in its middle, would depend on the tuner."""
        workers = config.num_workers
        start = {
            "decode_threads": workers,
            "read_threads": READ_THREADS,
            "depth": min(config.depth, most_batches),
        }
        knobs = []
        if config.workers_given is None:
            knobs.append(Knob("decode_threads", ladder(workers, 2 * workers)))
            knobs.append(Knob("read_threads", ladder(READ_THREADS, MOST_READ_THREADS, least=8)))
        if tunes_depth and config.prefetch_factor_given is None and workers > 0:
            most = max(start["depth"], min(4 * DEFAULT_DEPTH, most_batches))
            knobs.append(Knob("depth", ladder(start["depth"], most, least=2)))
        # What settings that were found are good for.
        what = f"{explain(plan)}\nbatches of {config.samples_of_a_batch}"
        self.tuning.begin(what, start, knobs)

    def _python_stream(self, config: LoaderConfig, plan: Plan, order: EpochOrder) -> BatchStream:
        cursor, indices = order.cursor, order.indices
        self._split = None if plan.head is None else plan
        if config.streamed:
            return self._iterable_stream(config, cursor)
        guard: Any = ErrorPolicyDataset
        if self._split is not None:
            guard = SplitPipelineFactory(plan, plan_options(config), config.decoder)
        seeding = Seeding(cursor.random_key, cursor.base_seed, cursor.seeds_samples)
        workers = workers_of(config)
        match workers.kind:
            case "process":
                return self._process_stream(config, guard, seeding, indices)
            case "thread":
                return self._thread_stream(config, indices)
            case "caller":
                return self._caller_stream(config, guard, seeding, indices)
            case _:
                return assert_never(workers.kind)

    def _iterable_stream(self, config: LoaderConfig, cursor: Cursor) -> BatchStream:
        """An epoch of an `IterableDataset`, whose seeds are drawn as torch draws them.

        Raises:
            ConfigError: the state to resume from is of an epoch that torch's loader made.
        """
        workers = config.num_workers
        if cursor.start and not cursor.streams:
            raise ConfigError(NOT_RESUMABLE)
        states = cursor.streams if cursor.loaded else {}
        repeated = samples_to_repeat(states)
        if repeated:
            kind = type(config.dataset).__name__
            warnings.warn(REPEATS.format(kind=kind, count=repeated), stacklevel=6)
        begun = [worker for worker, (_, place) in states.items() if place != "before"]
        if workers and cursor.random_key != UNDRAWN and (repeated or len(begun) < workers):
            key = cursor.random_key[0], 0  # new workers, which draw what those before them drew
        else:
            key = (self.kept_key(config) if workers else None) or (draw_seed(config.generator), 0)
        cursor.random_key = key
        guard = partial(
            IterableBatches,
            batch_size=config.samples_of_a_batch,
            drop_last=config.drop_last,
            states=states,
            kept=workers == 0 or config.persistent_workers,
        )
        seeding = Seeding(key, key[0], by_sample=False)
        requests = repeat(IndexBatch((), np.empty(0, np.int64)))
        if workers == 0:
            return self._caller_stream(config, guard, seeding, requests)
        turn = (cursor.start if cursor.turn is None else cursor.turn) % workers
        return self._process_stream(config, guard, seeding, requests, turn)

    def _caller_stream(
        self, config: LoaderConfig, guard: Guard, seeding: Seeding, indices: Iterator[IndexBatch]
    ) -> CallerStream:
        collate = config.collate_fn
        if self._split is None:  # whose native part writes its batches itself
            collate = self._collate_for(config, keep=CALLER_KEEPS, alone=True)
        guarded = guard(config.dataset, collate, config.on_error)
        return CallerStream(guarded, indices, seeding, config, self.failures)

    def _process_stream(
        self,
        config: LoaderConfig,
        guard: Guard,
        seeding: Seeding,
        indices: Iterator[IndexBatch],
        turn: int = 0,
    ) -> WorkerStream:
        stream = self._processes.start_epoch(config, guard, seeding, indices, self.failures, turn)
        self._latest = weakref.ref(stream)
        started_for = stream.pool.guard  # workers that stay keep their plan
        self._split = started_for.plan if isinstance(started_for, SplitPipelineFactory) else None
        return stream

    def _thread_stream(self, config: LoaderConfig, indices: Iterator[IndexBatch]) -> ThreadStream:
        # With `prefetch_factor`, that many for each thread; else enough for each to have two samples.
        count, given = config.num_workers, config.prefetch_factor_given
        depth = max(THREAD_DEPTH, math.ceil(2 * count / max(1, config.samples_of_a_batch)) + 1)
        if given is not None:
            depth = max(1, given * count)
        if self._threads is None:
            self._threads = ThreadPool(config.num_workers)
        self._threads.use(config.num_workers)
        collate = self._collate_for(config, keep=depth + 2, alone=False)
        guarded = ErrorPolicyDataset(config.dataset, collate, config.on_error)
        return ThreadStream(self._threads, guarded, indices, config, depth, self.meter, self.failures)

    def _collate_for(self, config: LoaderConfig, *, keep: int, alone: bool) -> Callable[[Any], Any]:
        """The user's collate function, or, for torch's default one, what does the same in memory that is used
        again."""
        by_torch = config.batched and config.collate_fn is default_collate
        if not by_torch or torch.Tensor not in default_collate_functions() or default_collation_changed():
            collate: Callable[[Any], Any] = config.collate_fn
            return collate
        options = config.pin_memory, keep, alone
        if self._collate is None or self._collate.options != options:
            self._collate = ReusingCollate(pinned=config.pin_memory, keep=keep, alone=alone)
        return self._collate
