"""The epochs of one loader: started one after the other, or in the middle from a state."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from headrace.errors import ConfigError
from headrace.order.batches import Batches, IndexBatch, OrderedBatches, SampledBatches, StreamBatches
from headrace.order.epoch import (
    UNDRAWN,
    EpochStart,
    Key,
    Position,
    StreamState,
    draw_seed,
    generator_states,
    replayed,
    samples_to_repeat,
)
from headrace.order.permutation import key_of
from headrace.order.state import (
    Identity,
    State,
    checked,
    has_started,
    redraws,
    start_of,
    state_between,
    streams_of,
    to_state,
)

NOT_RESUMABLE = (
    "The epoch can't be resumed in its middle: an IterDataPipe without state_dict() and load_state_dict(), or"
    " a stream with a replaced sampler, is left to torch's own loader, which has no state. Load a state that"
    " was saved between epochs; or call iter() once more, which starts the next epoch."
)


@dataclass(eq=False, slots=True)  # frozen, it would take three times as long to make
class Epoch:
    """An epoch that was started: its batches, what it consists of, and how far it has come."""

    batches: Batches
    start: EpochStart
    position: Position

    @property
    def reached(self) -> int:
        """Position in the order that all ranks together are done with."""
        return self.batches.reached(self.start.position, self.position.batches)


@dataclass(eq=False, kw_only=True, slots=True)
class TorchDraws:
    """The random numbers that torch's loader would draw at the start of an epoch, and their generators:
    whatever draws from the same generators next gets what it would get there."""

    generator: torch.Generator | None = None  # the loader's, or None for torch's default one
    generators: Sequence[torch.Generator] = ()  # what the user's sampler may draw from besides the default
    # The epoch before if torch would use its iterator again, without drawing a seed of the workers.
    kept: EpochStart | None = None
    keyed: bool = True  # whether anything but the user's Python draws by the samples' keys
    lazily: bool = False  # see `EpochStart`
    by_torch: bool = False  # whether torch's own loader makes the batches, and draws itself

    def workers_key(self) -> Key:
        """The random key of an epoch without a seed; its seed is that of the workers."""
        if self.kept is None:
            return draw_seed(self.generator), 0
        seed, epoch = self.kept.random_key
        return seed, epoch + 1


class Progress:
    """The number of the next epoch, and how far the one started last has come."""

    def __init__(self, seed: int | None) -> None:
        self.epoch = 0
        self.seed = seed  # given by the user, or None if one is drawn for each epoch
        self._latest: Epoch | None = None  # None also once a state was loaded, or another epoch was chosen
        self._state: State | None = None  # the next epoch that is started resumes from it
        self._ends: Mapping[int, StreamState] = {}  # of the epoch before the next one, if there is no latest

    def copy(self) -> Progress:
        """One at the same place, which moves by itself."""
        other = copy.copy(self)
        if self._latest is not None:
            other._latest = replace(self._latest, position=self._latest.position.copy())
        return other

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch; a state that was loaded stays if it is of that one."""
        self.epoch = epoch
        self._ends, self._latest = self._ends_now(), None
        if self._state is not None and has_started(self._state) and self._state["epoch"] != epoch:
            self._state = None

    def begin(self, batches: Batches, draws: TorchDraws) -> tuple[Epoch, Iterator[IndexBatch]]:
        """Starts an epoch, and returns it and its batches from the start on. Makes torch's own draws from its
        generators in the same order. Raises ConfigError if the state that was loaded can't be resumed
        from."""
        state = self._state if self._state is not None and has_started(self._state) else None
        if state is not None and state["order"] != batches.identity():
            raise ConfigError(
                f"The state that was loaded can't be resumed from; order: the state has"
                f" {state['order']!r}, this loader now {batches.identity()!r}. Change samplers, workers"
                " and the dataset's length before load_state_dict()."
            )
        loaded: Mapping[int, StreamState] = {}
        position = Position()
        if isinstance(batches, StreamBatches):
            loaded = self._unloaded() if self._state is None else streams_of(self._state)
            in_use = draws.lazily or draws.kept is not None  # the dataset of the epoch before
            position.streams = dict(self._ends_now() if self._state is None and in_use else loaded)
        epoch = self.epoch if state is None else state["epoch"]
        self.epoch, self._latest, self._state, self._ends = epoch + 1, None, None, {}
        if isinstance(batches, StreamBatches):
            start = _of_stream(epoch, batches, draws, state, loaded)
        elif state is None:
            start = self._new(epoch, batches, draws)
        else:
            start = self._resumed(batches, draws, state)
        if state is not None:
            position.sampler_state, position.turn = start.sampler_state, state["turn"]
        if not draws.lazily:
            start.draw_order()
        if state is None or not isinstance(batches, SampledBatches):
            self._latest = Epoch(batches, start, position)
            return self._latest, batches.begin(start, position)
        with replayed(draws.generators, start.generators):
            if redraws(state):
                draw_seed(draws.generator)
                start = replace(start, generators=generator_states(draws.generators))
            self._latest = Epoch(batches, start, position)
            return self._latest, batches.begin(start, position)

    def _resumed(
        self, batches: OrderedBatches | SampledBatches, draws: TorchDraws, state: State
    ) -> EpochStart:
        start = start_of(state)
        # Nothing is drawn: the generators are where the user has put them. Other numbers than those of the
        # epoch's start, and than those of other ranks.
        rank = batches.shard.rank if isinstance(batches, OrderedBatches) else 0
        base_seed = key_of(*start.random_key, start.position, rank) >> 1
        return replace(
            start,
            base_seed=self._base_seed(start.random_key, draws, base_seed),
            seeds_samples=self.seed is not None,
            counts=draws.keyed or self.seed is not None,
            lazily=draws.lazily,
        )

    def _new(self, epoch: int, batches: OrderedBatches | SampledBatches, draws: TorchDraws) -> EpochStart:
        drawn, seed, seeded = draws.workers_key(), self.seed_of(batches), self.seed is not None
        key = None if seed is None else (seed, epoch)
        start = EpochStart(
            epoch,
            key or (0, 0),
            key or drawn,
            lazily=draws.lazily,
            base_seed=self._base_seed(key or drawn, draws, drawn[0]),
            seeds_samples=seeded,
            counts=draws.keyed or seeded,
        )
        if isinstance(batches, SampledBatches):
            start.generators = generator_states(draws.generators)
            start.sampler_epoch = batches.sampler_epoch
        elif batches.shuffles:
            start.order, start.draws_order = key, True
        return start

    def _base_seed(self, random_key: Key, draws: TorchDraws, otherwise: int) -> int:
        """The seed of worker process 0."""
        if self.seed is not None:
            return key_of(*random_key) >> 1
        return otherwise if draws.kept is None else draws.kept.base_seed

    def seed_of(self, batches: Batches) -> int | None:
        """The seed in use, or None if one is drawn for each epoch."""
        return 0 if self.seed is None and batches.shared else self.seed

    def random_key(self, batches: Batches, epoch: int | None) -> Key | None:
        """See `headrace.DataLoader.random_key`, or None if it isn't known."""
        if epoch is None:
            return None if self._latest is None else self._latest.start.random_key
        seed = self.seed_of(batches)
        return None if seed is None else (seed, epoch)

    @property
    def resumes(self) -> bool:
        """True if the next epoch continues from a state that was loaded."""
        state = self._state
        return state is not None and (has_started(state) or bool(state["streams"]))

    def _unloaded(self) -> Mapping[int, StreamState]:
        """The ends of an epoch that resumed after its last batch: its dataset hasn't got them."""
        resumed = {} if self._latest is None else self._latest.start.streams
        ended = bool(resumed) and all(place == "after" for _, place in resumed.values())
        return self._ends_now() if ended else {}

    def _ends_now(self) -> Mapping[int, StreamState]:
        return self._ends if self._latest is None else self._latest.position.ends

    def save(self, batches: Batches, dataset: str) -> State:
        """The state after the last batch that was received. `batches` are those of the next epoch: the place
        in an epoch that was started is one in its own."""
        latest = None if self._latest is None or self._latest.position.finished else self._latest
        if latest is not None:
            batches = latest.batches
        identity = Identity(dataset=dataset, order=batches.identity(), seed=self.seed_of(batches))
        if self._state is not None:
            number = {} if has_started(self._state) else {"epoch": self.epoch}
            return {**self._state, **identity, **number}
        if latest is None:
            return state_between(self._ends_now(), self.epoch, identity)
        return to_state(latest.start, latest.position, latest.reached, identity)

    def load(self, state: State, batches: Batches, dataset: str, given_seed: int | None) -> None:
        """The next epoch begins where `state` was saved. Raises ConfigError if it doesn't fit."""
        state = checked(state, Identity(dataset=dataset, order=batches.identity(), seed=given_seed))
        self._state, self._latest, self._ends = state, None, {}
        # Ranks without a seed save 0; that they continue without one matters to the user's Python.
        without = given_seed is None and state["seed"] == 0 and batches.shared
        self.seed, self.epoch = None if without else state["seed"], state["epoch"]
        if has_started(state) and isinstance(batches, SampledBatches):
            batches.set_epoch(state["sampler_epoch"])


def _of_stream(
    epoch: int,
    batches: StreamBatches,
    draws: TorchDraws,
    state: State | None,
    streams: Mapping[int, StreamState],
) -> EpochStart:
    start = EpochStart(epoch, UNDRAWN, UNDRAWN) if state is None else start_of(state)
    if start.position and (draws.by_torch or not streams):
        raise ConfigError(NOT_RESUMABLE)
    key = start.random_key if draws.by_torch else _stream_key(batches, start, draws, streams)
    start.random_key, start.base_seed, start.streams = key, key[0], streams
    return start


def _stream_key(
    batches: StreamBatches, start: EpochStart, draws: TorchDraws, states: Mapping[int, StreamState]
) -> Key:
    begun = [worker for worker, (_, place) in states.items() if place != "before"]
    repeats = samples_to_repeat(states) > 0 or len(begun) < batches.workers
    if repeats and not draws.lazily and start.random_key != UNDRAWN:
        return start.random_key[0], 0  # new workers, which draw what those before them drew
    return draws.workers_key()
