"""Laws of the orders: a position has its sample whatever else is asked, and all come as often as said."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headrace.order
from headrace.errors import ConfigError
from headrace.order import (
    Endless,
    LocalShuffled,
    Order,
    RepeatedAugmentation,
    Sequential,
    Shuffled,
    Weighted,
)
from headrace.order.permutation import TABLE_LIMIT


def indices(
    order: Order, seed: int = 0, epoch: int = 0, begin: int = 0, end: int | None = None
) -> np.ndarray:
    return order.at(np.arange(begin, order.pass_size if end is None else end), seed, epoch)[0]


def boundaries(sizes: list[int]) -> np.ndarray:
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


ORDERS: dict[str, Order] = {
    "sequential": Sequential(100),
    "shuffled": Shuffled(range(100)),
    "shuffled, large": Shuffled(TABLE_LIMIT + 5),
    "repeated": RepeatedAugmentation(100, 3),
    "repeated, all": RepeatedAugmentation(100, 3, 300),
    "weighted": Weighted(np.linspace(0, 1, 100), 250),
    "local": LocalShuffled(boundaries([10, 0, 25, 40, 5, 20]), 30),
    "endless": Endless(Shuffled(50)),
}


@pytest.mark.parametrize("name", ORDERS)
def test_a_position_alone_is_what_it_is_among_others(name: str) -> None:
    order = ORDERS[name]
    stop = 3 * min(order.pass_size, 300)
    together = np.stack(order.at(np.arange(stop), 5, 2), axis=1)
    for positions in np.array_split(np.random.default_rng(0).permutation(stop), 7):
        assert (np.stack(order.at(positions, 5, 2), axis=1) == together[positions]).all()
    assert len({(i, o) for i, o in together.tolist()}) == stop  # a pair of index and occurrence comes once


@pytest.mark.parametrize("name", [name for name in ORDERS if name != "sequential"])
def test_seeds_epochs_and_passes_have_orders_of_their_own(name: str) -> None:
    order = ORDERS[name]
    n = order.pass_size
    several = [
        indices(order),
        indices(order, seed=1),
        indices(order, epoch=1),
        indices(order, begin=n, end=2 * n),
    ]
    assert len({tuple(each.tolist()) for each in several}) == 4


def test_every_sample_once() -> None:
    for name in ("sequential", "shuffled", "shuffled, large", "local", "endless"):
        order = ORDERS[name]
        for begin in (0, order.pass_size):
            got, again = order.at(np.arange(begin, begin + order.pass_size), 3, 1)
            assert (np.sort(got) == np.arange(order.pass_size)).all()
            assert (again == begin // order.pass_size).all()
    assert indices(Sequential(7)).tolist() == list(range(7))


def test_repeats_follow_each_other() -> None:
    got, again = RepeatedAugmentation(100, 3, 300).at(np.arange(300), 0, 0)
    assert (got.reshape(100, 3) == got[::3, None]).all()
    assert (np.sort(got[::3]) == np.arange(100)).all()
    assert again.tolist() == [0, 1, 2] * 100
    assert len(RepeatedAugmentation(100, 3)) == 100
    assert len(set(indices(RepeatedAugmentation(99, 3)).tolist())) == 33


def test_weights_are_shares() -> None:
    weights = [0.0, 1.0, 3.0, 0.0, 6.0, 0.0]
    counts = Counter(indices(Weighted(weights, 100_000)).tolist())
    assert set(counts) == {1, 2, 4}
    for index, count in counts.items():
        assert abs(count - weights[index] * 10_000) < 5 * np.sqrt(weights[index] * 10_000)


def test_balanced_classes_come_equally_often() -> None:
    labels = [0] * 900 + [7] * 90 + [3] * 10
    drawn = np.array(labels)[indices(Weighted.balanced(torch.tensor(labels), 30_000))]
    for _, count in Counter(drawn.tolist()).items():
        assert abs(count - 10_000) < 500
    assert len(Weighted.balanced(labels)) == 1000


def test_the_largest_share_gives_the_last_sample_that_has_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = np.full(1, 2**64 - 1, np.uint64)
    monkeypatch.setattr("headrace.order.samplers.random_words", lambda *_: ones)
    assert indices(Weighted([1e-300, 1e300, 0.0]), end=1).tolist() == [1]


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=20),
    window=st.integers(1, 200),
    epoch=st.integers(0, 100),
)
def test_local_shuffles_are_shuffles(sizes: list[int], window: int, epoch: int) -> None:
    order = LocalShuffled(boundaries(sizes), window)
    assert sorted(indices(order, epoch=epoch).tolist()) == list(range(sum(sizes)))


def test_a_local_shuffle_reads_few_shards_at_a_time() -> None:
    order = LocalShuffled(boundaries([100] * 52), window=400)
    shards = indices(order) // 100
    for begin in range(0, 5200, 400):
        assert len(set(shards[begin : begin + 400].tolist())) == 4
    assert len(set(shards[:40].tolist())) == 4  # and mixes those
    assert shards[::400].tolist() != sorted(shards[::400].tolist())


def test_endless_orders_have_no_length() -> None:
    order = Endless(Shuffled(3))
    assert order.size is None
    with pytest.raises(TypeError, match="endless"):
        len(order)
    iterator = iter(order)
    assert sorted(next(iterator) for _ in range(3)) == [0, 1, 2]
    assert [next(iterator) for _ in range(10_000)]


def test_torchs_dataloader_takes_them_and_its_seed_decides() -> None:
    def epoch() -> list[Any]:
        torch.manual_seed(1)
        loader = torch.utils.data.DataLoader(range(10), batch_size=4, sampler=Shuffled(10))  # type: ignore[arg-type, var-annotated]
        return [batch.tolist() for batch in loader]

    assert epoch() == epoch()
    assert sorted(index for batch in epoch() for index in batch) == list(range(10))


def test_identities_tell_orders_apart() -> None:
    several = [
        *ORDERS.values(),
        Weighted(np.linspace(0, 2, 100) ** 2, 250),
        LocalShuffled([0, 50, 100], 30),
        LocalShuffled([0, 50, 100], 31),
        RepeatedAugmentation(100, 2),
    ]
    assert len({order.identity() for order in several}) == len(several)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shuffled(-1), r"\(-1\) must be 0 or more"),
        (lambda: RepeatedAugmentation(5, 0), r"repeats \(0\) must be 1 or more"),
        (lambda: RepeatedAugmentation(5, 2, 11), r"num_samples \(11\) must be at most .* \(10\)"),
        (lambda: Weighted([0.0]), "not all 0"),
        (lambda: Weighted([1.0, -1.0]), "0 or more"),
        (lambda: Weighted([float("nan")]), "finite"),
        (lambda: LocalShuffled([1, 2], 5), "rise from 0"),
        (lambda: LocalShuffled([0, 2, 1], 5), "rise from 0"),
        (lambda: LocalShuffled([0, 2], 0), r"window \(0\)"),
        (lambda: Endless(Shuffled(0)), "no sample"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_public_names() -> None:
    names = {n for n in vars(headrace.order) if not n.startswith("_") and n[0].isupper()}
    assert names == set(headrace.order.__all__)
