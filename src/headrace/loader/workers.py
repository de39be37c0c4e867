"""What makes the samples of a dataset that runs as Python: worker processes, threads or the caller."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, default_collate

from headrace.device.place import pinning_helps
from headrace.engine import placing
from headrace.engine.crew import Crew
from headrace.engine.guarded import Guarded
from headrace.engine.placing import SlotShelf
from headrace.engine.prefixed import PrefixedGuard
from headrace.engine.producer import Producer
from headrace.engine.python import CallerProducer, TorchProducer, stream_loader
from headrace.engine.seeding import Seeding
from headrace.engine.threads import ThreadEpoch, ThreadProducer
from headrace.engine.workers.epochs import WorkerPools, WorkerStream, pool_config
from headrace.loader.asked import Asked
from headrace.order.batches import IndexBatch
from headrace.order.cursor import Cursor
from headrace.plan import Plan
from headrace.plan.segments import ValueSegment

# All threads work on one batch at a time, so that two already keep them busy; two more cover a training step
# that ends sooner, or a sample that takes longer, now and then.
THREAD_DEPTH = 4


@dataclass(frozen=True)
class Workers:
    """Where the samples of a Python dataset are made.

    Attributes:
        kind: worker "process"es, "thread"s of this process, or the "caller"'s own thread.
        count: number of processes or threads; 0 with "caller".
        reason: why, in words.
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


def workers_of(loader: Asked[Any]) -> Workers:
    """The workers that the user asked for: processes, unless he asked for threads by name."""
    count = loader.num_workers
    if count == 0:
        here = "num_workers=0"
        if loader.workers_given is None:
            here = "a process would take longer to send a row than to pick it"
        return Workers("caller", 0, here)
    given = "one for each usable core" if loader.workers_given is None else f"num_workers={count}"
    if loader.worker_kind == "thread":
        return Workers("thread", count, f"{given}, worker_kind='thread'; they share the dataset's state")
    return Workers("process", count, f"{given}; each has a copy of the dataset")


def drawing_text(loader: Asked[Any], *, seeded: bool) -> str:
    """The line of `explain()` that says what random numbers of the user's Python depend on."""
    kind = workers_of(loader).kind
    if isinstance(loader.dataset, IterableDataset):
        how = "as torch seeds an IterableDataset"
    elif kind == "thread":
        how = "not seeded, threads share the generators"
    elif seeded:
        how = "seeded for each sample by its key"
    else:
        place = "drawn from this process's generators" if kind == "caller" else "seeded once for each worker"
        how = f"{place}, as by torch; with seed=… for each sample"
    return f"random numbers in Python: {how}\n"


class PythonWorkers:
    """The workers of one loader; a copy of the loader starts its own."""

    def __init__(self) -> None:
        self._processes = WorkerPools()
        self._split: Plan | None = None
        self._sent: weakref.ref[WorkerStream] | None = None  # the latest
        self._stream: TorchDataLoader[Any] | None = None
        self._crew: Crew | None = None
        self._shelf: SlotShelf | None = None

    def producer(
        self, loader: Asked[Any], plan: Plan, cursor: Cursor, indices: Iterator[IndexBatch]
    ) -> Producer:
        """Starts an epoch of the dataset.

        Args:
            plan: one that `runs_python`.
            cursor: where the epoch starts.
            indices: of the samples of each batch.
        """
        if isinstance(loader.dataset, IterableDataset):
            return self._begin_stream(loader, cursor)
        self._split = None if plan.head is None else plan
        workers = workers_of(loader)
        seeding = Seeding(cursor.random_key, cursor.base_seed, cursor.seeds_samples)
        if workers.kind == "process":
            return self._begin_processes(loader, workers.count, seeding, indices)
        if workers.kind == "thread":
            return self._begin_threads(loader, workers.count, indices)
        return CallerProducer(
            self._guard(loader)(loader.dataset, loader.collate_fn, loader.on_error),
            indices,
            seeding,
            len(loader.dataset) if hasattr(loader.dataset, "__len__") else 0,
            batched=loader.batched,
            pinned=loader.pin_memory and pinning_helps(),
            failures=loader.failures,
        )

    @property
    def kept_key(self) -> tuple[int, int] | None:
        """Random key of an epoch by worker processes that were kept from the one before; None: none were."""
        return self._processes.kept_key

    @property
    def values(self) -> ValueSegment | None:
        """What is left to do to batches of the epoch started last. Workers that are kept keep their plan."""
        return None if self._split is None else self._split.values

    @property
    def live_nbytes(self) -> int:
        """Bytes of batches in flight, and of those from threads that the user holds, as far as is known."""
        on_threads = 0 if self._shelf is None else self._shelf.live_nbytes
        sent = None if self._sent is None else self._sent()
        return on_threads + (0 if sent is None else sent.nbytes_in_flight)

    def _begin_stream(self, loader: Asked[Any], cursor: Cursor) -> Producer:
        # A resumed stream's state must not come again: only workers that stay have dropped it themselves.
        if self._stream is None or cursor.start or not loader.persistent_workers:
            self._stream = stream_loader(loader, cursor)
        return TorchProducer(iter(self._stream), loader.failures, in_processes=loader.num_workers > 0)

    def _begin_processes(
        self, loader: Asked[Any], count: int, seeding: Seeding, indices: Iterator[IndexBatch]
    ) -> WorkerStream:
        config = pool_config(
            loader,
            guard=self._guard(loader),
            workers=count,
            on_error=loader.on_error,
            budget=loader.memory_budget,
            respawn=loader.on_worker_death == "respawn",
            lazy=loader.lazy,
        )
        stream = self._processes.start_epoch(config, seeding, indices, loader.failures)
        self._sent = weakref.ref(stream)
        started_for = stream.guard  # workers that stay keep their plan
        self._split = started_for.plan if isinstance(started_for, PrefixedGuard) else None
        return stream

    def _guard(self, loader: Asked[Any]) -> Callable[[Any, Callable[[Any], Any], str], Guarded]:
        if self._split is None:
            return Guarded
        return PrefixedGuard(self._split, loader.plan_options(), loader.decoder)

    def _begin_threads(self, loader: Asked[Any], count: int, indices: Iterator[IndexBatch]) -> ThreadProducer:
        depth = thread_depth(loader, count)
        if self._crew is None:
            self._crew = Crew(count)
            self._shelf = SlotShelf(pinned=loader.pin_memory, keep=depth + 2)
        self._crew.use(count)
        own_collate = loader.collate_fn is not default_collate
        epoch = ThreadEpoch(loader.memory_budget, loader.timeout, loader.batched, pinned=loader.pin_memory)
        return ThreadProducer(
            self._crew,
            Guarded(loader.dataset, loader.collate_fn, loader.on_error),
            indices,
            epoch,
            depth,
            None if own_collate or not placing.AVAILABLE else self._shelf,
            loader.meter,
            loader.failures,
        )


def thread_depth(loader: Asked[Any], count: int) -> int:
    """Batches that `count` threads may have in flight: num_workers * prefetch_factor if the latter was given,
    else `THREAD_DEPTH`, or enough for each thread to have two samples."""
    if loader.prefetch_factor_given is not None:
        return max(1, loader.prefetch_factor_given * count)
    return max(THREAD_DEPTH, math.ceil(2 * count / max(1, loader.samples_of_a_batch)) + 1)
