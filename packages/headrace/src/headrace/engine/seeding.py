"""Seeds for the user's Python: torch's, NumPy's and Python's generators, by sample or as torch does."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from headrace.order.batches import IndexBatch, index_number
from headrace.order.permutation import MASK, key_of, mix_words
from headrace.records import BatchKeys


class Seeding(NamedTuple):
    """The values that the random numbers of one epoch depend on."""

    key: tuple[int, int]  # (seed, epoch) of the samples' random parameters
    base: int  # seed of worker process 0; the others add their number, as in torch
    # Whether all generators are seeded by each sample's key before the user's code makes it; or else worker
    # processes are seeded once, when they start, and the calling process never.
    by_sample: bool


def sample_seeds(key: tuple[int, int], batch: IndexBatch, samples: int) -> list[int]:
    """One 64-bit seed for each sample of `batch`. `key` is (seed, epoch), `samples` the dataset's length, for
    indices from its end."""
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


def seed_generators(seed: int) -> None:
    """Seeds torch's CPU generator and Python's global one of this process with 64 bits, NumPy's with the low
    32 of them (more would cost as much as the rest together)."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def seed_worker(base: int, worker: int) -> None:
    """Seeds the generators of a worker process as torch's DataLoader seeds those of its worker of that
    number: torch's and Python's with the sum of both, NumPy's with a `numpy.random.SeedSequence` of them."""
    torch.manual_seed(base + worker)
    random.seed(base + worker)
    words = [worker, base & 0xFFFFFFFF, base >> 32]
    np.random.seed(np.random.SeedSequence(words).generate_state(4))


# NumPy's bit generators that nobody draws from now.
_spare: list[np.random.MT19937] = []


@contextmanager
def generators_kept() -> Iterator[None]:
    """Within this the three generators of this process may be seeded and drawn from; at its end they are as
    they were before.

    NumPy's functions draw from another bit generator meanwhile: to set the state of the user's takes as long
    as to seed all three generators for seven samples.
    """
    torchs, pythons = torch.default_generator.get_state(), random.getstate()
    numpys, bits = np.random.get_state(legacy=False), np.random.get_bit_generator()  # type: ignore[attr-defined]
    spare = _spare.pop() if _spare else np.random.MT19937()
    np.random.set_bit_generator(spare)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.default_generator.set_state(torchs)
        random.setstate(pythons)
        np.random.set_bit_generator(bits)  # type: ignore[attr-defined]
        if numpys["has_gauss"]:  # the second of two normal numbers, which the bit generator doesn't keep
            np.random.set_state(numpys)
        _spare.append(spare)
