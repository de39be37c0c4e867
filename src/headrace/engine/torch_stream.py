"""Batches that no pool makes: of an `IterableDataset` by torch's own loader, and in the calling thread.

An `IterableDataset` with a state gives it with each batch; one that is resumed continues from it.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from headrace import _torch_compat
from headrace._torch_compat import pin_memory
from headrace.config import LoaderConfig
from headrace.device.structure import batch_size
from headrace.engine.error_policy import STOPPED, ErrorPolicyDataset, Request
from headrace.engine.meter import Failures
from headrace.engine.seeding import Seeding
from headrace.engine.stream import BatchStream, HostBatch, PythonStream
from headrace.engine.workers.deaths import STREAM_LOST
from headrace.engine.workers.iterable import each_next
from headrace.order.batches import IndexBatch
from headrace.order.cursor import Cursor, draw_seed

PLACEHOLDER = "headrace: this batch was received before the state was saved"
WORKER_DIED = re.compile(r"DataLoader worker \(pid")  # torch's error begins like that, mostly


class CallerStream(PythonStream):
    """The batches of a map-style dataset, made in the caller's thread when they are asked for.

    Args:
        guarded: the dataset, which makes batches.
        batches: indices of the samples of each batch.
        seeding: what the samples' random numbers depend on.
        samples: length of the dataset; 0 where it isn't known.
        batched: whether samples are collated to batches; False: each comes by itself.
        pinned: whether batches are moved to pinned memory.
        failures: where skipped and replaced samples are recorded.
    """

    def __init__(
        self,
        guarded: ErrorPolicyDataset,
        batches: Iterator[IndexBatch],
        seeding: Seeding,
        samples: int,
        *,
        batched: bool,
        pinned: bool,
        failures: Failures,
    ) -> None:
        super().__init__(failures)
        self._make = guarded.__getitems__ if batched else guarded.__getitem__
        self._batches = batches
        self._seeding = seeding
        self._samples = samples
        self._pinned = pinned

    def _next(self) -> Any:
        indices = next(self._batches)
        self._taken += 1  # those after a batch that fails may be asked for
        try:
            made = self._make(Request(indices, self._seeding, self._samples))
        except StopIteration as error:
            raise RuntimeError(STOPPED) from error
        return pin_memory(made) if self._pinned else made


class CallerIterableStream(BatchStream):
    """The batches of an `IterableDataset`, taken in the caller's thread as torch's loader takes them.

    Args:
        config: the loader's, without workers; for a dataset with a state, what `with_states` gives.
        pinned: whether batches are moved to pinned memory.
    """

    def __init__(self, config: LoaderConfig, *, pinned: bool) -> None:
        draw_seed(config.generator)
        self._samples = each_next(config.dataset)
        self._batch_size = config.samples_of_a_batch if config.batched else None
        self._drop_last = config.drop_last
        self._collate = config.collate_fn
        self._pinned = pinned
        self._taken = 0
        self._ended = False

    def __next__(self) -> HostBatch:
        self._taken += 1  # those after a batch that fails may be asked for
        samples = self._next_samples()
        try:
            batch = self._collate(samples)
        except StopIteration as error:
            raise RuntimeError(STOPPED) from error
        state = None
        if isinstance(batch, IterableBatch):
            state, batch = (batch.worker, batch.state), batch.data
        if self._pinned:
            batch = pin_memory(batch)
        return HostBatch(batch, batch_size(batch), self._taken, state)

    def _next_samples(self) -> Any:
        size = self._batch_size
        if size is None:
            return next(self._samples)
        samples = [] if self._ended else list(islice(self._samples, size))
        if len(samples) < size:
            self._ended = True  # the dataset isn't asked again, as in torch
            if not samples or self._drop_last:
                raise StopIteration
        return samples


def with_states(config: LoaderConfig, cursor: Cursor) -> LoaderConfig:
    """`config` with its stateful `IterableDataset` so that each batch comes with the state after it, and the
    first epoch resumes from `cursor`."""
    turn = (cursor.start if cursor.turn is None else cursor.turn) % max(1, config.num_workers)
    batch_size = getattr(config.batch_sampler, "batch_size", None)
    stream = StatefulIterable(config.dataset, batch_size, cursor.streams, turn)
    return replace(
        config,
        dataset=stream,
        collate_fn=IterableCollate(config.collate_fn, stream),
        worker_init_fn=WorkerInit(config.worker_init_fn),
    )


class TorchStream(BatchStream):
    """The batches of an `IterableDataset` by an iterator of torch's loader.

    Args:
        batches: torch's iterator.
        in_processes: whether worker processes make them.
    """

    def __init__(self, batches: Iterator[Any], *, in_processes: bool) -> None:
        self._batches = batches
        self._taken = 0
        self._in_processes = in_processes
        self._lost_stream: RuntimeError | None = None

    @property
    def processes(self) -> list[Any]:
        """Those of torch's iterator."""
        return _torch_compat.processes_of(self._batches)

    def shut_down(self) -> None:
        """Ends worker processes, kept ones as well."""
        _torch_compat.shut_down(self._batches)
        self._batches = iter(())

    def __next__(self) -> HostBatch:
        if self._lost_stream is not None:
            raise self._lost_stream  # torch would end the epoch without the rest of its samples
        try:
            batch = next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            self._taken += 1  # torch's loader continues after a batch that failed
            if self._in_processes and _by_a_death(error):
                told = f"{str(error).strip().rstrip('.')}. {STREAM_LOST}"
                self._lost_stream = RuntimeError(told)
                raise self._lost_stream from error
            raise
        self._taken += 1
        return HostBatch(batch, batch_size(batch), self._taken)


