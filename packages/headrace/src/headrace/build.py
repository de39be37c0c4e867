"""From a configuration and a plan to a stream of batches: for the loader, and for stages of Ray."""

from __future__ import annotations

import math
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import islice, repeat
from operator import attrgetter, is_
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate, default_convert

from headrace._torch_compat import default_collate_functions
from headrace.config import DEFAULT_DEPTH, LoaderConfig
from headrace.device.place import resolve_device
from headrace.device.postprocess import Postprocess
from headrace.device.prefetcher import DevicePrefetcher, Step
from headrace.device.resident import Residence
from headrace.engine.advice import advise
from headrace.engine.caller_stream import CallerStream, GatherStream
from headrace.engine.collate import ReusingCollate
from headrace.engine.error_policy import ErrorPolicyDataset
from headrace.engine.finish import BatchTransform, Cast
from headrace.engine.iterable import REPEATS, IterableBatches
from headrace.engine.iterator import LoaderIterator
from headrace.engine.meter import Failures, Meter
from headrace.engine.native import NativeEngine, NativeThreads
from headrace.engine.native_stream import NativeStream
from headrace.engine.prefetch import Prefetcher
from headrace.engine.seeding import Seeding
from headrace.engine.slots import Slots
from headrace.engine.stream import BatchStream, KeyedBatches
from headrace.engine.thread_pool import ThreadPool
from headrace.engine.thread_stream import ThreadStream
from headrace.engine.workers.pool import Guard
from headrace.engine.workers.stream import KeptWorkers, WorkerPools, WorkerStream
from headrace.errors import ConfigError
from headrace.order.batches import NO_INDICES, IndexBatch, OrderedBatches, SampledBatches
from headrace.order.epoch import EpochStart, samples_to_repeat
from headrace.order.progress import Epoch
from headrace.plan import Plan, make_plan
from headrace.plan.environment import starts_processes
from headrace.plan.planner import with_batch_transform
from headrace.plan.segments import NativeSegment
from headrace.records import BatchKeys, DeferralCounts, LoaderStats
from headrace.sources.kinds.lookup import is_unknown

# Free batches whose memory the caller's thread keeps: the one that the user holds is still in use.
CALLER_KEEPS = 1
# Attributes that torch's loader refuses to set, so that programs set them in its `__dict__`.
FORCED = attrgetter("dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers")
# For all batches that stay where they are, and as they are.
STAY = DevicePrefetcher(None)


def plan_of(config: LoaderConfig) -> Plan:
    """Plans who runs what."""
    default = not config.batched and config.collate_fn is default_convert
    plan = make_plan(
        config.dataset,
        batch_size=1 if config.batched else None,
        collate_fn=None if default else config.collate_fn,
        dtype=config.dtype,
        memory_format=config.memory_format,
        device=config.device,
    )
    if config.batch_transform is None:
        return plan
    return with_batch_transform(plan, config.batch_transform, config.device)


