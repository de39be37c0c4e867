"""Seeds for the user's Python: torch's, NumPy's and Python's generators, from a sample's key alone."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace.order.batches import IndexBatch, index_number
from headrace.order.permutation import MASK, key_of, mix_words
from headrace.records import BatchKeys, SampleKey


def sample_seeds(key: tuple[int, int], batch: IndexBatch, samples: int) -> list[int]:
    """One 64-bit seed for each sample of `batch`.

    Args:
        key: (seed, epoch).
        samples: of the dataset, for indices from its end; 0: not known.
    """
    keys = batch_keys(key, batch, samples)
    # key_of(*key, number, occurrence) of each.
    numbers, occurrences = keys.samples.astype(np.uint64), keys.occurrences.astype(np.uint64)
    seeds: list[int] = mix_words(mix_words(np.uint64(key_of(*key)) ^ numbers) ^ occurrences).tolist()
    return seeds


def batch_keys(key: tuple[int, int], batch: IndexBatch, samples: int) -> BatchKeys:
    """The keys of the samples of `batch`; the arguments are those of `sample_seeds`. An index that is text
    is known by its checksum."""
    if isinstance(batch.indices, np.ndarray) and (not len(batch.indices) or batch.indices.min() >= 0):
        return BatchKeys(*key, batch.indices, batch.occurrences)
    numbers = np.empty(len(batch.indices), np.uint64)
    for i, index in enumerate(batch.listed()):
        number = index_number(index)
        if isinstance(number, str):
            number = zlib.crc32(number.encode("utf-8", "surrogateescape"))
        numbers[i] = (number + samples if number < 0 else number) & MASK
    return BatchKeys(*key, numbers.astype(np.int64), batch.occurrences)


def seed_of(key: SampleKey) -> int:
    """The same for one sample, whose number is 0 or more."""
    return key_of(*key)


def seed_generators(seed: int) -> None:
    """Seeds torch's CPU generator and Python's global one of this process with 64 bits, NumPy's with the low
    32 of them (more would cost as much as the rest together)."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


class GeneratorStates:
    """The states of the three generators of this process at one time."""

    def __init__(self, torchs: torch.Tensor, numpys: Any, pythons: tuple[Any, Any]) -> None:
        self._torchs = torchs
        self._numpys = numpys
        self._pythons = pythons

    @classmethod
    def now(cls) -> GeneratorStates:
        """As they are."""
        return cls(torch.default_generator.get_state(), _numpy_state(), _python_state())

    def unchanged(self) -> bool:
        """Whether they are still, or again, as they were."""
        return (
            torch.equal(self._torchs, torch.default_generator.get_state())
            and _same_state(self._numpys, _numpy_state())
            and self._pythons == _python_state()
        )

    def restore(self) -> None:
        """Puts them back as they were."""
        global _latest
        torch.default_generator.set_state(self._torchs)
        np.random.set_state(self._numpys)
        _latest = None  # the same words may come back with a normal number kept beside them
        words, normal = self._pythons
        if isinstance(words, bytes):
            position, *key = np.frombuffer(words, np.uint32).tolist()
            words = (*key, position)
        random.setstate((_VERSION, words, normal))


class _Words:
    """The memory of a Mersenne Twister for np.asarray: 624 words of its key, and the position among them,
    which NumPy's have behind them (`mt19937_state` in its mt19937.h) and Python's before."""

    def __init__(self, generator: Any, address: int) -> None:
        self.generator = generator  # whose memory it is: kept as long as an array looks at it
        place = (address, True)
        self.__array_interface__ = {"data": place, "shape": (625,), "typestr": "<u4", "version": 3}


class _Seen(NamedTuple):
    """A state of NumPy's generator, and the words that it had in memory."""

    generator: Any
    memory: npt.NDArray[np.uint32]
    words: bytes
    state: Any


# NumPy's own get_state() takes 34 µs, a tenth of the time of a batch of small samples. The words say the same
# but for a normal number that is kept for the next call; there is none as long as they are those of a state
# that had none.
_latest: _Seen | None = None


def _numpy_state() -> Any:
    """What np.random.get_state() gives: a tuple, or a dict for another generator than NumPy's default."""
    global _latest
    seen, generator = _latest, np.random.get_bit_generator()  # type: ignore[attr-defined]
    if seen is not None and seen.generator is generator and seen.memory.tobytes() == seen.words:
        return seen.state
    if not isinstance(generator, np.random.MT19937):
        return np.random.get_state(legacy=False)
    state: Any = np.random.get_state()
    has_normal = state[3]
    memory = np.asarray(_Words(generator, generator.ctypes.state_address))
    _latest = None if has_normal else _Seen(generator, memory, memory.tobytes(), state)
    return state


# Of what random.getstate() gives.
_VERSION = 3


def _python_memory() -> npt.NDArray[np.uint32] | None:
    """Where CPython keeps the state of its global generator; None: this one keeps it elsewhere.

    random.getstate() makes 625 numbers, 10 µs, twice a batch. `RandomObject` in CPython's _randommodule.c has
    the position and the key behind the head that all objects have.
    """
    generator: Any = random._inst
    head, base = object.__basicsize__, random.Random.__base__
    if sys.implementation.name != "cpython" or base is None or base.__basicsize__ < head + 625 * 4:
        return None
    memory = np.asarray(_Words(generator, id(generator) + head))
    version, words, _ = generator.getstate()
    position, *key = memory.tolist()
    return memory if version == _VERSION and (*key, position) == words else None


_pythons = _python_memory()


def _python_state() -> tuple[Any, Any]:
    """(words, normal number that is kept for the next call) of Python's global generator."""
    if _pythons is None:
        return random.getstate()[1:]
    return _pythons.tobytes(), random._inst.gauss_next  # type: ignore[attr-defined]


def _same_state(one: Any, other: Any) -> bool:
    if one is other or isinstance(one, dict) or isinstance(other, dict):
        return bool(one is other or one == other)
    return bool((one[0], *one[2:]) == (other[0], *other[2:]) and np.array_equal(one[1], other[1]))


@contextmanager
def generators_kept() -> Iterator[None]:
    """Puts the three generators of this process back as they were."""
    before = GeneratorStates.now()
    try:
        yield
    finally:
        before.restore()
