"""From a configuration and a plan to a stream of batches: for the loader, and for stages of Ray."""

from __future__ import annotations

import math
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, repeat
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, default_convert

from headrace._torch_compat import default_collate_functions, default_collation_changed
from headrace.config import LoaderConfig
from headrace.device.place import resolve_device
from headrace.device.postprocess import Postprocess, in_turn
from headrace.device.prefetcher import DevicePrefetcher
from headrace.device.resident import Residence
from headrace.engine.advice import WorkersAdvice, advise
from headrace.engine.caller_stream import NOT_RESUMABLE, CallerStream, GatherStream
from headrace.engine.error_policy import ErrorPolicyDataset
from headrace.engine.finish import BatchTransform, Cast
from headrace.engine.iterable import REPEATS, IterableBatches, samples_to_repeat
from headrace.engine.iterator import LoaderIterator
from headrace.engine.meter import Failures, Meter
from headrace.engine.native import NativeEngine, NativeThreads
from headrace.engine.native_stream import NativeStream
from headrace.engine.prefetch import Prefetcher
from headrace.engine.seeding import Seeding
from headrace.engine.slots import ReusingCollate, Slots
from headrace.engine.split import ApplyTable, SplitPipelineFactory
from headrace.engine.stream import BatchStream, KeyedBatches
from headrace.engine.thread_pool import ThreadPool
from headrace.engine.thread_stream import ThreadStream
from headrace.engine.workers.pool import Guard
from headrace.engine.workers.stream import KeptWorkers, WorkerPools, WorkerStream
from headrace.errors import ConfigError, assert_never
from headrace.order.batches import IndexBatch, OrderedBatches, SampledBatches
from headrace.order.cursor import UNDRAWN, Cursor, draw_seed
from headrace.order.progress import Batches
from headrace.plan import Plan, make_plan
from headrace.plan.environment import starts_processes, workers_of
from headrace.plan.planner import with_batch_transform
from headrace.plan.segments import DatasetSegment, GatherSegment, NativeSegment, ValueSegment
from headrace.records import LazyCounts, LoaderStats
from headrace.sources.remote import RemoteSamples

# Batches that threads may have in flight: all threads work on one batch at a time, so that two already keep
# them busy; two more cover a training step that ends sooner, or a sample that takes longer, now and then.
THREAD_DEPTH = 4
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


def as_torch_draws(config: LoaderConfig, order: EpochOrder, depth: int) -> Iterator[IndexBatch]:
    """The batches of an epoch for a stream that takes `depth` of them ahead. The user's sampler is asked for
    as many as with torch's loader, so that generators are where torch leaves them if an epoch is left early.
    """
    batches = order.indices
    if not isinstance(order.batches, SampledBatches):
        return batches
    drawn = deque(islice(batches, max(0, config.depth_by_torch - depth)))

    def draw() -> Iterator[IndexBatch]:
        for batch in batches:
            drawn.append(batch)
            yield drawn.popleft()
        yield from drawn

    return draw()


class StreamBuilder:
    """Makes the streams of batches of one loader, and keeps what they share from epoch to epoch: threads,
    memory, worker processes, tensors on the device, counts. A copy of the loader has its own.

    Attributes:
        meter: counts of what was done since the loader was created.
        failures: record of samples that were skipped or replaced.
        latest: gives the iterator made last; None: there is none any more.
        residence: tensors of a gathered dataset on the device; None where there are none.
    """

    def __init__(self) -> None:
        self.meter = Meter()
        self.failures = Failures()
        self.latest: Callable[[], LoaderIterator | None] = lambda: None
        self.residence: Residence | None = None
        self._processes = WorkerPools()
        self._latest: weakref.ref[WorkerStream] | None = None  # stream of worker processes started last
        self._kept: Cursor | None = None  # the epoch started last with `persistent_workers`
        self._kept_processes = False  # whether worker processes made it
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
        self._processes, self._latest, self._kept = WorkerPools(), None, None
        self._threads = self._collate = None

    def keeper(self) -> Any:
        """What has worker processes that are kept for another epoch: the iterator that uses them now, or what
        stands for one; None: there are none."""
        if self._processes.idle is not None:
            return KeptWorkers(self._processes.idle)
        stream = None if self._latest is None else self._latest()
        kept = stream is not None and stream.persistent
        return self.latest() if kept else None

    def kept(self, config: LoaderConfig) -> Cursor | None:
        """The epoch before, if torch would use its iterator again, whoever made the samples; None if it would
        make a new one, or if worker processes were kept and are gone."""
        if not config.persistent_workers or config.num_workers == 0:
            return None
        gone = self._kept_processes and self._processes.idle is None
        return None if gone else self._kept

    def keep(self, config: LoaderConfig, plan: Plan, cursor: Cursor) -> None:
        """Notes an epoch that has started, for `kept`."""
        if config.persistent_workers and config.num_workers > 0:
            self._kept, self._kept_processes = cursor, starts_processes(config, plan)

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
        if plan.native is not None:
            return self._native_stream(config, plan, plan.native, order)
        keyed = None
        if config.batch_transform is not None and config.in_order and not config.streamed:
            keyed = KeyedBatches(order.indices, order.cursor.random_key, config.samples)
            order = replace(order, indices=keyed)
        samples = plan.samples
        match samples:
            case GatherSegment():
                indices = as_torch_draws(config, order, depth=0)
                stream: BatchStream = GatherStream(plan, indices, pinned=config.pin_memory)
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
            )

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
        depth = config.depth(nbytes) if ours else min(config.depth(nbytes), max(1, config.depth_by_torch))
        threads = self._native.setdefault(config.num_workers == 0, NativeThreads(config.num_workers))
        self.meter.count_native(threads.stats)
        if config.num_workers > 0:
            threads.use(config.num_workers)
        if self._slots is None or self._slots.nbytes != nbytes:
            self._slots = Slots(nbytes, pinned=config.pin_memory, keep=depth + 2)
        slots, key = self._slots, cursor.random_key
        engine = NativeEngine(native, key, threads, slots, self.meter)
        indices = as_torch_draws(config, order, depth)
        if isinstance(native.source, RemoteSamples):
            next_use = coming = None
            if isinstance(batches, OrderedBatches):
                next_use = partial(batches.next_use, cursor) if order.seeded else None
                coming = None if batches.length() is None else partial(batches.coming, cursor)
            indices = Prefetcher(indices, native.source, next_use, coming)
        return NativeStream(engine, plan, indices, config, depth, self.failures)

    def _python_stream(self, config: LoaderConfig, plan: Plan, order: EpochOrder) -> BatchStream:
        cursor, indices = order.cursor, order.indices
        self._split = None if plan.head is None else plan
        if config.streamed:
            return self._iterable_stream(config, cursor)
        guard: Any = ErrorPolicyDataset
        if self._split is not None:
            guard = SplitPipelineFactory(plan, plan_options(config))
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
            kept = self.kept(config)
            key = (draw_seed(config.generator), 0) if kept is None else kept.next_key
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
