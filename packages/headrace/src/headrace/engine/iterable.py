"""An `IterableDataset`, in a worker process or in the caller's: each request is for its next batch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import repeat
from operator import length_hint
from typing import Any

from torch.utils.data import get_worker_info

from headrace._torch_compat import pin_memory
from headrace.engine.error_policy import STOPPED, Request
from headrace.engine.progress import ProgressCell
from headrace.errors import ConfigError
from headrace.order.epoch import SAMPLES, Place, StreamState, samples_before

# Keys of a state if the dataset and its iterator both have one.
DATASET, ITERATOR = "headrace.dataset", "headrace.iterator"
REPEATS = (
    "{kind} had no state_dict() and load_state_dict(): to resume, the {count} samples before the state are"
    " made again and dropped, which takes as long as they took, and is exact only if they are the same"
    " samples. Give these methods to the dataset, or to what its __iter__() returns, to resume at once."
)
TOO_FEW = (
    "The state can't be resumed from: it was saved after {wanted} samples of {kind}, which has now ended"
    " after {given}. A stream without state_dict() and load_state_dict() must give the same samples again:"
    " give it these methods, or load a state that was saved between epochs."
)


@dataclass(slots=True, eq=False)
class EndOfStream:
    """In place of a batch: the dataset of this worker has given all of its epoch."""

    worker: int  # its number; 0 for the caller's process
    state: StreamState | None  # from which its next epoch starts, or None if it has none, or no next epoch


@dataclass(slots=True, eq=False)  # frozen, it would take three times as long to make
class ResumableBatch:
    """A batch of a stream, and where the stream is after it."""

    data: Any
    worker: int  # number of the worker that made it; 0 for the caller's process
    state: StreamState

    def pin_memory(self) -> ResumableBatch:
        """The same in pinned memory; torch's function for batches calls this."""
        return replace(self, data=pin_memory(self.data))


def has_state(stream: Any) -> bool:
    """Returns whether `stream` has a state of its own: load_state_dict(), and state_dict() without arguments
    (that of some libraries' datasets takes some)."""
    if not (hasattr(stream, "load_state_dict") and hasattr(stream, "state_dict")):
        return False
    try:
        inspect.signature(stream.state_dict).bind()
    except TypeError:
        return False
    except ValueError:  # a builtin, whose signature isn't known
        return True
    return True


class Samples:
    """The samples of one epoch of an `IterableDataset`, and its state: that of the dataset, of the iterator
    that its __iter__() returns, or of both; if neither has one, the number of samples so far. They continue
    from the state `resumed`, if it isn't None.

    Raises:
        RuntimeError: the dataset's __iter__() has raised StopIteration.
        ConfigError: the state is that of an iterator, and the iterator has none now.
    """

    def __init__(self, dataset: Any, resumed: StreamState | None) -> None:
        state, place = resumed or (None, "within")
        self._ended = place == "after"
        self._dataset = dataset
        self._unloaded: tuple[Any] | None = None  # state of the dataset without that of an epoch's end
        self._dataset_has_state = has_state(dataset)
        self._asked = 0  # samples, those that failed included
        self._to_repeat = 0
        before = samples_before(state)
        if before is not None:
            state, self._to_repeat = None, 0 if self._ended else before
        # State of the dataset at the end that is resumed from, and the one that it had before.
        self._end: tuple[Any, Any] | None = None
        if self._ended and self._dataset_has_state:
            self._end, state = (_part_of_dataset(state), copy.deepcopy(dataset.state_dict())), None
            dataset.load_state_dict(self._end[0])
        # iter() of a dataset that is its own iterator may start it over, and so comes before its state.
        own = hasattr(type(dataset), "__next__") and not self._ended
        iterator: Any = self._started() if own else None
        if place == "before" and self._dataset_has_state:
            self._unloaded = (copy.deepcopy(dataset.state_dict()),)
            dataset.load_state_dict(state)
            state, iterator = None, self._started() if own else None
        state = self._load_dataset(state)
        if not own and not self._ended:
            iterator = self._started()
        self._iterator = iterator
        self._iterator_has_state = iterator is not dataset and has_state(iterator)
        if state is not None and not self._ended:
            if not self._iterator_has_state:
                raise ConfigError(
                    f"The state can't be resumed from: it is that of an iterator of {type(dataset).__name__},"
                    f" and {type(iterator).__name__} has no load_state_dict()."
                )
            iterator.load_state_dict(state)

    def take(self, count: int) -> list[Any]:
        """The next `count` samples, fewer at the end of the epoch. May continue after an error."""
        unloaded, self._unloaded = self._unloaded, None
        samples = self._taken(count)
        if not samples and unloaded is not None:
            # Its state stays at the end of its epoch if that is loaded: it starts without.
            self._dataset.load_state_dict(unloaded[0])
            self._iterator, self._ended = self._started(), False
            samples = self._taken(count)
        return samples

    def _taken(self, count: int) -> list[Any]:
        if self._ended:
            return []
        # islice() of the iterator itself would call its iter(), and if it is the dataset, start it over.
        turns = repeat(self._iterator, count)
        try:
            samples = list(map(next, turns))
        finally:
            self._asked += count - length_hint(turns)
        self._ended = len(samples) < count  # the dataset isn't asked again, as in torch
        return samples

    def repeated(self, most: int) -> list[Any]:
        """Up to `most` of the samples before the state that is resumed from, or none if all were repeated.
        Raises ConfigError if the stream has ended before it came to them all."""
        missing = self._to_repeat - self._asked
        if missing <= 0:
            return []
        samples = self.take(min(most, missing))
        if self._ended:
            wanted, self._to_repeat = self._to_repeat, 0
            kind = type(self._dataset).__name__
            raise ConfigError(TOO_FEW.format(wanted=wanted, kind=kind, given=self._asked - 1))
        return samples

    def end(self) -> StreamState | None:
        """The state of the dataset at the end of the epoch, or None if it has none."""
        if self._end is not None:  # it would start the next epoch at the end of this one if that is loaded
            self._dataset.load_state_dict(self._end[1])
            return self._end[0], "before"
        return (copy.deepcopy(self._dataset.state_dict()), "before") if self._dataset_has_state else None

    @property
    def resumed_at_end(self) -> bool:
        """True if the next epoch of the dataset has to resume from `end`."""
        return self._end is not None

    def state(self) -> StreamState:
        """The state now."""
        place: Place = "after" if self._ended else "within"
        if not (self._dataset_has_state or self._iterator_has_state):
            return {SAMPLES: self._asked}, place
        state = self._dataset.state_dict() if self._dataset_has_state else None
        if self._iterator_has_state:
            of_iterator = self._iterator.state_dict()
            state = {DATASET: state, ITERATOR: of_iterator} if self._dataset_has_state else of_iterator
        return copy.deepcopy(state), place

    def _started(self) -> Any:
        try:
            return iter(self._dataset)
        except StopIteration as error:
            raise RuntimeError(STOPPED.format("the dataset's __iter__")) from error

    def _load_dataset(self, state: Any) -> Any:
        """Gives the dataset its part of a state; returns that of the iterator, or None."""
        if state is None or not self._dataset_has_state:
            return state
        part = _part_of_dataset(state)
        self._dataset.load_state_dict(part)
        return None if part is state else state[ITERATOR]


