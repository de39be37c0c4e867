"""Reducing what happened over time to what a chart shows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.doctor.records import Step
from headrace.doctor.series import COLUMNS, Span, columns, highest, phases, span, ticks
from support import doctor_records as records

times = st.floats(0, 1e5, allow_nan=False)
values = st.floats(0, 1e12, allow_nan=False)


@given(st.lists(st.tuples(times, values), min_size=1, max_size=2000))
def test_highest_keeps_the_maximum_and_the_order_in_few_columns(points: list[tuple[float, float]]) -> None:
    shown = highest(sorted(points), Span(0, 1e5))
    assert len(shown) <= COLUMNS
    assert max(value for _, value in shown) == max(value for _, value in points)
    assert shown == sorted(shown, key=lambda point: point[0])
    assert set(shown) <= set(points)


def steps(count: int) -> list[Step]:
    return [Step("actual", 0.1 * n, 0.01 * (n % 7), 0.03, 0.02 if n % 2 else None) for n in range(count)]


@pytest.mark.parametrize("count", [1, COLUMNS, COLUMNS + 1, 5000])
def test_columns_hold_every_step_once(count: int) -> None:
    taken = steps(count)
    shown = columns(taken, Span(0, 0.1 * count))
    assert len(shown) <= COLUMNS
    assert sum(column.steps for column in shown) == count
    assert max(column.longest for column in shown) == max(step.wait + step.compute for step in taken)
    total = sum(column.steps * column.wait for column in shown)
    assert total == pytest.approx(sum(step.wait for step in taken))


def test_few_steps_are_shown_one_by_one() -> None:
    assert [column.steps for column in columns(steps(COLUMNS), Span(0, 1))] == [1] * COLUMNS


def test_device_is_the_mean_of_the_steps_where_it_is_known() -> None:
    shown = columns(steps(3000), Span(0, 300))
    assert {column.device for column in shown} == {0.02}
    assert columns([Step("actual", 0, 1, 1)], Span(0, 2))[0].device is None


def test_span_is_of_steps_and_usage() -> None:
    diagnosis = records.input_bound()
    within = span(diagnosis)
    assert within is not None
    assert within.start == 0.0
    assert within.end == max(usage.time for usage in diagnosis.usage)
    assert span(records.empty()) is None


def test_phases_are_those_that_the_usage_tells() -> None:
    diagnosis = records.input_bound()
    within = span(diagnosis)
    assert within is not None
    found = phases(diagnosis, within)
    assert [name for name, _ in found] == ["actual", "demand", "supply"]
    assert all(left.end == right.start for (_, left), (_, right) in pairwise(found))
    without = phases(replace(diagnosis, usage=()), within)
    assert [name for name, _ in without] == ["actual", "demand"]


@given(st.floats(1e-6, 1e9), st.integers(3, 8))
def test_ticks_are_few_and_within(high: float, about: int) -> None:
    found = ticks(0.0, high, about)
    assert 2 <= len(found) <= about + 1
    assert found[0] == 0.0
    assert found[-1] <= high * (1 + 1e-6)


def test_ticks_are_round() -> None:
    assert ticks(0, 16, 4) == [0, 5, 10, 15]
    assert ticks(3, 61, 6) == [10, 20, 30, 40, 50, 60]
