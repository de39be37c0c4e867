"""Orders of an epoch's samples, each a pure function of (seed, epoch, position)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence, Sized
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler

from headrace.errors import ConfigError
from headrace.order.permutation import Indices, key_of, permute, random_words

# Indices computed at a time: large enough that the cost of a NumPy call doesn't show, small enough that
# the first index doesn't wait.
CHUNK = 4096

# Keeps an order's keys apart from those of samples, which are of (seed, epoch, index, occurrence) too.
ORDER = 0x6F72646572


class Order(Sampler[int]):
    """The sample at each position of an epoch.

    Pass one as `sampler` of `headrace.DataLoader`, which gives it the seed and the epoch, shares its
    positions among ranks and resumes in the middle. torch's DataLoader takes it too; iter() then draws a seed
    from torch's default generator.

    Attributes:
        pass_size: positions until every sample has had its turn; those beyond begin another pass, in another
            order.
        size: positions of an epoch, or None if it has no end.
        occurrences: how often an index may come in one pass, at most.
    """

    occurrences = 1

    def __init__(self, pass_size: int) -> None:
        if pass_size < 0:
            raise ConfigError(f"The number of samples ({pass_size}) must be 0 or more.")
        self.pass_size = pass_size

    @property
    def size(self) -> int | None:
        """The number of positions of an epoch, or None if it has no end."""
        return self.pass_size

    def at(self, positions: Indices, seed: int, epoch: int) -> tuple[Indices, Indices]:
        """(indices, occurrences) at `positions`, any of 0 or more.

        An occurrence number distinguishes the times that an index comes in an epoch: random parameters depend
        on it. It is 0 wherever no index comes twice.
        """
        occurrences = np.zeros(len(positions), np.int64)
        if not len(positions):
            return occurrences, occurrences
        last = int(positions.max()) // self.pass_size
        if not last:  # as nearly always
            indices, again = self._pass(positions, key_of(seed, epoch, 0, ORDER))
            if not isinstance(again, int):
                occurrences[:] = again
            return indices, occurrences
        indices = np.empty_like(positions)
        for number in range(int(positions.min()) // self.pass_size, last + 1):
            begin = number * self.pass_size
            which = (positions >= begin) & (positions < begin + self.pass_size)
            key = key_of(seed, epoch, number, ORDER)
            indices[which], again = self._pass(positions[which] - begin, key)
            occurrences[which] = again + number * self.occurrences
        return indices, occurrences

    def _pass(self, positions: Indices, key: int) -> tuple[Indices, Indices | int]:
        """(indices, occurrences) at positions of one pass."""
        raise NotImplementedError

    def identity(self) -> str:
        """Describes what the order depends on besides seed and epoch, in words that fit a sentence."""
        return f"{type(self).__name__} of {self.pass_size}"

    def __len__(self) -> int:
        return self.pass_size

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._chunks())

    def _chunks(self) -> Iterator[list[int]]:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        start = 0
        while self.size is None or start < self.size:
            stop = start + CHUNK if self.size is None else min(start + CHUNK, self.size)
            yield self.at(np.arange(start, stop), seed, 0)[0].tolist()
            start = stop


class Sequential(Order):
    """0, 1, 2, … as torch's `SequentialSampler`.

    Args:
        samples: the dataset, or how many samples it has.
    """

    def __init__(self, samples: Sized | int) -> None:
        super().__init__(_count(samples))

    def at(self, positions: Indices, seed: int, epoch: int) -> tuple[Indices, Indices]:  # noqa: ARG002
        passes, indices = np.divmod(positions, max(1, self.pass_size))
        return indices, passes

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.pass_size))


class Shuffled(Order):
    """Every sample once, in a random order of every epoch's own; see `headrace.order.permutation`.

    Args:
        samples: the dataset, or how many samples it has.
    """

    def __init__(self, samples: Sized | int) -> None:
        super().__init__(_count(samples))

    def _pass(self, positions: Indices, key: int) -> tuple[Indices, Indices | int]:
        return permute(positions, self.pass_size, key), 0


class RepeatedAugmentation(Order):
    """Each sample `repeats` times in a row, with other random parameters each time (Hoffer et al.: "Augment
    your batch", CVPR 2020), as in DeiT's training: several ranks get the same sample in one global batch.

    Args:
        samples: the dataset, or how many samples it has.
        repeats: how often each sample comes.
        num_samples: positions of an epoch. None (the default): as many as there are samples, as in DeiT, so
            that an epoch costs what it does without repeats and sees one in `repeats` of the samples.
    """

    def __init__(self, samples: Sized | int, repeats: int = 3, num_samples: int | None = None) -> None:
        self.samples = _count(samples)
        if repeats < 1:
            raise ConfigError(f"repeats ({repeats}) must be 1 or more.")
        super().__init__(self.samples if num_samples is None else num_samples)
        if self.pass_size > self.samples * repeats:
            raise ConfigError(
                f"num_samples ({num_samples}) must be at most samples * repeats ({self.samples * repeats})."
            )
        self.occurrences = repeats

    def _pass(self, positions: Indices, key: int) -> tuple[Indices, Indices | int]:
        return permute(positions // self.occurrences, self.samples, key), positions % self.occurrences

    def identity(self) -> str:
        return f"{type(self).__name__} of {self.samples}, {self.occurrences} times, {self.pass_size} an epoch"


class WeightedDraws:
    """Draws with replacement, by weights of any sum; `sums` are those of the weights up to each. Raises
    ConfigError if a weight is negative or not finite, or all are 0."""

    def __init__(self, weights: npt.NDArray[np.float64]) -> None:
        if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.sum() > 0):
            raise ConfigError("Weights must be finite numbers, 0 or more, and not all 0.")
        self.sums = np.cumsum(weights)
        self._last = int(np.flatnonzero(weights)[-1])

    def at(self, positions: Indices, key: int) -> Indices:
        """The draws at `positions`: numbers of weights."""
        shares = (random_words(positions, key) >> np.uint64(11)) * 2.0**-53
        # In order, searches stay in the processor's cache.
        order = np.argsort(shares)
        drawn = np.empty_like(positions)
        drawn[order] = np.searchsorted(self.sums, shares[order] * self.sums[-1], side="right")
        return np.minimum(drawn, self._last)  # rounding may give the whole sum, which is one too far


class Weighted(Order):
    """Samples drawn with replacement, as torch's `WeightedRandomSampler` does: how often one comes is in
    proportion to its weight. Takes 8 bytes a sample.

    Args:
        weights: [n], one of each sample of the dataset, 0 or more, of any sum.
        num_samples: to draw in an epoch, or None (the default) for n.

    Raises:
        ConfigError: a weight is negative or not finite, or all are 0.
    """

    def __init__(
        self, weights: Sequence[float] | npt.NDArray[Any] | torch.Tensor, num_samples: int | None = None
    ) -> None:
        given = np.asarray(weights, dtype=np.float64).reshape(-1)
        self._draws = WeightedDraws(given)
        super().__init__(len(given) if num_samples is None else num_samples)
        self.occurrences = max(1, self.pass_size)

    @classmethod
    def balanced(
        cls, labels: Sequence[int] | npt.NDArray[Any] | torch.Tensor, num_samples: int | None = None
    ) -> Weighted:
        """Every class as often as any other: a sample's weight is one over the size of its class.

        Args:
            labels: [n], the class of each sample of the dataset, such as `ImageFolder.targets`.
            num_samples: to draw in an epoch, or None (the default) for n.
        """
        _, classes, counts = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
        return cls(1.0 / counts[classes], num_samples)

    def _pass(self, positions: Indices, key: int) -> tuple[Indices, Indices | int]:
        # The position distinguishes draws of an index: how many came before can't be known without making
        # them.
        return self._draws.at(positions, key), positions

    def identity(self) -> str:
        digest = hashlib.blake2b(self._draws.sums.tobytes(), digest_size=8).hexdigest()
        return f"{type(self).__name__} by weights {digest}, {self.pass_size} an epoch"


class LocalShuffled(Order):
    """Every sample once; shards in a random order, samples shuffled within a window of several shards:
    storage is read in long runs. See docs/order.md for what that costs in randomness.

    Args:
        boundaries: [shards + 1], rising from 0: shard s holds samples boundaries[s] to boundaries[s + 1] - 1.
        window: samples that are shuffled among each other; all of a window's shards are being read at a time.
    """

    def __init__(self, boundaries: Sequence[int] | npt.NDArray[np.integer[Any]], window: int) -> None:
        self._boundaries: Indices = np.asarray(boundaries, dtype=np.int64)
        sizes: Indices = np.diff(self._boundaries)
        if self._boundaries.ndim != 1 or self._boundaries[:1].tolist() != [0] or (sizes < 0).any():
            raise ConfigError("boundaries must rise from 0: one number more than there are shards.")
        if window < 1:
            raise ConfigError(f"window ({window}) must be 1 sample or more.")
        self._sizes = sizes
        self.window = window
        super().__init__(int(self._boundaries[-1]))

    def _pass(self, positions: Indices, key: int) -> tuple[Indices, Indices | int]:
        shards = permute(np.arange(len(self._sizes)), len(self._sizes), key)
        ends: Indices = np.cumsum(self._sizes[shards])
        places = self._shuffle_windows(positions, key)
        turn = np.searchsorted(ends, places, side="right")
        indices: Indices = self._boundaries[shards[turn] + 1] - (ends[turn] - places)
        return indices, 0

    def _shuffle_windows(self, positions: Indices, key: int) -> Indices:
        places = np.empty_like(positions)
        windows = positions // self.window
        for number in np.unique(windows).tolist():
            which, begin = windows == number, number * self.window
            n = min(self.window, self.pass_size - begin)
            places[which] = begin + permute(positions[which] - begin, n, key_of(key, number))
        return places

    def identity(self) -> str:
        digest = hashlib.blake2b(self._boundaries.tobytes(), digest_size=8).hexdigest()
        shards = len(self._sizes)
        return f"{type(self).__name__} of {self.pass_size} in {shards} shards {digest}, window {self.window}"


class Endless(Order):
    """Pass after pass of another order in one epoch without end; len() raises TypeError.

    Args:
        order: whose passes.
    """

    def __init__(self, order: Order) -> None:
        super().__init__(order.pass_size)
        if order.pass_size == 0:
            raise ConfigError("There is no sample to repeat without end.")
        self.order = order

    @property
    def size(self) -> int | None:
        return None

    def at(self, positions: Indices, seed: int, epoch: int) -> tuple[Indices, Indices]:
        return self.order.at(positions, seed, epoch)

    def identity(self) -> str:
        return f"{self.order.identity()}, without end"

    def __len__(self) -> int:
        raise TypeError("an endless order has no len()")


def _count(samples: Sized | int) -> int:
    return samples if isinstance(samples, int) else len(samples)
