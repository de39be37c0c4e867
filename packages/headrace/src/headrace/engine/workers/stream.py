"""Epochs of one loader by worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from headrace._torch_compat import LoaderIteratorBase
from headrace.config import LoaderConfig
from headrace.engine.meter import Failures, Meter
from headrace.engine.progress import Progress
from headrace.engine.seeding import Seeding
from headrace.engine.stream import HostBatch, PythonStream
from headrace.engine.workers.deaths import Deaths
from headrace.engine.workers.pool import Guard, WorkerPool
from headrace.engine.workers.transport import Segment
from headrace.order.batches import IndexBatch
from headrace.records import DeferralCounts, Work

SPARE_NBYTES = 256 << 20  # of memory that is kept for the workers of the next epoch


class WorkerStream(PythonStream):
    """The batches of one epoch, made by worker processes, which have been asked for the first of them.
    `give_back` is called once with the pool, when the epoch has ended or is given up. The time that the
    batches took is added to `meter`."""

    def __init__(
        self, pool: WorkerPool, failures: Failures, meter: Meter, give_back: Callable[[WorkerPool], None]
    ) -> None:
        super().__init__(failures)
        self.pool = pool
        self._meter = meter
        self._give_back: Callable[[WorkerPool], None] | None = give_back
        self.depth = pool.depth

    def __next__(self) -> HostBatch:
        batch = super().__next__()
        for stage, spent_ns in zip(("python", "render"), self.pool.spent, strict=True):
            self._meter.add(stage, batch.samples, spent_ns / 1e9, threads=self.pool.config.num_workers)
        return batch

    def ready(self) -> int:
        # Batches of nothing but skipped samples are counted, though they aren't given out.
        return 1 if self._give_back is None else self.pool.ready()

    @property
    def in_flight(self) -> int:
        return 0 if self._give_back is None else self.pool.in_flight

    @property
    def nbytes_in_flight(self) -> int:
        """Memory of the batches in flight; those that haven't come are taken for as large as the largest that
        has, and for nothing before the first."""
        return 0 if self._give_back is None else self.pool.nbytes_in_flight

    @property
    def persistent(self) -> bool:
        """True if the processes are there, and are kept for another epoch."""
        return self._give_back is not None and self.pool.config.persistent_workers and self.pool.usable

    @property
    def processes(self) -> list[Any]:
        return list(self.pool.processes)

    def shut_down(self) -> None:
        self.pool.close()
        self.close()

    def close(self) -> None:
        give_back = self.__dict__.get("_give_back")
        self._give_back = None
        if give_back is not None:
            give_back(self.pool)

    def _next(self) -> Any:
        if self._give_back is None:
            raise StopIteration
        try:
            batch = self.pool.next()
        except StopIteration:
            self.ends = self.pool.stream_ends
            self.close()
            raise
        finally:
            self._taken = self.pool.taken
        return batch


class KeptWorkers(LoaderIteratorBase):  # type: ignore[misc]
    """In place of the iterator of an epoch that has ended, while its processes wait for another one."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    def __next__(self) -> Any:
        raise StopIteration

    @property
    def _workers(self) -> list[Any]:
        return list(self._pool.processes)

    def _shutdown_workers(self) -> None:
        self._pool.close()


class WorkerPools:
    """The worker processes of one loader. They end with their epoch, as in torch, so that each epoch sees
    dataset, transform and globals as they are when it starts; `persistent_workers=True` keeps them.

    Where an epoch starts while an iterator of an earlier one is still in use, it gets processes of its own.
    """

    def __init__(self) -> None:
        # By worker. A pool adds to it, and doesn't keep this object, which keeps the pool.
        self._deferral_counts: list[DeferralCounts] = []
        self._work: Progress | None = None  # of the processes started last
        self._idle: WorkerPool | None = None
        self._spare: list[Segment] = []  # for batches of the next processes
        self._deaths = Deaths()

    def start_epoch(
        self,
        config: LoaderConfig,
        guard: Guard,
        seeding: Seeding,
        batches: Iterator[IndexBatch],
        failures: Failures,
        meter: Meter,
        turn: int = 0,
    ) -> WorkerStream:
        """The stream of one epoch, whose first batches are asked for at once, beginning with worker `turn`.
        Processes that were kept continue with the config and guard of their start. Raises ConfigError if
        something can't be pickled that must be, as workers don't start by fork."""
        pool, self._idle = self._idle, None
        persistent = config.persistent_workers
        if pool is not None and not (persistent and pool.usable):
            pool.close()
            pool = None
        if pool is None:
            self._deferral_counts = []
            spare, self._spare = self._spare, []
            pool = WorkerPool(config, guard, seeding, self._deaths, self._deferral_counts.append, spare)
        self._work = pool.progress
        pool.start_epoch(seeding, batches, turn)
        return WorkerStream(pool, failures, meter, self._keep if persistent else self._end)

    @property
    def deferral_counts(self) -> DeferralCounts | None:
        """Counts of how the latest processes made their first samples, or None if unknown."""
        counts = self._deferral_counts
        return sum(counts[1:], counts[0]) if counts else None

    @property
    def work(self) -> Work | None:
        """The work that the latest processes have done, or None if none were started."""
        return None if self._work is None else self._work.work

    @property
    def idle(self) -> WorkerPool | None:
        """The worker processes that are kept and wait for another epoch."""
        return self._idle if self._idle is not None and self._idle.usable else None

    def end_idle(self) -> None:
        """Ends the processes that are kept for another epoch."""
        pool, self._idle = self._idle, None
        if pool is not None:
            pool.close()

    def _keep(self, pool: WorkerPool) -> None:
        if self._idle is None and pool.usable:
            pool.cancel()
            self._idle = pool
        else:
            pool.close()

    def _end(self, pool: WorkerPool) -> None:
        nbytes = 0
        self._spare = []
        for segment in pool.close():
            nbytes += segment.nbytes
            if nbytes <= SPARE_NBYTES:
                self._spare.append(segment)
