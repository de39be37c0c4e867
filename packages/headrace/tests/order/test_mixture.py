"""Mixtures of datasets: shares, passes through each part, and positions as arithmetic."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, TensorDataset

import headrace
from headrace.order import MixtureSampler
from headrace.order.samplers import CHUNK


def indices(sampler: MixtureSampler, seed: int = 0, epoch: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return sampler.at(np.arange(sampler.pass_size), seed, epoch)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=4), st.integers(0, 3 * CHUNK), st.floats(0.5, 8))
def test_a_part_comes_whole_before_it_comes_again(
    lengths: list[int], samples: int, temperature: float
) -> None:
    sampler = MixtureSampler(lengths, temperature=temperature, num_samples=samples)
    found, occurrences = indices(sampler)
    starts = np.cumsum(lengths) - lengths
    for start, length in zip(starts, lengths, strict=True):
        which = (found >= start) & (found < start + length)
        part = found[which]
        for begin in range(0, len(part) // length * length, length):
            assert sorted(part[begin : begin + length]) == list(range(start, start + length))
        assert (occurrences[which] == np.arange(len(part)) // length).all()


def test_shares_are_those_of_the_weights() -> None:
    sampler = MixtureSampler([100, 1000, 10], [3, 1, 0], num_samples=40_000)
    found, _ = indices(sampler)
    assert abs((found < 100).mean() - 0.75) < 0.02
    assert found.max() < 1100
    by_size = MixtureSampler([100, 900], temperature=2, num_samples=40_000)
    assert abs((indices(by_size)[0] < 100).mean() - 0.25) < 0.02  # 10 : 30


def test_epochs_and_seeds_differ() -> None:
    sampler = MixtureSampler([500, 500])
    orders = {tuple(indices(sampler, seed, epoch)[0]) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([3, 2], [1, -1]), "must be finite numbers, 0 or more"),
        (([3, 2], [0, 0]), "not all 0"),
        (([3, 2], [1]), "1 weights for 2 parts"),
        (([3, 0], [1, 1]), "Part 1 has a weight, but no samples"),
    ],
)
def test_weights_that_make_no_mixture(arguments: tuple[list[int], list[float]], message: str) -> None:
    with pytest.raises(headrace.ConfigError, match=message):
        MixtureSampler(*arguments)


def test_a_loader_resumes_a_mixture_with_another_batch_size() -> None:
    dataset: ConcatDataset[Any] = ConcatDataset(
        [TensorDataset(torch.arange(30)), TensorDataset(100 + torch.arange(50))]
    )

    def loader(batch_size: int) -> headrace.DataLoader:
        sampler = MixtureSampler(dataset, [1, 1], num_samples=70)
        return headrace.DataLoader(dataset, batch_size, sampler=sampler, seed=3)

    whole = [number for (batch,) in loader(10) for number in batch.tolist()]
    first = loader(10)
    iterator = iter(first)
    begun = [number for _ in range(3) for number in next(iterator)[0].tolist()]
    second = loader(5)
    second.load_state_dict(first.state_dict())
    assert begun + [number for (batch,) in second for number in batch.tolist()] == whole
    assert 20 < Counter(number < 100 for number in whole)[True] < 50