def _by_a_death(error: Exception) -> bool:
    """Whether torch's iterator raised `error` as a worker has died, and no code in a worker did."""
    if "in DataLoader worker process" in str(error):
        return False
    receiving = isinstance(error, (ConnectionError, EOFError, FileNotFoundError))
    return receiving or WORKER_DIED.match(str(error)) is not None


@dataclass(frozen=True)
class WorkerInit:
    """Shows the user's dataset, not what is around it, to code in a worker that asks for it."""

    user_init: Callable[[int], None] | None
    lazy: bool = False

    def __call__(self, worker: int) -> None:
        """Called by torch as the worker starts."""
        if self.lazy and "PIL.Image" in sys.modules:
            from headrace import lazy

            lazy.start_worker()
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, StatefulIterable):
            object.__setattr__(info, "dataset", info.dataset.dataset)  # torch means it to be read only
        if self.user_init is not None:
            self.user_init(worker)


def has_state(dataset: Any) -> bool:
    """Whether `dataset` can be resumed: it has state_dict() and load_state_dict()."""
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")


class StatefulIterable(IterableDataset[Any]):
    """The user's dataset, put in the state of the worker that it runs in.

    Args:
        dataset: the user's.
        batch_size: samples of a batch; None: not batched.
        states: by worker, as (state, whether its epoch has ended); emptied once they are loaded.
        turn: worker that is next. torch asks worker 0 first; those before `turn` give a placeholder, so that
            the batches come in the order in which they would have come.

    Attributes:
        ended: whether the dataset has given all of its epoch.
    """

    def __init__(self, dataset: Any, batch_size: int | None, states: dict[int, Any], turn: int) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.states = dict(states)
        self.turn = turn
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        turn, self.turn = self.turn, 0
        self.ended = False
        if worker in self.states:
            state, self.ended = self.states.pop(worker)
            self.dataset.load_state_dict(state)
        if worker < turn:
            yield from [PLACEHOLDER] * (self.batch_size or 1)
        if not self.ended:  # or else its state is that of the next epoch's start
            yield from self.dataset
            self.ended = True


@dataclass(frozen=True)
class IterableBatch:
    """The user's batch, or the placeholder, and (state, ended) of the dataset of `worker` after it."""

    data: Any
    worker: int
    state: tuple[Any, bool]

    def pin_memory(self) -> IterableBatch:
        """As torch's loader asks for it."""
        return replace(self, data=pin_memory(self.data))


@dataclass(frozen=True)
class IterableCollate:
    """The user's collate function, and the state that the dataset is in when it has given the samples."""

    collate: Callable[[Any], Any]
    stream: StatefulIterable

    def __call__(self, samples: Any) -> IterableBatch:
        """The batch of `samples`."""
        info = get_worker_info()
        worker = 0 if info is None else info.id
        first = samples[0] if isinstance(samples, list) and samples else samples
        held = isinstance(first, str) and first == PLACEHOLDER
        data = PLACEHOLDER if held else self.collate(samples)
        return IterableBatch(
            data, worker, (copy.deepcopy(self.stream.dataset.state_dict()), self.stream.ended)
        )
