"""The batches of indices that an epoch is made of, and how to resume in the middle of it."""

from __future__ import annotations

import copy
import operator
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler

from headrace.order.epoch import EpochStart, Position
from headrace.order.permutation import Indices
from headrace.order.samplers import CHUNK, Order, Sequential
from headrace.order.shard import Shard

UNCOUNTED: Indices = np.empty(0, np.int64)


@dataclass(slots=True, eq=False)  # frozen, it would take three times as long to make
class IndexBatch:
    """Samples of one batch."""

    indices: Sequence[Any] | Indices  # [n], as the order or the user's sampler gives them
    # [n], distinguish the times that an index comes in an epoch; UNCOUNTED if nothing depends on them.
    occurrences: Indices

    def listed(self) -> list[Any]:
        """A list of the indices as the user's code expects them: Python's ints if they are numbers."""
        return self.indices.tolist() if isinstance(self.indices, np.ndarray) else list(self.indices)


NO_INDICES = IndexBatch((), UNCOUNTED)  # in place of each batch of indices, of an `IterableDataset`


class OrderedBatches:
    """Batches of one rank's share of an order: arithmetic, so that an epoch can start at any position.

    Attributes:
        shuffles: whether the order isn't the dataset's own.
        shared: whether there are other ranks.
    """

    def __init__(self, order: Order, shard: Shard) -> None:
        self.order = order
        self.shard = shard
        self.shuffles = not isinstance(order, Sequential)
        self.shared = shard.world_size > 1

    @cached_property
    def _whole(self) -> range:
        return self.shard.positions(self.order.size, 0, 0, sys.maxsize)

    @property
    def positions_per_batch(self) -> int:
        """Positions that one batch of every rank takes together."""
        return self.shard.global_batch

    def identity(self) -> str:
        """Returns what must be the same when a state is loaded."""
        return self.order.identity()

    def length(self) -> int | None:
        """Batches of a whole epoch, or None if it has no end."""
        return None if self.order.size is None else self.shard.batches(self.order.size)

    def begin(self, start: EpochStart, position: Position) -> Iterator[IndexBatch]:  # noqa: ARG002
        """The batches from the start on."""
        order, shard = self.order, self.shard
        if type(order) is Sequential and not start.counts:
            batch, positions = shard.batch_size, self._whole
            if start.position:
                positions = shard.positions(order.size, start.position, 0, sys.maxsize)
            if positions.stop <= order.pass_size:
                starts = range(0, len(positions), batch)
                return (IndexBatch(positions[i : i + batch], UNCOUNTED) for i in starts)
        return self._computed(start)

    def _computed(self, start: EpochStart) -> Iterator[IndexBatch]:
        order, shard, key = self.order, self.shard, start.draw_order()
        batch = shard.batch_size
        first, count = 0, max(1, CHUNK // batch) * batch
        while positions := shard.positions(order.size, start.position, first, count):
            where = np.arange(positions.start, positions.stop, positions.step)
            indices, occurrences = order.at(where, *key)
            for i in range(0, len(indices), batch):
                yield IndexBatch(indices[i : i + batch], occurrences[i : i + batch])
            if len(positions) < count:
                return
            first += count

    def reached(self, start: int, batches: int) -> int:
        """Position that all ranks together have reached with so many batches from `start` on."""
        return self.shard.after(self.order.size, start, batches)


class SampledBatches:
    """Batches by the user's sampler or batch sampler, exactly as torch's DataLoader follows it.

    To resume in the middle, a sampler with `state_dict` and `load_state_dict` is given the state that it had
    after the last batch received; any other one is started again, and the indices that were used are skipped.

    Args:
        source: the sampler, or the batch sampler.
        samples: number of samples of the dataset, or 0 if it isn't known.
        batch_size: size of a sampler's batches, or None if samples aren't batched. Not used with a batch
            sampler.
        drop_last: as in torch.
        by_batches: whether `source` is a batch sampler.
    """

    shuffles = shared = False

    def __init__(
        self, source: Iterable[Any], samples: int, batch_size: int | None, drop_last: bool, by_batches: bool
    ) -> None:
        self.source = source
        self.samples = samples
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.by_batches = by_batches

    @property
    def positions_per_batch(self) -> int:
        """1 of a batch sampler, else the size of a batch."""
        return 1 if self.by_batches else self.batch_size or 1

    def identity(self) -> str:
        """Returns what must be the same when a state is loaded."""
        what = "batch sampler" if self.by_batches else "sampler"
        kind = f"{what} {type(self.source).__module__}.{type(self.source).__qualname__}"
        # Not its rank: a state that one rank saved is for all of them.
        ranks = getattr(self.source, "num_replicas", None)
        shared = "" if ranks is None else f", num_replicas {ranks}"
        try:
            return f"{kind} of {len(self.source)}{shared}"  # type: ignore[arg-type]
        except TypeError:
            return f"{kind}{shared}"

    def length(self) -> int | None:
        """Batches of a whole epoch, or None if it isn't known."""
        return count_batches(self.source, self.batch_size, self.drop_last)

    @property
    def sampler_epoch(self) -> int | None:
        """Number of the epoch that the sampler got by `set_epoch`, or None if it has none."""
        epoch = getattr(self.source, "epoch", None)
        return epoch if isinstance(epoch, int) else None

    def set_epoch(self, epoch: int | None) -> None:
        """Passes `epoch` on to a sampler that takes it."""
        pass_on = getattr(self.source, "set_epoch", None)
        if epoch is not None and pass_on is not None:
            pass_on(epoch)

    def begin(self, start: EpochStart, position: Position) -> Iterator[IndexBatch]:
        """The batches from the start on; draws from the sampler's generator at once if it skips some."""
        counts = Occurrences(self.samples) if start.counts else None
        stateful = self._stateful()
        skip = start.position
        if stateful is not None and start.sampler_state is not None:
            stateful.load_state_dict(copy.deepcopy(start.sampler_state))
            skip = 0
            if self._all_used(start.position):
                # The last batch may have exhausted the sampler, which is then at its next epoch's start.
                if next(iter(self.source), None) is not None:
                    stateful.load_state_dict(start.sampler_state)
                return iter(())
        batches = self._batches_after(skip, counts, lazily=start.lazily)
        if start.resumed:
            batches = chain(list(islice(batches, 1)), batches)
        return _counted(batches, counts, stateful, position)

    def _batches_after(
        self, skip: int, counts: Occurrences | None, *, lazily: bool
    ) -> Iterator[Sequence[Any]]:
        if lazily and self.batch_size is not None and not (skip or self.by_batches):
            return iter(BatchSampler(self.source, self.batch_size, self.drop_last))
        source = iter(self.source)
        for used in islice(source, skip):
            if counts is not None:
                counts.count(used if self.by_batches else [used])
        if self.by_batches:
            return source
        if self.batch_size is None:
            return ([index] for index in source)
        return iter(BatchSampler(source, self.batch_size, self.drop_last))

    def reached(self, start: int, batches: int) -> int:
        """Batches of the batch sampler, or samples of the sampler, after so many batches from `start` on."""
        return start + batches * self.positions_per_batch

    def _all_used(self, start: int) -> bool:
        try:
            return start >= len(self.source)  # type: ignore[arg-type]
        except TypeError:
            return False

    def _stateful(self) -> Any:
        for sampler in (self.source, getattr(self.source, "sampler", None)):
            if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
                return sampler
        return None


class StreamBatches:
    """Batches of an `IterableDataset`, which has its own order, in so many worker processes.

    `length` gives the batches of a whole epoch, or None if that isn't known.
    """

    positions_per_batch = 1
    shuffles = shared = False

    def __init__(self, workers: int, length: Callable[[], int | None] = lambda: None) -> None:
        self.workers = max(1, workers)
        self.length = length

    def identity(self) -> str:
        """Returns what must be the same when a state is loaded: a state is that of one worker's dataset."""
        return f"the dataset's own, in {self.workers} worker{'s' if self.workers > 1 else ''}"

    def begin(self, start: EpochStart, position: Position) -> Iterator[IndexBatch]:  # noqa: ARG002
        """Nothing: no indices are needed."""
        return iter(())

    def reached(self, start: int, batches: int) -> int:
        """Batches of the epoch after so many from `start` on."""
        return start + batches


Batches = OrderedBatches | SampledBatches | StreamBatches


def length_of(values: Any) -> int | None:
    """The length of a dataset or sampler, or None if it has none."""
    try:
        return len(values)
    except TypeError:
        return None


def count_batches(values: Any, size: int | None, drop_last: bool) -> int | None:
    """The batches of a dataset or sampler, or its length without a size, or None if it has no length."""
    samples, size = length_of(values), size or 1
    if samples is None:
        return None
    return samples // size if drop_last else -(-samples // size)


def _counted(
    batches: Iterator[Sequence[Any]], counts: Occurrences | None, stateful: Any, position: Position
) -> Iterator[IndexBatch]:
    for number, indices in enumerate(batches, start=1):
        if stateful is not None:
            position.sampler_states[number] = copy.deepcopy(stateful.state_dict())
        occurrences = UNCOUNTED if counts is None else counts.count(indices)
        yield IndexBatch(indices, occurrences)


class Occurrences:
    """Counts how often each index has come: in 4 bytes for each sample of the dataset once it is touched, and
    in a dict for indices outside it, and for those that aren't numbers."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._counts = np.zeros(samples, np.uint32)
        self._others: defaultdict[Any, int] = defaultdict(int)

    def count(self, indices: Sequence[Any]) -> Indices:
        """Counts how often each of `indices` came before, those before it in `indices` included."""
        out = np.empty(len(indices), np.int64)
        for i, index in enumerate(indices):
            number = index_number(index)
            known = isinstance(number, int) and -self._samples <= number < self._samples
            counts: Any = self._counts if known else self._others
            out[i] = counts[number]
            counts[number] += 1
        return out


def index_number(index: Any) -> int | str:
    """An index as an int if it is one of any kind, else its repr()."""
    try:
        return operator.index(index)
    except TypeError:
        return repr(index)
