"""Wording of figures, alike in text and in HTML."""

from __future__ import annotations

import math

import pytest

from headrace_doctor.doctor.records import Advice, Cause, StageCost
from headrace_doctor.doctor.remedies import described
from headrace_doctor.doctor.wording import cost, figure, gain, percent, plain, tally, times


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.0, "0"),
        (0.004, "<0.01"),
        (0.005, "0.01"),
        (0.871, "0.87"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.94, "99.9"),
        (99.96, "100"),
        (1234567.0, "1,234,567"),
        (math.inf, "no limit"),
        (math.nan, "unknown"),
    ],
)
def test_figure(value: float, told: str) -> None:
    assert figure(value) == told


@pytest.mark.parametrize(
    ("share", "told"),
    [(0.0, "0%"), (0.0004, "<0.1%"), (0.0123, "1.2%"), (0.0196, "2%"), (0.684, "68%"), (1.0, "100%")],
)
def test_percent(share: float, told: str) -> None:
    assert percent(share) == told


def test_times() -> None:
    factors = (1.04, 1.96, 9.94, 9.96, 1200.0)
    assert [times(one) for one in factors] == [
        "1.0 times",
        "2.0 times",
        "9.9 times",
        "10 times",
        "1,200 times",
    ]


def test_gain() -> None:
    assert gain(Advice("decode", "", (), 1.92)) == "at most 1.9 times"
    assert gain(Advice("decode", "", (), 0.0)) == "how much faster is not known"
    tried = Advice("workers", "", (), 1.92, {"loader": {}}, measured=1.8, expected=1.85)
    assert gain(tried) == "about 1.9 times as fast, at most 1.9 times, measured: 1.8 times"
    bound = Advice("transform", "", (), 8.0, expected=3.6)
    assert gain(bound) == "about 3.6 times as fast if this took no time, at most 8.0 times"
    assert gain(Advice("memory", "", (), 1.0)) == "saves memory"


def test_plain_leaves_what_is_printable_and_line_ends() -> None:
    assert plain("é 字\n√") == "é 字\n√"
    assert plain("a\x1b[0m\udcff\u202e") == r"a\x1b[0m\udcff\u202e"


def test_tally() -> None:
    assert tally(["good", "bad", "note"]) == "1 bad, 1 note, of 3."
    assert tally(["unknown", "note", "note"]) == "0 bad, 2 notes, 1 unknown, of 3."


def test_the_cost_of_a_cause() -> None:
    assert cost(Cause("decode", "", (), 0.684, 0.24)) == "it costs 68% of the training's time"
    assert cost(Cause("healthy", "", (), 0.5)) == ""


@pytest.mark.parametrize(
    ("code", "share", "text"),
    [
        ("rows.append(row)", 0.4, "(its busiest line: train.py:9)"),
        ("rows.append(row)", 0.6, "at train.py:9, which loops in Python: rows.append(row)"),
        (
            "torch.tensor([*rows])",
            0.6,
            "at train.py:9, which makes a tensor of a list: torch.tensor([*rows])",
        ),
    ],
)
def test_a_stage_comes_with_the_busiest_line(code: str, share: float, text: str) -> None:
    line = f"train.py:9 pad: {code}"
    stage = StageCost("collate", "collate", "worker", 0.1, 0, 10, 9, line, share)
    assert described(stage) == f"collating {text}"
    assert described(StageCost("collate", "collate", "worker", 0.1, 0, 10, 9)) == "collating"