def _part_of_dataset(state: Any) -> Any:
    """The dataset's part of its state and its iterator's, or `state` if it is the dataset's alone."""
    both = isinstance(state, dict) and state.keys() == {DATASET, ITERATOR}
    return state[DATASET] if both else state


class IterableBatches:
    """The batches of an `IterableDataset`, taken as torch's loader takes them. A request with the key of
    another epoch starts the dataset again. Errors are raised, whatever `on_error` is: nobody knows what a
    dataset that fails would have given next.

    Args:
        batch_size: that of the batches, or None if samples aren't batched.
        states: states that the first epoch resumes from, by worker.
        kept: whether the dataset, as it is at the end of an epoch, is used for the next one.
    """

    # Not used: which sample is being made isn't known.
    progress: ProgressCell | None = None
    quarantined: Mapping[Any, str] = {}

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        *,
        batch_size: int | None,
        drop_last: bool,
        states: Mapping[int, StreamState],
        kept: bool,
    ) -> None:
        self.dataset = dataset
        self._collate = collate
        self._batched = batch_size is not None
        self._batch_size = batch_size or 1
        self._drop_last = drop_last
        self._states = dict(states)
        self._kept = kept
        self._epoch: tuple[int, int] | None = None
        self._samples: Samples | None = None

    def make(self, request: Request) -> Any:
        """The next batch, or the next sample, converted; `EndOfStream` if there is none."""
        self.start(request.seeding.key)
        samples = self._samples
        if samples is None:
            return EndOfStream(_worker(), None)
        # They are converted, too: what that draws, later samples may depend on.
        while again := samples.repeated(self._batch_size):
            self._converted(again)
        taken = samples.take(self._batch_size)
        if not taken or (self._drop_last and len(taken) < self._batch_size):
            end = samples.end() if self._kept else None
            if end is not None and samples.resumed_at_end:
                self.resume(end)
            return EndOfStream(_worker(), end)
        return ResumableBatch(self._converted(taken), _worker(), samples.state())

    def start(self, key: tuple[int, int]) -> None:
        """Starts the dataset for the epoch of `key`, unless that is done."""
        if key == self._epoch:
            return
        self._epoch = key
        self._samples = None  # if the dataset fails, nothing of an earlier epoch is left
        self._samples = Samples(self.dataset, self._states.pop(_worker(), None))

    def resume(self, state: StreamState) -> None:
        """Has the next epoch that is started resume from a state."""
        self._states[_worker()] = state

    def _converted(self, samples: list[Any]) -> Any:
        return self._collate(samples if self._batched else samples[0])


def _worker() -> int:
    """Number of this worker; 0 in the caller's process."""
    info = get_worker_info()
    return 0 if info is None else info.id
