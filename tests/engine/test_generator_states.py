"""Whether anything was drawn from the generators of this process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from headrace.engine.seeding import GeneratorStates, generators_kept


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    with generators_kept():
        yield


DRAWS: list[Callable[[], Any]] = [
    lambda: torch.rand(1),
    lambda: torch.randn(3),
    lambda: random.random(),
    lambda: random.gauss(0, 1),
    lambda: np.random.rand(),
    lambda: np.random.randn(),
    lambda: np.random.randint(10),
    lambda: np.random.rand(624),
    lambda: np.random.seed(5),
]


@pytest.mark.parametrize("number", range(len(DRAWS)))
def test_every_draw_is_seen_and_undone(number: int) -> None:
    before = GeneratorStates.now()
    assert before.unchanged()
    DRAWS[number]()
    assert not before.unchanged()
    before.restore()
    assert before.unchanged()


def test_a_normal_number_that_was_kept_is_seen_to_be_used() -> None:
    # NumPy makes two normal numbers at once: the second call changes none of the words of its generator.
    for _ in range(3):
        np.random.randn()
        before = GeneratorStates.now()
        expected = np.random.randn()
        assert not before.unchanged()
        before.restore()
        assert before.unchanged()
        assert np.random.randn() == expected
        assert not before.unchanged()


def test_another_bit_generator_is_looked_at_too() -> None:
    original = np.random.get_bit_generator()
    try:
        for generator in (np.random.MT19937(1), np.random.PCG64(1)):
            np.random.set_bit_generator(generator)
            before = GeneratorStates.now()
            assert before.unchanged()
            np.random.rand()
            assert not before.unchanged()
    finally:
        np.random.set_bit_generator(original)
