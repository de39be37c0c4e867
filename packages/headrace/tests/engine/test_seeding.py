"""The generators of this process, lent to samples and put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from headrace.engine.seeding import generators_kept, seed_generators


@pytest.fixture(autouse=True)
def _own_generators() -> Iterator[None]:
    with generators_kept():
        seed_generators(11)
        yield


def drawn() -> list[float]:
    return [
        torch.rand(()).item(),
        torch.randn(()).item(),
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        int(np.random.randint(10)),
    ]


@pytest.mark.parametrize("before", range(4))
def test_generators_continue_as_if_nothing_had_been_drawn(before: int) -> None:
    for _ in range(before):  # NumPy and Python keep every second normal number for the next call
        np.random.randn()
        random.gauss(0, 1)
    expected = [drawn() for _ in range(3)]
    seed_generators(11)
    for _ in range(before):
        np.random.randn()
        random.gauss(0, 1)
    got = []
    for number in range(3):
        with generators_kept():
            seed_generators(number)
            np.random.randn()
            drawn()
        got.append(drawn())
    assert got == expected


def test_generators_are_put_back_after_an_exception() -> None:
    expected = drawn()
    seed_generators(11)

    def fail() -> None:
        with generators_kept():
            seed_generators(3)
            drawn()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert drawn() == expected


def test_generators_are_lent_within_a_loan() -> None:
    with generators_kept():
        seed_generators(1)
        first = drawn()
        second = drawn()
        seed_generators(1)
        assert drawn() == first
        with generators_kept():
            seed_generators(2)
            drawn()
        assert drawn() == second


def test_what_is_drawn_depends_on_the_seed_alone() -> None:
    seed_generators(5)
    expected = drawn()
    np.random.randn()
    seed_generators(5)
    assert drawn() == expected
    with generators_kept():
        seed_generators(5)
        assert drawn() == expected
    seed_generators(6)
    assert drawn() != expected


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.PCG64])
def test_another_bit_generator_of_numpy_is_put_back(kind: Any) -> None:
    """Samples are seeded even where the user has chosen one that np.random.seed can't seed."""
    original, own = np.random.get_bit_generator(), kind(1)  # type: ignore[attr-defined]
    try:
        np.random.set_bit_generator(own)  # type: ignore[attr-defined]
        expected = [np.random.rand() for _ in range(3)]
        np.random.set_bit_generator(kind(1))  # type: ignore[attr-defined]
        own = np.random.get_bit_generator()  # type: ignore[attr-defined]
        first = np.random.rand()
        with generators_kept():
            seed_generators(3)
            np.random.rand()
        assert np.random.get_bit_generator() is own  # type: ignore[attr-defined]
        assert [first, np.random.rand(), np.random.rand()] == expected
    finally:
        np.random.set_bit_generator(original)  # type: ignore[attr-defined]
