"""Where a loader is in its epochs, and that as a state that can be saved, checked and loaded."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from headrace.errors import ConfigError

VERSION = 2
# Version 1 has the generators as they were before the seed of the workers was drawn.
READABLE = (1, VERSION)
# Keys that states of this version haven't had from the first.
NEWER = ("before", "ended", "turn")

Key = tuple[int, int]
# Of an epoch of an `IterableDataset`, until its workers' seed is drawn.
UNDRAWN: Key = (0, 0)
# What a state of an `IterableDataset` is of: an epoch's start, its middle, or where it had given all of it.
Place = Literal["before", "within", "after"]
StreamState = tuple[Any, Place]


@dataclass
class Cursor:
    """One epoch's progress, shared by the loader and the iterator that moves it.

    Attributes:
        epoch: number of the epoch.
        order: (seed, epoch) that the order depends on; None: its seed is what is yet to be drawn.
        random_key: (seed, epoch) that the random parameters depend on.
        start: position at which the iterator started; see the `position` of `headrace.order.batches`.
        batches: number of batches that the user has received since.
        finished: whether the user has seen the epoch's end.
        loaded: whether the epoch is resumed from a state.
        generators: states of the generators that the user's sampler may draw from, before it did.
        redraws: whether a seed of the workers is to be drawn from `generators` before the sampler starts.
        sampler_epoch: number that the user's sampler was told by `set_epoch`; None: it has none.
        sampler_state: of the user's stateful sampler, at `start`.
        sampler_states: the same after batch i since then; those that are passed are dropped.
        undrawn: whether what torch's `RandomSampler` draws for an epoch is yet to be drawn.
        lazily: whether samplers start and draw with the first batch rather than with the epoch, as in torch
            without workers.
        base_seed: seed of the epoch's worker process 0.
        seeds_samples: whether the user's Python is seeded for each sample.
        counts: whether occurrences of a user's sampler are counted; where not, nothing depends on them.
        streams: by worker, state of the `IterableDataset` after the last batch received, or, where it has
            none, the number of its samples so far; before the worker's first batch that at the end of the
            epoch before, if it is known.
        ends: by worker, state of the dataset at the epoch's end; only of one that has a state and is used for
            the next epoch, too.
        turn: worker after the one that gave the last batch; None: there are no streams, or an older version
            has saved the state. As some end before others, it doesn't follow from the position.
    """

    epoch: int
    order: Key | None
    random_key: Key
    start: int = 0
    batches: int = 0
    finished: bool = False
    loaded: bool = False
    generators: str = ""
    redraws: bool = False
    sampler_epoch: int | None = None
    sampler_state: Any = None
    sampler_states: dict[int, Any] = field(default_factory=dict, repr=False)
    undrawn: bool = False
    lazily: bool = False
    base_seed: int = 0
    seeds_samples: bool = False
    counts: bool = True
    streams: dict[int, StreamState] = field(default_factory=dict, repr=False)
    ends: dict[int, StreamState] = field(default_factory=dict, repr=False)
    turn: int | None = None

    @property
    def order_key(self) -> Key:
        """(seed, epoch) that the order depends on."""
        if self.order is None:
            self.draw_order()
        assert self.order is not None
        return self.order

    @property
    def next_key(self) -> Key:
        """The random key of the next epoch, if torch would draw no seed for it."""
        return self.random_key[0], self.random_key[1] + 1

    def draw_order(self) -> None:
        """Draws from torch's default generator what torch's `RandomSampler` draws, unless that is done."""
        if self.undrawn:
            self.undrawn, seed = False, draw_seed(None)
            self.order = self.order or (seed, 0)

    def copy(self) -> Cursor:
        """One at the same place, which moves by itself."""
        return replace(self, sampler_states=dict(self.sampler_states), streams=dict(self.streams))

    def received(self, batches: int) -> None:
        """The user has now got batch number `batches` since `start`."""
        self.batches = batches
        if batches in self.sampler_states:
            self.sampler_state = self.sampler_states.pop(batches)
            for number in [n for n in self.sampler_states if n < batches]:
                del self.sampler_states[number]


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed from `generator`, None being torch's default one, as torch's DataLoader draws it."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def to_state(
    cursor: Cursor | None,
    epoch: int,
    position: int,
    *,
    streams: Mapping[int, StreamState],
    dataset: str,
    order: str,
    seed: int | None,
) -> dict[str, Any]:
    """`cursor` as a dict of ints, strings and None, the same keys always; what the user's own objects gave is
    in tuples, so that torch.distributed.checkpoint saves it whole.

    Args:
        cursor: progress of the epoch; None where it hasn't started, and nothing of it is decided.
        position: that is done with.
        streams: as of `Cursor`; of an epoch that hasn't started, the ends of the one before.
        dataset, order, seed: must be the same where the state is loaded.
    """
    order_key, random_key = (None, None) if cursor is None else (cursor.order_key, cursor.random_key)
    sorted_streams = sorted(streams.items(), key=lambda item: item[0])
    return {
        "version": 1 if cursor is not None and cursor.redraws else VERSION,
        "dataset": dataset,
        "order": order,
        "seed": seed,
        "epoch": epoch,
        "position": position,
        "order_seed": order_key and order_key[0],
        "order_epoch": order_key and order_key[1],
        "random_seed": random_key and random_key[0],
        "random_epoch": random_key and random_key[1],
        "generators": "" if cursor is None else cursor.generators,
        "sampler_epoch": None if cursor is None else cursor.sampler_epoch,
        "sampler": (None if cursor is None else cursor.sampler_state,),
        "streams": tuple((worker, state) for worker, (state, _) in sorted_streams),
        "before": tuple(worker for worker, (_, place) in sorted_streams if place == "before"),
        "ended": tuple(worker for worker, (_, place) in sorted_streams if place == "after"),
        "turn": None if cursor is None else cursor.turn,
    }


def from_state(state: dict[str, Any], *, dataset: str, order: str, seed: int | None) -> Cursor | None:
    """Undoes `to_state`; None where the epoch hadn't started.

    Raises:
        ConfigError: the state is of another dataset, order or seed, or isn't one of this version.
    """
    if not isinstance(state, dict):
        raise ConfigError(f"state_dict must be a dict that state_dict() gave, not {type(state).__name__}.")
    if state.get("version") not in READABLE:
        raise ConfigError(
            f"This isn't a state of a headrace.DataLoader of version {VERSION}: its version is"
            f" {state.get('version')!r}."
        )
    _check(state)
    ours = {"dataset": dataset, "order": order, "seed": seed if seed is not None else state["seed"]}
    different = [
        f"{name}: the state has {state[name]!r}, this loader {value!r}"
        for name, value in ours.items()
        if state[name] != value
    ]
    if different:
        raise ConfigError(
            f"The state can't be loaded into this loader; {'; '.join(different)}. Make the loader as it was"
            " when the state was saved (batch size, workers and ranks may differ)."
        )
    if state["order_seed"] is None:
        return None
    return Cursor(
        epoch=state["epoch"],
        order=(state["order_seed"], state["order_epoch"]),
        random_key=(state["random_seed"], state["random_epoch"]),
        start=state["position"],
        loaded=True,
        generators=state["generators"],
        # Version 1 drew none for kept worker processes, whose epochs have had numbers from 1.
        redraws=state["version"] == 1 and (state["seed"] is not None or state["random_epoch"] == 0),
        sampler_epoch=state["sampler_epoch"],
        sampler_state=state["sampler"][0],
        streams=streams_of(state),
        turn=state.get("turn"),
    )


def streams_of(state: Mapping[str, Any]) -> dict[int, StreamState]:
    """The `streams` that `to_state` was given, of a state that `from_state` takes."""
    places: dict[int, Place] = {
        **dict.fromkeys(state.get("before", ()), "before"),
        **dict.fromkeys(state.get("ended", ()), "after"),
    }
    return {worker: (each, places.get(worker, "within")) for worker, each in state["streams"]}


def _check(state: dict[str, Any]) -> None:
    """Refuses what `to_state` can't have given: it may have been changed on its way."""
    numbers = ("order_seed", "order_epoch", "random_seed", "random_epoch")
    started = state.get("order_seed") is not None
    sound = {
        **{name: isinstance(state.get(name), str) for name in ("dataset", "order")},
        **{name: _is_number(state.get(name)) for name in ("epoch", "position")},
        **{name: _is_number(state.get(name)) if started else state.get(name) is None for name in numbers},
        **{name: state.get(name) is None or _is_number(state[name]) for name in ("seed", "sampler_epoch")},
        "generators": _is_base64(state.get("generators")),
        "sampler": isinstance(state.get("sampler"), (tuple, list)) and len(state["sampler"]) == 1,
        "streams": _are_pairs(state.get("streams")),
        **{name: all(map(_is_number, state.get(name, ()))) for name in ("before", "ended")},
        "turn": state.get("turn") is None or _is_number(state["turn"]),
    }
    wrong = [f"{name} is missing" for name in sound if name not in state and name not in NEWER]
    wrong += [f"{name} is {state[name]!r:.100}" for name in sound if name in state and not sound[name]]
    if wrong:
        raise ConfigError(
            f"This state is damaged: {'; '.join(wrong)}. Load the one that was saved before it."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _is_base64(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return all(base64.b64decode(text, validate=True) or not value for text in value.split(","))
    except ValueError:
        return False


def _are_pairs(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(
        isinstance(pair, (tuple, list)) and len(pair) == 2 and _is_number(pair[0]) for pair in value
    )


def generator_states(generators: Sequence[torch.Generator]) -> str:
    """States of torch's default generator and of `generators`, as text."""
    states = [each.get_state() for each in (torch.default_generator, *generators)]
    return ",".join(base64.b64encode(state.numpy().tobytes()).decode("ascii") for state in states)


@contextmanager
def replayed(generators: Sequence[torch.Generator], states: str) -> Iterator[None]:
    """Within this, all generators continue from `states`; torch's default one is then put back."""
    before = torch.default_generator.get_state()
    for generator, text in zip((torch.default_generator, *generators), states.split(","), strict=False):
        raw = np.frombuffer(base64.b64decode(text), np.uint8)
        try:
            generator.set_state(torch.from_numpy(raw.copy()))
        except RuntimeError as error:
            torch.default_generator.set_state(before)
            raise ConfigError(f"The loaded state is damaged: its generators can't be set: {error}") from error
    try:
        yield
    finally:
        torch.default_generator.set_state(before)
