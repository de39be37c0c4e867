"""Who makes the samples of a dataset that runs as Python; kept from epoch to epoch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import chain
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, default_collate

from headrace.engine.crew import MAX_THREADS, Crew
from headrace.engine.guarded import Guarded
from headrace.engine.placing import SlotShelf
from headrace.engine.prefixed import PrefixedGuard
from headrace.engine.probe import probe
from headrace.engine.processes import ProcessEpoch, Processes, ProcessProducer
from headrace.engine.producer import Producer
from headrace.engine.python import Requests, TorchProducer, begin_epoch, guarded_loader, stream_loader
from headrace.engine.relay import Leg, Relay
from headrace.engine.sharing import code_stamp
from headrace.engine.threads import ThreadEpoch, ThreadProducer
from headrace.loader.asked import Asked
from headrace.loader.tuning import machine_parts
from headrace.measure.machine import usable_cores
from headrace.order.batches import IndexBatch
from headrace.order.cursor import Cursor
from headrace.plan.physical import SplitPlan
from headrace.records import Probe
from headrace.tuning import cache
from headrace.tuning.climb import Knob, Settings, ladder
from headrace.tuning.policy import (
    Workers,
    batches_in_flight,
    choose_workers,
    insist_on_threads,
    worth_trying,
)


class PythonWorkers:
    """Of one loader; a copy of it makes its own.

    Attributes:
        chosen: kind and number; None: nothing was asked of them yet.
    """

    def __init__(self) -> None:
        self.chosen: Workers | None = None
        self._guarded: tuple[TorchDataLoader[Any], Requests] | None = None
        self._processes = Processes()
        self._split: SplitPlan | None = None
        self._sent: weakref.ref[ProcessProducer] | None = None  # the latest
        self._stream: TorchDataLoader[Any] | None = None
        self._crew: Crew | None = None
        self._shelf: SlotShelf | None = None
        self._try_both = False

    def producer(
        self, loader: Asked, split: SplitPlan | None, cursor: Cursor, indices: Iterator[IndexBatch]
    ) -> Producer:
        """Begins an epoch of the dataset; `split`: what native code does of its samples."""
        if isinstance(loader.dataset, IterableDataset):
            return self._begin_stream(loader, cursor)
        if split is not None:
            self.chosen, self._try_both = split_workers(loader), False
        elif self.chosen is None or self._split is not None:
            self.chosen, self._try_both, indices = _choose(loader, indices)
        self._split = split
        chosen, settings = self.chosen, _begin_tuning(loader, self.chosen, self._try_both)

        def make(processes: int, batches: Iterator[IndexBatch]) -> Leg:
            if processes:
                return self._begin_processes(loader, chosen, settings, cursor, batches)
            if chosen.kind == "thread":
                return self._begin_threads(loader, settings, batches)
            return self._begin_here(loader, cursor, batches)

        kind = settings["processes"]
        producer: Leg = Relay(make, indices, kind) if self._try_both else make(kind, indices)
        loader.tuning.attach(producer)
        return producer

    @property
    def split(self) -> SplitPlan | None:
        """What samples are made of in the epoch begun last, where native code begins them."""
        return self._split

    @property
    def live_nbytes(self) -> int:
        """Bytes of batches in flight, and of those from threads that the user holds, as far as is known."""
        on_threads = 0 if self._shelf is None else self._shelf.live_nbytes
        sent = None if self._sent is None else self._sent()
        return on_threads + (0 if sent is None else sent.nbytes_in_flight)

    def _begin_stream(self, loader: Asked, cursor: Cursor) -> Producer:
        # A resumed stream's state must not come again: only workers that stay have dropped it themselves.
        if self._stream is None or cursor.start or not loader.persistent_workers:
            self._stream = stream_loader(loader, cursor)
        return TorchProducer(iter(self._stream), loader.failures, streams=loader.num_workers > 0)

    def _begin_here(self, loader: Asked, cursor: Cursor, indices: Iterator[IndexBatch]) -> TorchProducer:
        if self._guarded is None or self._split is not None:
            guarded = self._guard(loader)(loader.dataset, loader.collate_fn, loader.on_error)
            self._guarded = guarded_loader(loader, 0, guarded)
        return TorchProducer(begin_epoch(*self._guarded, cursor.random_key, indices), loader.failures)

    def _begin_processes(
        self,
        loader: Asked,
        chosen: Workers,
        settings: Settings,
        cursor: Cursor,
        indices: Iterator[IndexBatch],
    ) -> ProcessProducer:
        samples = len(loader.dataset) if hasattr(loader.dataset, "__len__") else 0
        count = chosen.count if chosen.kind == "process" else usable_cores()
        most = count if loader.workers_given is not None else most_processes(count)
        guard = self._guard(loader)
        # A number that was given is torch's way, by which generators of the dataset's own repeat.
        in_turn = loader.workers_given is not None
        wanted = ProcessEpoch(
            most,
            loader.on_error,
            samples,
            loader.memory_budget,
            guard,
            in_turn,
            loader.on_worker_death == "respawn",
        )
        if loader.workers_given is None or loader.prefetch_factor_given is None:
            self._processes.used, self._processes.limit = settings["workers"], settings["depth"]
        producer = self._processes.begin(loader, wanted, cursor.random_key, indices, loader.failures)
        self._sent = weakref.ref(producer)
        started_for = producer.guard  # workers that stay keep their plan
        self._split = started_for.plan if isinstance(started_for, PrefixedGuard) else None
        return producer

    def _guard(self, loader: Asked) -> Callable[[Any, Callable[[Any], Any], str], Guarded]:
        if self._split is None:
            return Guarded
        return PrefixedGuard(self._split, loader.plan_options(), loader.decoder)

    def _begin_threads(
        self, loader: Asked, settings: Settings, indices: Iterator[IndexBatch]
    ) -> ThreadProducer:
        if self._crew is None:
            self._crew = Crew(settings["threads"])
            self._shelf = SlotShelf(pinned=loader.pin_memory, keep=settings["depth"] + 2)
        self._crew.use(settings["threads"])
        own_collate = loader.collate_fn is not default_collate
        epoch = ThreadEpoch(loader.memory_budget, loader.timeout, loader.batched, pinned=loader.pin_memory)
        return ThreadProducer(
            self._crew,
            Guarded(loader.dataset, loader.collate_fn, loader.on_error),
            indices,
            epoch,
            settings["depth"],
            None if own_collate else self._shelf,
            loader.meter,
            loader.failures,
        )


def split_workers(loader: Asked) -> Workers:
    """Who makes samples that native code begins and the user's Python goes on with."""
    if loader.workers_given == 0:
        return Workers("caller", 0, "num_workers=0")
    reason = "steps that run as Python may draw random numbers, which threads share"
    return Workers("process", loader.workers_given or usable_cores(), reason)