def as_torch_draws(
    config: LoaderConfig, epoch: Epoch, batches: Iterator[IndexBatch], depth: int
) -> Iterator[IndexBatch]:
    """The batches of an epoch for a stream that takes `depth` of them ahead. The user's sampler is asked for
    as many as with torch's loader, so that generators are where torch leaves them if an epoch is left early.
    """
    if not isinstance(epoch.batches, SampledBatches):
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
        latest: gives the iterator made last, or None if it is gone.
        residence: tensors of a gathered dataset on the device, if there are any.
    """

    residence: Residence | None = None
    _config: LoaderConfig | None = None
    # The latest plan, if it depends on nothing but the configuration and the dataset's class.
    _planned: tuple[LoaderConfig, type, Plan] | None = None
    _latest: weakref.ref[WorkerStream] | None = None  # stream of worker processes started last
    _kept: EpochStart | None = None  # of the epoch started last with `persistent_workers`
    _kept_processes = False  # whether worker processes made it
    _threads: ThreadPool | None = None
    _collate: ReusingCollate | None = None
    _slots: Slots | None = None
    # What makes the batches in the caller's thread, as long as the configuration is this one.
    _caller: tuple[LoaderConfig, ErrorPolicyDataset] | None = None

    def __init__(self) -> None:
        self.meter = Meter()
        self.failures = Failures()
        self.latest: Callable[[], LoaderIterator | None] = _nothing
        # Those of the caller's own thread (0 of them) and others: a pool can't change from one to the other.
        self._native: dict[bool, NativeThreads] = {}

    @cached_property
    def _processes(self) -> WorkerPools:
        return WorkerPools()

    def __reduce__(self) -> tuple[type[StreamBuilder], tuple[()]]:
        return StreamBuilder, ()

    @property
    def deferral_counts(self) -> DeferralCounts | None:
        """Counts of how the latest worker processes made their first samples, or None if unknown."""
        return self._processes.deferral_counts

    def advice(self, config: LoaderConfig, plan: Plan) -> tuple[int, str] | None:
        """Another number of worker processes to try, and why, as far as the latest epoch shows it."""
        work, epochs = self._processes.work, self.meter.epochs()
        if work is None or not epochs or config.streamed or not starts_processes(config, plan):
            return None
        return advise(work, epochs[-1], config.num_workers)

    def config_of(self, loader: DataLoader[Any]) -> LoaderConfig:
        """The arguments that `loader`, always the same one, has as its attributes now."""
        config = self._config
        if config is None or not all(map(is_, FORCED(loader), FORCED(config))):
            config = self._config = LoaderConfig.of(loader)
        return config

    def forget_config(self) -> None:
        """An attribute of the loader was set."""
        self._config = None

    def end_workers(self) -> None:
        """The next epoch gets new worker processes and threads."""
        self._processes.end_idle()
        if self._latest is not None:
            self._processes = WorkerPools()
        self._latest = self._kept = None
        self._threads = self._collate = self._caller = None

    def keeper(self) -> Any:
        """The iterator that uses worker processes kept for another epoch, a stand-in for one, or None."""
        if self._processes.idle is not None:
            return KeptWorkers(self._processes.idle)
        stream = None if self._latest is None else self._latest()
        kept = stream is not None and stream.persistent
        return self.latest() if kept else None

    def kept(self, config: LoaderConfig) -> EpochStart | None:
        """The epoch before, if torch would use its iterator again, whoever made the samples, or None if it
        would make a new one, or if worker processes were kept and are gone."""
        if not config.persistent_workers or config.num_workers == 0:
            return None
        gone = self._kept_processes and self._processes.idle is None
        return None if gone else self._kept

    def plan(self, config: LoaderConfig) -> Plan:
        """Plans who runs what in an epoch that starts now. Raises ConfigError if `resident=True` can't be
        had."""
        cls, latest = type(config.dataset), self._planned
        if latest is not None and latest[0] is config and latest[1] is cls:
            return latest[2]
        plan = plan_of(config)
        if plan.gather is None or config.device is None:
            if config.resident is True:
                why = "its batches aren't gathered from memory" if config.device else "no device is given"
                raise ConfigError(f"resident=True: the dataset can't live on a device, as {why}.")
            if is_unknown(cls):
                self._planned = config, cls, plan
            return plan
        asked = resolve_device(config.device), config.resident
        if self.residence is None or (self.residence.device, self.residence.wanted) != asked:
            self.residence = Residence(*asked)
        return self.residence.settle(plan)

    def stream(
        self, config: LoaderConfig, plan: Plan, epoch: Epoch, indices: Iterator[IndexBatch]
    ) -> BatchStream:
        """The batches of one epoch, of samples with these indices."""
        if plan.native is not None:
            stream: BatchStream = self._native_stream(config, plan, plan.native, epoch, indices)
        else:
            keyed = None
            if config.batch_transform is not None and config.in_order and not config.streamed:
                indices = keyed = KeyedBatches(indices, epoch.start.random_key, config.samples)
            if plan.gather is not None:
                indices = as_torch_draws(config, epoch, indices, depth=0)
                stream = GatherStream(plan, indices, pinned=config.pin_memory)
            else:
                stream = self._python_stream(config, epoch, indices)
            stream.keyed = keyed
        if config.persistent_workers and config.num_workers > 0:
            self._kept, self._kept_processes = epoch.start, starts_processes(config, plan)
        return stream

    def transfer(self, config: LoaderConfig, plan: Plan) -> DevicePrefetcher:
        """A prefetcher that takes the latest stream's batches to the device and does the rest there."""
        transform = config.batch_transform
        as_made = config.dtype is None and config.memory_format is torch.contiguous_format
        steps: list[Step] = []
        if plan.values is not None and plan.values.where == "device":
            steps.append(Postprocess(plan.values))
        if plan.native is None and not as_made:
            steps.append(Cast(config.dtype, config.memory_format))
        if not steps and config.device is None and transform is None:
            return STAY
        finish = None if transform is None else BatchTransform(transform, resolve_device(config.device))
        return DevicePrefetcher(config.device, partial(_in_turn, steps) if steps else None, finish)

    def stats(self, memory_budget: int) -> LoaderStats:
        """The statistics so far; `memory_budget` is the number of bytes allowed. For any thread."""
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

    def _native_stream(
        self,
        config: LoaderConfig,
        plan: Plan,
        native: NativeSegment,
        epoch: Epoch,
        indices: Iterator[IndexBatch],
    ) -> NativeStream:
        start, batches = epoch.start, epoch.batches
        nbytes = config.samples_of_a_batch * native.sample_nbytes
        ours = isinstance(batches, OrderedBatches)
        depth = config.depth(nbytes) if ours else min(config.depth(nbytes), max(1, config.depth_by_torch))
        threads = self._native.setdefault(config.num_workers == 0, NativeThreads(config.num_workers))
        self.meter.count_native(threads.stats)
        threads.use(config.num_workers)
        if self._slots is None or self._slots.nbytes != nbytes:
            self._slots = Slots(nbytes, pinned=config.pin_memory, keep=depth + 2)
        engine = NativeEngine(native, start.random_key, threads, self._slots, self.meter)
        indices = as_torch_draws(config, epoch, indices, depth)
        if native.source.leased:
            indices = Prefetcher(indices, native.source)
        return NativeStream(engine, plan, indices, config, depth, self.failures)

    def _python_stream(
        self, config: LoaderConfig, epoch: Epoch, indices: Iterator[IndexBatch]
    ) -> BatchStream:
        start = epoch.start
        seeding = Seeding(start.random_key, start.base_seed, start.seeds_samples)
        kept = self._caller
        if kept is not None and kept[0] is config:
            return CallerStream(kept[1], indices, seeding, config, self.failures)
        guard: Guard = partial(ErrorPolicyDataset, on_error=config.on_error, batched=config.batched)
        if config.streamed:
            guard = self._iterable_guard(config, start)
            indices = repeat(NO_INDICES)
        match config.workers_kind:
            case "process":
                turn = start.turn % config.num_workers
                stream = self._processes.start_epoch(
                    config, guard, seeding, indices, self.failures, self.meter, turn
                )
                self._latest = weakref.ref(stream)
                return stream
            case "thread":
                return self._thread_stream(config, indices)
            case "caller":
                collate = self._collate_for(config, keep=CALLER_KEEPS, alone=True)
                guarded = guard(config.dataset, collate)
                if isinstance(guarded, ErrorPolicyDataset):
                    self._caller = config, guarded
                return CallerStream(guarded, indices, seeding, config, self.failures)

    def _iterable_guard(self, config: LoaderConfig, start: EpochStart) -> Guard:
        """The maker of an `IterableDataset`'s batches. Warns if samples are made again to resume."""
        repeated = samples_to_repeat(start.streams)
        if repeated:
            kind = type(config.dataset).__name__
            warnings.warn(REPEATS.format(kind=kind, count=repeated), stacklevel=6)
        return partial(
            IterableBatches,
            batch_size=config.samples_of_a_batch if config.batched else None,
            drop_last=config.drop_last,
            states=start.streams,
            kept=config.num_workers == 0 or config.persistent_workers,
        )

    def _thread_stream(self, config: LoaderConfig, indices: Iterator[IndexBatch]) -> ThreadStream:
        # With `prefetch_factor`, that many for each thread; else enough for each to have two samples.
        count, given = config.num_workers, config.prefetch_factor_given
        depth = max(DEFAULT_DEPTH, math.ceil(2 * count / max(1, config.samples_of_a_batch)) + 1)
        if given is not None:
            depth = max(1, given * count)
        if self._threads is None:
            self._threads = ThreadPool(config.num_workers)
        self._threads.use(config.num_workers)
        collate = self._collate_for(config, keep=depth + 2, alone=False)
        guarded = ErrorPolicyDataset(config.dataset, collate, config.on_error, batched=config.batched)
        return ThreadStream(self._threads, guarded, indices, config, depth, self.meter, self.failures)

    def _collate_for(self, config: LoaderConfig, *, keep: int, alone: bool) -> Callable[[Any], Any]:
        """The user's collate function, or, for torch's default one, what does the same in memory that is used
        again."""
        by_torch = config.batched and config.collate_fn is default_collate
        if not by_torch or torch.Tensor not in default_collate_functions():
            collate: Callable[[Any], Any] = config.collate_fn
            return collate
        options = config.pin_memory, keep, alone
        if self._collate is None or self._collate.options != options:
            self._collate = ReusingCollate(pinned=config.pin_memory, keep=keep, alone=alone)
        return self._collate


def _nothing() -> None:
    return None


def _in_turn(steps: list[Step], batch: Any, keys: BatchKeys | None) -> Any:
    for step in steps:
        batch = step(batch, keys)
    return batch
