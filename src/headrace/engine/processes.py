"""The user's Python on worker processes, which are kept from epoch to epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.utils.data import DataLoader

from headrace.engine.changes import Look
from headrace.engine.deaths import Deaths, WorkerDiedError
from headrace.engine.guarded import Guarded, Request, as_it_is
from headrace.engine.in_hand import InHand
from headrace.engine.in_worker import Forked, WorkerDataset, WorkerRequest, begin_worker
from headrace.engine.meter import Failures
from headrace.engine.python import TorchProducer
from headrace.engine.shared_memory import Room
from headrace.engine.shared_pickle import SharedPickle
from headrace.engine.worker_iterator import Knobs, WorkerIterator
from headrace.order.batches import IndexBatch
from headrace.order.permutation import key_of

RESPAWN = "on_worker_death='respawn' (the default) starts others, which make its batches again"


@dataclass(frozen=True)
class ProcessEpoch:
    """What is asked of worker processes that isn't in torch's loader.

    Attributes:
        workers: processes to start, 1 or more.
        on_error: as `Guarded` takes it.
        samples: of the dataset; 0: not known.
        budget: bytes that batches in flight may take; one batch always may be made.
        guard: makes a `Guarded` of dataset, collate function and `on_error`, in the worker.
        in_turn: see `Knobs`.
        respawn: whether workers that die are replaced within the epoch.
    """

    workers: int
    on_error: str
    samples: int
    budget: int
    guard: Callable[[Any, Callable[[Any], Any], str], Guarded] = Guarded
    in_turn: bool = False
    respawn: bool = True


class ProcessProducer(TorchProducer):
    """The batches of one epoch, made by worker processes: a `Producer`.

    Args:
        group: the processes.
        owner: gets them back at the end.
        failures: where skipped and replaced samples are recorded.
        asked: the user's loader and what else is wanted, as `Processes.begin` takes them: for other processes
            in place of these.
    """

    def __init__(
        self, group: Group, owner: Processes, failures: Failures, asked: tuple[DataLoader[Any], ProcessEpoch]
    ) -> None:
        super().__init__(group.iterator, failures)
        self._group: Group | None = group
        self._iterator = group.iterator
        self._owner = owner
        self._asked: tuple[DataLoader[Any], ProcessEpoch] | None = asked
        self._failed = False
        self._lost: BaseException | None = None

    def __next__(self) -> Any:
        if self._lost is not None:
            raise self._lost
        if self._group is None:
            raise StopIteration
        try:
            return super().__next__()
        except StopIteration:
            self.close()
            raise
        except BaseException as error:
            self._failed = True
            if self._iterator.ended:
                self._lost = error  # torch would go on, without the batches of the worker that is gone
                self.close()
            raise

    def __del__(self) -> None:
        self.close()

    def ready(self) -> int:
        """Batches, an error or the end among them, that could be had without waiting. (Those of nothing but
        skipped samples are counted, though they aren't given out.)"""
        return 1 if self._group is None else self._iterator.ready()

    @property
    def depth(self) -> int:
        """Batches that may be in flight now, memory permitting."""
        return self._iterator.knobs.limit

    @property
    def in_flight(self) -> int:
        """Batches that are being made, or are made and wait to be taken."""
        return 0 if self._group is None else self._iterator.in_flight

    @property
    def nbytes_in_flight(self) -> int:
        """Memory of the batches in flight; those that haven't come are taken for as large as the largest that
        has, and for nothing before the first."""
        return 0 if self._group is None else self._iterator.nbytes_in_flight

    @property
    def batch_nbytes(self) -> int:
        """Of the largest batch that these processes have made; 0: none yet."""
        return self._iterator.batch_nbytes

    @property
    def guard(self) -> Any:
        """That of the `ProcessEpoch` that the processes were started for."""
        return None if self._group is None else self._group.guard

    @property
    def max_workers(self) -> int:
        """Processes that were started."""
        return len(self._iterator._workers)

    def tune(self, settings: Mapping[str, int]) -> None:
        """From now on `workers` of the processes, and `depth` batches in flight, at least one for each."""
        self._owner.used, self._owner.limit = settings["workers"], max(settings["depth"], settings["workers"])
        self._turn_knobs()

    def limit(self, batches: int) -> None:
        """Batches in flight from now on, at most; 1 or more. Memory may allow fewer."""
        self._owner.limit = batches
        self._turn_knobs()

    def use(self, workers: int) -> None:
        """How many of the processes are given work from now on: 1 to `max_workers`. What the others are at,
        they finish."""
        self._owner.used = workers
        self._turn_knobs()

    def close(self) -> None:
        """Gives up what is in flight, and the processes back."""
        group, self._group, self._asked = self.__dict__.get("_group"), None, None
        if group is not None:
            group.iterator.end()
            self._owner.take_back(group, failed=self._failed)

    def _next(self) -> Any:
        while True:
            try:
                return super()._next()
            except WorkerDiedError as died:
                self._replace(died)

    def _replace(self, died: WorkerDiedError) -> None:
        assert self._group is not None
        assert self._asked is not None
        self._owner.replace(self._group, died, *self._asked)
        self._batches = self._iterator = self._group.iterator

    def _turn_knobs(self) -> None:
        if self._group is not None:
            self._owner.turn_knobs(self._group)


class Processes:
    """The worker processes of one loader. Between epochs they are kept, and have what they had: files that
    the dataset opened, its caches. They are started anew

    - where the dataset, collate_fn or worker_init_fn was changed in a way that `Look` notices, or a setting
      of the loader was, unless the user said persistent_workers=True;
    - after an epoch in which an exception was raised, which may have been theirs;
    - where an iterator of an earlier epoch is still at work, which then goes on beside the new one.

    Attributes:
        limit, used: what `ProcessProducer.limit` and `ProcessProducer.use` were told last, for the epochs to
            come, too; None: nothing, num_workers * prefetch_factor batches and all workers.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self.used: int | None = None
        self._idle: Group | None = None

    def begin(
        self,
        loader: DataLoader[Any],
        wanted: ProcessEpoch,
        key: tuple[int, int],
        batches: Iterator[IndexBatch],
        failures: Failures,
    ) -> ProcessProducer:
        """One epoch.

        Args:
            loader: the user's: its dataset and torch's settings.
            wanted: what isn't torch's.
            key: (seed, epoch) of its random parameters.
            batches: what to make.
            failures: where skipped and replaced samples are recorded.

        Raises:
            ConfigError: something can't be pickled that must be.
        """
        group, self._idle = self._idle, None
        settings = _settings(loader, wanted)
        kept = loader.persistent_workers
        if group is not None and not (group.iterator.usable() and (kept or group.fits(loader, settings))):
            group.iterator.shut_down()
            group = None
        requests = WorkerRequests() if group is None else group.requests
        requests.begin(key, batches, wanted.samples)
        if group is not None:
            group.iterator.knobs = self._knobs(group.inner, wanted.budget, wanted.in_turn)
            try:
                group.iterator.begin(group.inner)
            except WorkerDiedError:  # before the epoch has begun
                group.iterator.kill()
                group = None
        if group is None:
            iterator, inner = self._start(loader, wanted, requests)
            look = Look(*_copied(loader).values())
            group = Group(iterator, inner, requests, settings, look, wanted.guard)
        return ProcessProducer(group, self, failures, (loader, wanted))

    def replace(
        self, group: Group, died: WorkerDiedError, loader: DataLoader[Any], wanted: ProcessEpoch
    ) -> None:
        """Other processes for `group`, of which some have died: they make what wasn't given out again.

        Raises:
            RuntimeError: they aren't to be replaced, or there is no use in it.
        """
        before, deaths = group.iterator, group.requests.deaths
        before.kill()
        if not wanted.respawn:
            raise RuntimeError(f"{died.told(loader.dataset)}. {RESPAWN}") from None
        if before.given:
            deaths.progress()
        pending = before.pending
        deaths.add(died, len(pending), loader.dataset)
        group.requests.ask_again(pending)
        group.iterator, group.inner = self._start(loader, wanted, group.requests)
        group.iterator.batch_nbytes = before.batch_nbytes

    def _start(
        self, loader: DataLoader[Any], wanted: ProcessEpoch, requests: WorkerRequests
    ) -> tuple[WorkerIterator, DataLoader[Any]]:
        inner = _inner(loader, wanted, requests)
        try:
            return WorkerIterator(inner, self._knobs(inner, wanted.budget, wanted.in_turn)), inner
        finally:
            inner.dataset.started()  # type: ignore[attr-defined]

    def turn_knobs(self, group: Group) -> None:
        """Passes `limit` and `used` on."""
        before = group.iterator.knobs
        group.iterator.knobs = self._knobs(group.inner, before.budget, before.in_turn)
        group.iterator.fill()

    def _knobs(self, inner: DataLoader[Any], budget: int, in_turn: bool) -> Knobs:
        workers = inner.num_workers
        limit = workers * (inner.prefetch_factor or 1) if self.limit is None else max(1, self.limit)
        used = workers if self.used is None else min(max(1, self.used), workers)
        return Knobs(limit, used, budget, in_turn)

    def take_back(self, group: Group, *, failed: bool) -> None:
        """After an epoch."""
        if self._idle is None and not failed and group.iterator.usable():
            self._idle = group
        else:
            group.iterator.shut_down()


class WorkerRequests:
    """The sampler of torch's loader inside: what its workers are asked for in an epoch.

    Attributes:
        deaths: of workers.
    """

    def __init__(self) -> None:
        self._requests: Iterator[WorkerRequest] = iter(())
        self.deaths = Deaths()

    def begin(self, key: tuple[int, int], batches: Iterator[IndexBatch], samples: int) -> None:
        """What the next iter() gives.

        Args:
            key: (seed, epoch) of random parameters.
            batches: to be made.
            samples: of the dataset; 0: not known.
        """
        generator = torch.Generator().manual_seed(key_of(*key))
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
        self.deaths.begin()
        self._requests = (
            WorkerRequest(Request(batch, key, samples), seed, number, self.deaths.deadly)
            for number, batch in enumerate(batches)
        )

    def ask_again(self, pending: Sequence[WorkerRequest]) -> None:
        """The next iter() gives these first, and then what follows them."""
        self._requests = chain([self.deaths.again(request) for request in pending], self._requests)

    def __iter__(self) -> Iterator[WorkerRequest]:
        return self._requests


@dataclass
class Group:
    """Processes that were started together.

    Attributes:
        iterator: over their batches.
        inner: torch's loader.
        requests: its sampler.
        settings: that it was made with.
        look: at what they have a copy of, when they got it.
        guard: see `ProcessEpoch`.
    """

    iterator: WorkerIterator
    inner: DataLoader[Any]
    requests: WorkerRequests
    settings: dict[str, Any]
    look: Look
    guard: Any

    def fits(self, loader: DataLoader[Any], settings: dict[str, Any]) -> bool:
        """Whether they would be started the same way now."""
        return settings == self.settings and self.look.same(*_copied(loader).values())


class _Inner(DataLoader[Any]):
    """torch's loader, which says nothing of more workers than cores: not all of them work at a time."""

    def check_worker_number_rationality(self) -> None:
        """Nothing."""


def _inner(loader: DataLoader[Any], wanted: ProcessEpoch, requests: WorkerRequests) -> DataLoader[Any]:
    """torch's loader with the settings of the user's."""
    batched = loader.batch_sampler is not None
    context: Any = loader.multiprocessing_context or torch.multiprocessing
    copied = {**_copied(loader), "guard": wanted.guard}
    by_fork = context.get_start_method() == "fork"
    packed = Forked(tuple(copied.values())) if by_fork else SharedPickle(copied)
    return _Inner(
        WorkerDataset(packed, wanted.on_error, Room(context.Lock(), wanted.workers), InHand(wanted.workers)),
        batch_size=1 if batched else None,
        sampler=None if batched else requests,
        batch_sampler=requests if batched else None,  # type: ignore[arg-type]
        collate_fn=as_it_is,
        generator=torch.Generator(),
        worker_init_fn=begin_worker,
        num_workers=wanted.workers,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        multiprocessing_context=loader.multiprocessing_context,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=True,
        pin_memory_device=loader.pin_memory_device,
        in_order=loader.in_order,
    )


def _copied(loader: DataLoader[Any]) -> dict[str, Any]:
    """What workers have a copy of."""
    return {name: getattr(loader, name) for name in ("dataset", "collate_fn", "worker_init_fn")}


def _settings(loader: DataLoader[Any], wanted: ProcessEpoch) -> dict[str, Any]:
    names = ("pin_memory", "timeout", "multiprocessing_context", "prefetch_factor", "in_order")
    given = {name: getattr(loader, name) for name in names}
    return {**given, "workers": wanted.workers, "on_error": wanted.on_error}
