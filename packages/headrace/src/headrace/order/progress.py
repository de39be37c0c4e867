"""The epochs of one loader: started one after the other, or in the middle from a state."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from headrace.errors import ConfigError
from headrace.order.batches import IndexBatch, OrderedBatches, SampledBatches, StreamBatches
from headrace.order.cursor import (
    UNDRAWN,
    Cursor,
    Key,
    StreamState,
    draw_seed,
    from_state,
    generator_states,
    replayed,
    streams_of,
    to_state,
)
from headrace.order.permutation import key_of

Batches = OrderedBatches | SampledBatches | StreamBatches


class Progress:
    """Which epoch comes next, and how far the one started last has come.

    Args:
        seed: given by the user; None: drawn for each epoch.
    """

    def __init__(self, seed: int | None) -> None:
        self.epoch = 0
        self.seed = seed
        self._cursor: Cursor | None = None  # of the epoch started last
        self._batches: Batches | None = None  # that it was started with
        self._loaded: Cursor | None = None  # to resume from in the next epoch that is started
        self._loaded_order = ""  # what that state is of
        self._ends: dict[int, StreamState] = {}  # of the epoch before the next one, where there is no cursor
        self._ends_loaded = False

    def copy(self) -> Progress:
        """One at the same place, which moves by itself."""
        other = copy.copy(self)
        other._cursor = None if self._cursor is None else self._cursor.copy()
        other._loaded = None if self._loaded is None else self._loaded.copy()
        return other

    def set_epoch(self, epoch: int) -> None:
        """The number of the next epoch; a state that was loaded stays where it is of that one."""
        self.epoch = epoch
        self._ends, self._cursor = self._ends_now(), None
        if self._loaded is not None and self._loaded.epoch != epoch:
            self._loaded = None

    def begin(
        self,
        batches: Batches,
        generator: torch.Generator | None,
        generators: Sequence[torch.Generator],
        kept: Cursor | None = None,
        *,
        keyed: bool = True,
        lazily: bool = False,
    ) -> tuple[Cursor, Iterator[IndexBatch]]:
        """Begins an epoch: where it is, and its batches. torch's own draws from its generators are made, in
        the same order, so that whatever draws from them next gets what it would get with torch's loader.

        Args:
            generator: the loader's; None: torch's default.
            generators: all that the user's sampler may draw from besides the default.
            kept: the epoch before, whose iterator torch would use again, without drawing a seed of the
                workers; None if it would make a new one.
            keyed: whether anything but the user's Python draws by the samples' keys.
            lazily: as of `Cursor`.
        """
        if self._loaded is not None and self._loaded_order != batches.identity():
            raise ConfigError(
                f"The state that was loaded can't be resumed from; order: the state has"
                f" {self._loaded_order!r}, this loader now {batches.identity()!r}. Change samplers, workers"
                " and the dataset's length before load_state_dict()."
            )
        loaded, self._loaded = self._loaded, None
        ends, self._ends = self._ends_now(), {}
        ends_loaded, self._ends_loaded = self._ends_loaded, False
        in_use = lazily or kept is not None  # the dataset of the epoch before
        cursor = self._cursor = loaded or self._new(batches, generator, generators, kept)
        if loaded is None and (ends_loaded or in_use):
            cursor.streams, cursor.loaded = ends, ends_loaded
        cursor.lazily = lazily
        if not lazily:
            cursor.draw_order()
        self._seed_workers(cursor, batches, kept)
        cursor.counts = keyed or cursor.seeds_samples
        self._batches = batches
        self.epoch = cursor.epoch + 1
        if loaded is None or not isinstance(batches, SampledBatches):
            return cursor, batches.begin(cursor)
        with replayed(generators, cursor.generators):
            if cursor.redraws:
                draw_seed(generator)
                cursor.generators, cursor.redraws = generator_states(generators), False
            return cursor, batches.begin(cursor)

    def _seed_workers(self, cursor: Cursor, batches: Batches, kept: Cursor | None) -> None:
        cursor.seeds_samples = self.seed is not None
        if cursor.seeds_samples:
            cursor.base_seed = key_of(*cursor.random_key) >> 1
        elif kept is not None:
            cursor.base_seed = kept.base_seed
        elif cursor.loaded:
            # Nothing is drawn: the generators are where the user has put them. Other numbers than those of
            # the epoch's start, and than those of other ranks.
            rank = batches.shard.rank if isinstance(batches, OrderedBatches) else 0
            cursor.base_seed = key_of(*cursor.random_key, cursor.start, rank) >> 1

    def _new(
        self,
        batches: Batches,
        generator: torch.Generator | None,
        generators: Sequence[torch.Generator],
        kept: Cursor | None,
    ) -> Cursor:
        if isinstance(batches, StreamBatches):
            return Cursor(self.epoch, (0, 0), UNDRAWN)
        random_key = (draw_seed(generator), 0) if kept is None else kept.next_key
        states = generator_states(generators) if isinstance(batches, SampledBatches) else ""
        shuffles = isinstance(batches, OrderedBatches) and batches.shuffles
        seed = self.seed_of(batches)
        unseeded = None if shuffles else (0, 0)
        cursor = Cursor(
            self.epoch,
            order=unseeded if seed is None else (seed, self.epoch),
            random_key=random_key if seed is None else (seed, self.epoch),
            generators=states,
            undrawn=shuffles,
            base_seed=random_key[0],
        )
        if isinstance(batches, SampledBatches):
            told = getattr(batches.source, "epoch", None)
            cursor.sampler_epoch = told if isinstance(told, int) else None
        return cursor

    def seed_of(self, batches: Batches) -> int | None:
        """The seed in use; None: one is drawn for each epoch."""
        return 0 if self.seed is None and _shared(batches) else self.seed

    def random_key(self, batches: Batches, epoch: int | None) -> Key | None:
        """See `headrace.DataLoader.random_key`; None: it isn't known."""
        if epoch is None:
            return None if self._cursor is None else self._cursor.random_key
        seed = self.seed_of(batches)
        return None if seed is None else (seed, epoch)

    @property
    def resumes(self) -> bool:
        """Whether the next epoch continues from a state that was loaded."""
        return self._loaded is not None or self._ends_loaded

    def _ends_now(self) -> dict[int, StreamState]:
        return self._ends if self._cursor is None else self._cursor.ends

    def save(self, batches: Batches, dataset: str) -> dict[str, Any]:
        """The state after the last batch that was received.

        Args:
            batches: of the next epoch; the place in an epoch that was started is one in its own batches.
            dataset: identity of the dataset.
        """
        cursor = self._loaded or self._cursor
        if cursor is self._cursor and cursor is not None and not cursor.finished:
            assert self._batches is not None
            batches = self._batches
        if cursor is not None and cursor.finished:
            cursor = None
        epoch, position = (self.epoch, 0) if cursor is None else (cursor.epoch, batches.position(cursor))
        streams = self._ends_now() if cursor is None else cursor.streams
        order, seed = batches.identity(), self.seed_of(batches)
        return to_state(cursor, epoch, position, streams=streams, dataset=dataset, order=order, seed=seed)

    def load(self, state: dict[str, Any], batches: Batches, dataset: str, given_seed: int | None) -> None:
        """The next epoch begins where `state` was saved. Raises ConfigError where it doesn't fit."""
        cursor = from_state(state, dataset=dataset, order=batches.identity(), seed=given_seed)
        self._loaded, self._cursor, self._loaded_order = cursor, None, batches.identity()
        self._ends = {} if cursor is not None else streams_of(state)
        self._ends_loaded = bool(self._ends)
        # Ranks without a seed save 0; that they continue without one matters to the user's Python.
        without = given_seed is None and state["seed"] == 0 and _shared(batches)
        self.seed, self.epoch = None if without else state["seed"], state["epoch"]
        if cursor is not None and cursor.sampler_epoch is not None and isinstance(batches, SampledBatches):
            tell = getattr(batches.source, "set_epoch", None)
            if tell is not None:
                tell(cursor.sampler_epoch)


def _shared(batches: Batches) -> bool:
    return isinstance(batches, OrderedBatches) and batches.shard.world_size > 1
