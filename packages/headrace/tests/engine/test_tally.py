"""Bounded memory for many numbers: quantiles within their error, means that no halving changes."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.tally import MAX_POINTS, Histogram, Series


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


@pytest.mark.parametrize("steps", [0, 1, MAX_POINTS, MAX_POINTS + 1, 1_000, 5_000, 70_001])
def test_points_are_means_of_equally_many_steps_in_bounded_memory(steps: int) -> None:
    series = Series()
    random = np.random.default_rng(steps)
    values = random.integers(0, 9, (steps, 2))
    for first, second in values.tolist():
        series.add(first, second)
    each = series.steps_per_point
    whole = steps // each
    assert len(series.points) == whole <= MAX_POINTS
    assert each == 1 or whole >= MAX_POINTS // 2 - 1, "no more is thrown together than must be"
    expected = values[: whole * each].reshape(whole, each, 2).mean(1)
    np.testing.assert_allclose(np.array(series.points).reshape(whole, 2), expected)
    if steps:
        assert statistics.fmean(p[0] for p in series.points) == pytest.approx(expected[:, 0].mean())
