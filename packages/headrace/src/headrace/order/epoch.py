"""The start of an epoch, and how far it has come."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from headrace.errors import ConfigError

Key = tuple[int, int]
# The random key of an epoch of an `IterableDataset` whose seed torch's own loader draws.
UNDRAWN: Key = (0, 0)
# Where the state of an `IterableDataset` lies: at an epoch's start, within it, or after its last sample.
Place = Literal["before", "within", "after"]
StreamState = tuple[Any, Place]
# Key of the state of a stream that has none of its own: the number of samples that it was asked for.
SAMPLES = "headrace.samples"


@dataclass(eq=False, slots=True)  # frozen, it would take as long to make as all else of `Progress.begin`
class EpochStart:
    """The start of an epoch: all that it depends on. `Progress.begin` makes it, and only `draw_order` changes
    it."""

    epoch: int  # its number
    order: Key | None  # (seed, epoch) that the order depends on, or None if its seed is drawn
    random_key: Key  # (seed, epoch) that the random parameters depend on
    position: int = 0  # at which it starts, of all ranks; see `reached` of `headrace.order.batches`
    resumed: bool = False  # whether it continues from a state
    draws_order: bool = False  # whether the seed is yet to be drawn that `RandomSampler` draws in torch
    # Whether samplers start and draw with the first batch rather than with the epoch, as without workers.
    lazily: bool = False
    # States of the generators that the user's sampler may draw from, before it did.
    generators: Sequence[torch.Tensor] = ()
    sampler_epoch: int | None = None  # that the user's sampler got by `set_epoch`, or None if it has none
    sampler_state: Any = None  # of the user's stateful sampler, at `position`
    base_seed: int = 0  # of worker process 0
    seeds_samples: bool = False  # whether the user's Python is seeded for each sample
    counts: bool = True  # whether occurrences of a user's sampler are counted, as something depends on them
    # By worker, state from which its `IterableDataset` continues; and the worker that makes the first batch.
    streams: Mapping[int, StreamState] = field(default_factory=dict)
    turn: int = 0
    drawn: int = 0  # the seed of the order, once it is drawn

    def draw_order(self) -> Key:
        """(seed, epoch) that the order depends on; the first call draws as torch's `RandomSampler` does."""
        if self.draws_order:
            self.drawn, self.draws_order = draw_seed(None), False
        return self.order or (self.drawn, 0)


@dataclass(eq=False, slots=True)
class Position:
    """The progress of an epoch. Its iterator moves it."""

    batches: int = 0  # that the user has received since the epoch's start
    finished: bool = False  # whether the user has seen the epoch's end
    sampler_state: Any = None  # of the user's stateful sampler after the last batch received
    sampler_states: dict[int, Any] = field(default_factory=dict, repr=False)  # the same after later batches
    # By worker, state of the `IterableDataset` after the last batch received; before the worker's first batch
    # that at the end of the epoch before, if it is known.
    streams: dict[int, StreamState] = field(default_factory=dict, repr=False)
    # The same at the epoch's end, of a dataset that has a state and is used for the next epoch, too.
    ends: dict[int, StreamState] = field(default_factory=dict, repr=False)
    # Worker after the one that gave the last batch, as some end before others, or None if there are no
    # streams, or an older version has saved the state.
    turn: int | None = None

    def copy(self) -> Position:
        """One at the same place, which moves by itself."""
        return replace(self, sampler_states=dict(self.sampler_states), streams=dict(self.streams))

    def receive(self, batches: int, stream: tuple[int, StreamState] | None = None) -> None:
        """The user gets batch number `batches` since the start; `stream` is its worker's number and state."""
        if stream is not None:
            worker, state = stream
            self.streams[worker] = state
            self.turn = worker + 1
        self.batches = batches
        if batches in self.sampler_states:
            self.sampler_state = self.sampler_states.pop(batches)
            for number in [n for n in self.sampler_states if n < batches]:
                del self.sampler_states[number]

    def finish(self, ends: Mapping[int, StreamState]) -> None:
        """The user sees the epoch's end."""
        self.finished, self.ends = True, dict(ends)


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed from `generator`, None being torch's default one, as torch's DataLoader draws it."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def generator_states(generators: Sequence[torch.Generator]) -> list[torch.Tensor]:
    """States of torch's default generator and of `generators`."""
    return [each.get_state() for each in (torch.default_generator, *generators)]


def states_as_text(states: Sequence[torch.Tensor]) -> str:
    """States of generators as text."""
    return ",".join(base64.b64encode(state.numpy().tobytes()).decode("ascii") for state in states)


def states_from_text(text: str) -> list[torch.Tensor]:
    """The states that `states_as_text` has made text of."""
    raw = [np.frombuffer(base64.b64decode(part), np.uint8) for part in text.split(",")]
    return [torch.from_numpy(state.copy()) for state in raw]


@contextmanager
def replayed(generators: Sequence[torch.Generator], states: Sequence[torch.Tensor]) -> Iterator[None]:
    """Within this, all generators continue from `states`; torch's default one is then put back."""
    before = torch.default_generator.get_state()
    try:
        for generator, state in zip((torch.default_generator, *generators), states, strict=False):
            try:
                generator.set_state(state)
            except RuntimeError as error:
                raise ConfigError(
                    f"The loaded state is damaged: its generators can't be set: {error}"
                ) from error
        yield
    finally:
        torch.default_generator.set_state(before)


def samples_before(state: Any) -> int | None:
    """Number of samples before the state of a stream that has none of its own, or None if it has one."""
    counted = isinstance(state, dict) and state.keys() == {SAMPLES} and isinstance(state[SAMPLES], int)
    return state[SAMPLES] if counted and state[SAMPLES] >= 0 else None


def samples_to_repeat(states: Mapping[int, StreamState]) -> int:
    """Number of samples that are made again, and dropped, if an epoch resumes from `states` of streams."""
    return sum(samples_before(state) or 0 for state, place in states.values() if place == "within")
