"""Whether anything was drawn from the generators of this process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from headrace.engine import seeding
from headrace.engine.seeding import GeneratorStates, generators_kept


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    with generators_kept():
        yield


@pytest.fixture(params=["by its memory", "by getstate"])
def python_state(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to look at Python's generator: CPython keeps it where it is looked for."""
    assert seeding._pythons is not None
    if request.param == "by getstate":
        monkeypatch.setattr(seeding, "_pythons", None)


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


@pytest.mark.usefixtures("python_state")
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


@pytest.mark.usefixtures("python_state")
@pytest.mark.parametrize("drawn", [0, 1, 623, 624, 1000])
def test_pythons_generator_goes_on_as_it_would_have(drawn: int) -> None:
    random.seed(7)
    for _ in range(drawn):
        random.random()
    random.gauss(0, 1)  # a second normal number is kept for the next call
    before, state = GeneratorStates.now(), random.getstate()
    expected = [random.gauss(0, 1), random.gauss(0, 1), random.random()]
    before.restore()
    assert random.getstate() == state
    assert [random.gauss(0, 1), random.gauss(0, 1), random.random()] == expected


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
