"""Laws of the permutation: bijective, uniform, the same everywhere and always."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.order.permutation import TABLE_LIMIT, key_of, mix, mix_words, permute

KEYS = st.integers(0, 2**64 - 1)


def whole(n: int, key: int) -> np.ndarray:
    return permute(np.arange(n), n, key)


def p_value(counts: np.ndarray) -> float:
    """Of a chi-square test that all cells are equally likely (Wilson and Hilferty's normal approximation)."""
    expected = counts.sum() / counts.size
    degrees = counts.size - 1
    statistic = ((counts - expected) ** 2).sum() / expected
    z = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    return math.erfc(abs(z) / math.sqrt(2))


@given(n=st.integers(1, 3000), key=KEYS)
def test_small_ones_are_permutations(n: int, key: int) -> None:
    assert (np.sort(whole(n, key)) == np.arange(n)).all()


@pytest.mark.parametrize(
    "n", [TABLE_LIMIT, TABLE_LIMIT + 1, 257**2, 257**2 + 1, 258 * 257, 100_003, 317**2 - 1, 10**6]
)
def test_large_ones_are_permutations(n: int) -> None:
    for key in (0, 1, 2**64 - 1):
        assert (np.bincount(whole(n, key), minlength=n) == 1).all()


@given(n=st.integers(1, 2**62), key=KEYS, data=st.data())
def test_no_two_positions_have_the_same_image(n: int, key: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=50)))
    images = permute(positions, n, key)
    assert ((images >= 0) & (images < n)).all()
    assert len(set(images.tolist())) == len(set(positions.tolist()))


@given(n=st.integers(1, 2**40), key=KEYS, data=st.data())
def test_a_position_alone_has_the_image_that_it_has_among_others(
    n: int, key: int, data: st.DataObject
) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    together = permute(positions, n, key)
    assert [int(permute(positions[i : i + 1], n, key)[0]) for i in range(len(positions))] == together.tolist()


def test_all_120_permutations_of_five_are_equally_likely() -> None:
    ranks = {order: i for i, order in enumerate(itertools.permutations(range(5)))}
    counts = np.zeros(120, np.int64)
    for epoch in range(24_000):
        counts[ranks[tuple(whole(5, key_of(7, epoch)).tolist())]] += 1
    assert p_value(counts) > 1e-4


@pytest.mark.parametrize("n", range(5, 51, 5))
def test_small_orders_are_uniform(n: int) -> None:
    """Which index is where, which follows which, and whether the permutation is even or odd."""
    places, follows, odd = np.zeros((n, n), np.int64), np.zeros((n, n), np.int64), 0
    rounds = 100 * n
    for epoch in range(rounds):
        order = whole(n, key_of(3, epoch))
        places[np.arange(n), order] += 1
        follows[order[:-1], order[1:]] += 1
        odd += (n - cycles(order)) % 2
    assert p_value(places) > 1e-4
    assert p_value(follows[~np.eye(n, dtype=bool)]) > 1e-4
    assert abs(odd - rounds / 2) < 4 * math.sqrt(rounds) / 2


def cycles(order: np.ndarray) -> int:
    seen, count = np.zeros(len(order), bool), 0
    for start in range(len(order)):
        count += not seen[start]
        while not seen[start]:
            seen[start] = True
            start = int(order[start])
    return count


@pytest.mark.parametrize("n", [10**6, 1000**2 + 1])
@pytest.mark.parametrize("epoch", range(3))
def test_large_orders_look_random(n: int, epoch: int) -> None:
    """Position against index, and index against the next one and the one a row of the network further on."""
    order = whole(n, key_of(11, epoch))
    cell = order * 50 // n
    positions = np.arange(n) * 50 // n
    assert p_value(np.bincount(positions * 50 + cell, minlength=2500)) > 1e-4
    for lag in (1, 2, math.isqrt(n - 1) + 1):
        pairs = np.bincount(cell[:-lag] * 50 + cell[lag:], minlength=2500)
        assert p_value(pairs) > 1e-4
        apart = np.abs(np.diff(order[::lag]))
        # Neighbours of a random permutation are n / 3 apart on average, with a deviation of n / sqrt(18).
        assert abs(apart.mean() / n - 1 / 3) < 5 / math.sqrt(18 * len(apart))
    # As many neighbours stay neighbours as in a random permutation: two, give or take.
    assert (np.abs(np.diff(order)) == 1).sum() < 15


def test_epochs_have_nothing_in_common() -> None:
    n = 10**5
    first, second = whole(n, key_of(1, 0)), whole(n, key_of(1, 1))
    assert (first == second).sum() < 12  # one fixed point is expected
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(n)


def test_a_billion_takes_no_memory() -> None:
    n = 10**9
    permute(np.arange(2), n, 5)
    tracemalloc.start()
    images = permute(np.arange(n - 4096, n), n, 5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(np.unique(images)) == 4096
    assert peak < 10**6


def test_words_are_mixed_as_numbers_are() -> None:
    words = [0, 1, 2**63, 2**64 - 1, 12345678901234567890]
    assert mix_words(np.array(words, np.uint64)).tolist() == [mix(word) for word in words]
    assert mix(0) == 0xE220A8397B1DCDAF  # the first output of splitmix64 seeded with 0


def test_the_order_never_changes() -> None:
    """Pinned: a change here is a change of every user's epochs, and makes their saved states void."""
    assert whole(10, key_of(0, 0)).tolist() == [0, 7, 8, 2, 5, 9, 4, 6, 3, 1]
    assert permute(np.arange(4), 10**6, key_of(1, 2)).tolist() == [456977, 507107, 763465, 701376]