def _begin_tuning(loader: Asked, chosen: Workers, try_both: bool) -> Settings:
    """What to begin an epoch with: whether by processes, how many workers, how many batches in flight."""
    given = loader.prefetch_factor_given
    in_processes = chosen.kind == "process"
    processes = chosen.count if in_processes else usable_cores()
    depth = batches_in_flight(chosen, loader.samples_of_a_batch)
    if given is not None:
        depth = max(1, given * chosen.count)
    start = {"processes": int(in_processes), "workers": processes, "depth": depth}
    knobs = [Knob("processes", (0, 1), always=chosen.kind == "thread")] if try_both else []
    if chosen.kind == "thread":
        start["threads"] = chosen.count
        if loader.workers_given is None:
            knobs.append(Knob("threads", ladder(chosen.count, MAX_THREADS), where=("processes", 0)))
    if loader.workers_given is None and (in_processes or try_both):
        most = most_processes(processes)
        knobs.append(Knob("workers", ladder(processes, most), where=("processes", 1)))
    if given is None and (chosen.kind != "caller" or try_both):
        where = None if chosen.kind == "thread" else ("processes", 1)
        knobs.append(Knob("depth", ladder(depth, 4 * depth, least=2), where=where))
    return loader.tuning.begin(f"{loader.what()}\nby {chosen.kind}", start, knobs)


def most_processes(count: int) -> int:
    """Processes to start where `count` are to work at first: half as many again, for samples that wait."""
    return count + (count + 1) // 2


def _choose(loader: Asked, indices: Iterator[IndexBatch]) -> tuple[Workers, bool, Iterator[IndexBatch]]:
    """The workers, whether the other kind should be tried too, and the batches of `indices`, some of which
    had to be looked at."""
    count = loader.workers_given
    if count == 0:
        return Workers("caller", 0, "num_workers=0"), False, indices
    kind = loader.worker_kind
    if kind == "process":
        return Workers(kind, count or usable_cores(), "worker_kind='process'"), False, indices
    if kind == "auto":
        for name in ("worker_init_fn", "multiprocessing_context"):
            if getattr(loader, name) is not None:
                reason = f"{name} is meant for processes"
                return Workers("process", count or usable_cores(), reason), False, indices
    key = _choice_key(loader)
    known = None if key is None else _known(cache.load(key))
    if known is not None:
        return *known, indices
    first = next(indices, None)
    if first is None:
        return Workers("caller", 0, "there are no batches"), False, indices
    measured = probe(Guarded(loader.dataset, loader.collate_fn, "raise"), first.listed())
    cores, size = usable_cores(), loader.samples_of_a_batch
    workers = choose_workers(measured, batch_size=size, cores=cores, count=count)
    if kind == "thread":
        workers = insist_on_threads(workers, measured, cores, count)
    both = kind == "auto" and count is None
    both = both and worth_trying(measured, workers, batch_size=size, cores=cores)
    if key is not None and isinstance(measured, Probe):
        cache.save(key, {"workers": asdict(workers), "both": both})
    return workers, both, chain((first,), indices)


def _known(entry: dict[str, Any] | None) -> tuple[Workers, bool] | None:
    """A choice that was kept; None: none was, or it was damaged since."""
    match entry:
        case {
            "workers": {
                "kind": "thread" | "process" | "caller" as kind,
                "count": int(count),
                "reason": str(reason),
            },
            "both": bool(both),
        } if count >= (kind != "caller"):
            return Workers(kind, count, reason), both
    return None


def _choice_key(loader: Asked) -> str | None:
    """What a choice is kept by: code and machine; None: the code may have changed unseen."""
    stamp = code_stamp(loader.dataset, loader.collate_fn)
    if stamp is None:
        return None
    return cache.key_of(
        {
            "workers of": loader.what(),
            "code": stamp,
            "samples": len(loader.dataset) if hasattr(loader.dataset, "__len__") else 0,
            "asked": [loader.worker_kind, loader.workers_given],
            **machine_parts(),
        }
    )
