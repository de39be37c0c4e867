"""Epochs that are mixed of several datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import ConcatDataset

from headrace.errors import ConfigError
from headrace.order.permutation import Indices, key_of, permute
from headrace.order.samplers import CHUNK, Order, WeightedDraws

# Keep the keys of choices and of permutations apart.
CHOICE, WITHIN = 1, 2


class MixtureSampler(Order):
    """Samples of the parts of a `ConcatDataset`, each part as often as its share says.

    The part at each position is drawn independently, with the probability of its share. The samples of a part
    come in a random order, each of them once before any comes again, in another order.

    Args:
        parts: the `ConcatDataset`, or the number of samples of each of its parts.
        weights: [parts], of any sum, 0 or more. None (the default) takes the numbers of samples, as if the
            dataset were shuffled.
        temperature: a share is proportional to weight ** (1 / temperature), as in the mixtures of T5 (Raffel
            et al., JMLR 2020, section 3.5.2): 1 (the default) leaves the weights unchanged, larger numbers
            make the shares more equal.
        num_samples: number of samples of an epoch. None (the default) takes the dataset's length.

    Raises:
        ConfigError: a weight is negative or not finite, all are 0, a part with a weight has no samples, or
            the temperature isn't positive.
    """

    def __init__(
        self,
        parts: ConcatDataset[Any] | Sequence[int],
        weights: Sequence[float] | npt.NDArray[Any] | None = None,
        *,
        temperature: float = 1.0,
        num_samples: int | None = None,
    ) -> None:
        if isinstance(parts, ConcatDataset):
            parts = np.diff(parts.cumulative_sizes, prepend=0).tolist()
        self._lengths: Indices = np.asarray(parts, dtype=np.int64)
        shares = np.asarray(self._lengths if weights is None else weights, dtype=np.float64)
        WeightedDraws(shares)  # for its errors
        if shares.shape != self._lengths.shape:
            raise ConfigError(f"There are {len(shares)} weights for {len(self._lengths)} parts.")
        if temperature <= 0:
            raise ConfigError(f"temperature ({temperature}) must be more than 0.")
        empty = np.flatnonzero((shares > 0) & (self._lengths == 0)).tolist()
        if empty:
            raise ConfigError(f"Part {empty[0]} has a weight, but no samples.")
        shares = np.where(shares > 0, (shares / shares.max()) ** (1 / temperature), 0.0)
        self._draws = WeightedDraws(shares)
        self._starts: Indices = np.cumsum(self._lengths) - self._lengths
        # Of the pass that was asked for last: its key, and how often each part is chosen before each chunk.
        self._counted: tuple[int, Indices] | None = None
        super().__init__(int(self._lengths.sum()) if num_samples is None else num_samples)
        self.occurrences = max(1, self.pass_size)

    def _pass(self, positions: Indices, key: int) -> tuple[Indices, Indices | int]:
        before = self._counts(key)
        indices, occurrences = np.empty_like(positions), np.empty_like(positions)
        chunks = positions // CHUNK
        for chunk in np.unique(chunks).tolist():
            which = chunks == chunk
            choices = self._choices(chunk, key)
            places = positions[which] - chunk * CHUNK
            chosen = choices[places]
            for part in np.unique(chosen).tolist():
                here = np.flatnonzero(which)[chosen == part]
                earlier = np.cumsum(choices == part) - 1
                number = before[chunk, part] + earlier[places[chosen == part]]
                indices[here], occurrences[here] = self._samples(part, number, key)
        return indices, occurrences

    def _choices(self, chunk: int, key: int) -> Indices:
        """The part at each position of a chunk."""
        positions = np.arange(chunk * CHUNK, min((chunk + 1) * CHUNK, self.pass_size))
        return self._draws.at(positions, key_of(key, CHOICE))

    def _counts(self, key: int) -> Indices:
        """Counts how often each part is chosen before each chunk: [chunks, parts]."""
        counted = self._counted
        if counted is None or counted[0] != key:
            parts = len(self._lengths)
            chunks = range(-(-self.pass_size // CHUNK))
            counts = np.array([np.bincount(self._choices(chunk, key), minlength=parts) for chunk in chunks])
            before: Indices = np.cumsum(counts, axis=0) - counts
            self._counted = counted = key, before
        return counted[1]

    def _samples(self, part: int, number: Indices, key: int) -> tuple[Indices, Indices]:
        """The samples of a part that are its choices of these numbers, and how often each came before."""
        length = int(self._lengths[part])
        rounds, places = np.divmod(number, length)
        within = np.empty_like(places)
        for again in np.unique(rounds).tolist():
            which = rounds == again
            within[which] = permute(places[which], length, key_of(key, WITHIN, part, again))
        return self._starts[part] + within, rounds

    def identity(self) -> str:
        digest = hashlib.blake2b(
            self._lengths.tobytes() + self._draws.sums.tobytes(), digest_size=8
        ).hexdigest()
        return f"{type(self).__name__} of parts and weights {digest}, {self.pass_size} an epoch"
