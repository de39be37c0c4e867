"""Bounded memory for many numbers: quantiles within their error."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.tally import Histogram


@settings(max_examples=100)
@given(
    st.lists(st.floats(1e-5, 3000), min_size=1, max_size=300),
    st.sampled_from([0.01, 0.5, 0.95, 1.0]),
)
def test_quantiles_are_within_four_percent(values: list[float], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    assert histogram.quantile(share) == pytest.approx(exact, rel=0.04)
    assert histogram.largest == max(values)
    assert histogram.total == pytest.approx(sum(values))


def test_waits_outside_the_histogram_are_counted_at_its_ends() -> None:
    histogram = Histogram()
    for value in (-1.0, 0.0, 1e-12, 1e9):
        histogram.add(value)
    assert histogram.quantile(0.5) < 1e-6
    assert histogram.count == 4
    assert histogram.cumulative()[0] == (2.0**-20, 3)
    assert histogram.cumulative()[-2:] == ((2048.0, 3), (math.inf, 4))
    assert histogram.total == pytest.approx(1e9)


def test_an_empty_histogram_says_zero() -> None:
    assert Histogram().quantile(0.95) == 0.0


@settings(max_examples=50)
@given(st.lists(st.floats(2.0**-20, 2000, exclude_max=True), max_size=100))
def test_cumulative_counts_are_of_values_below_the_bound(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for bound, below in histogram.cumulative():
        assert below == sum(value < bound for value in values)
