"""An `IterableDataset` with a state: each batch brings the state after it; a resumed one goes on from it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from headrace._torch_compat import pin_memory

PLACEHOLDER = "headrace: this batch was received before the state was saved"


def has_state(dataset: Any) -> bool:
    """Whether `dataset` can be resumed: it has state_dict() and load_state_dict()."""
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")


class Stream(IterableDataset[Any]):
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
class StreamBatch:
    """The user's batch, or the placeholder, and (state, ended) of the dataset of `worker` after it."""

    data: Any
    worker: int
    state: tuple[Any, bool]

    def pin_memory(self) -> StreamBatch:
        """As torch's loader asks for it."""
        return replace(self, data=pin_memory(self.data))


@dataclass(frozen=True)
class StreamCollate:
    """The user's collate function, and the state that the dataset is in when it has given the samples."""

    collate: Callable[[Any], Any]
    stream: Stream

    def __call__(self, samples: Any) -> StreamBatch:
        info = get_worker_info()
        worker = 0 if info is None else info.id
        first = samples[0] if isinstance(samples, list) and samples else samples
        held = isinstance(first, str) and first == PLACEHOLDER
        data = PLACEHOLDER if held else self.collate(samples)
        return StreamBatch(data, worker, (copy.deepcopy(self.stream.dataset.state_dict()), self.stream.ended))
