"""Hill climbing on made-up landscapes, and the tuner that measures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.tuning import cache
from headrace.tuning.climb import Knob, Settings, Window, climb, ladder
from headrace.tuning.self_tuning import SelfTuning

Landscape = Callable[[Settings], Window]


def run(start: Settings, knobs: list[Knob], landscape: Landscape) -> tuple[Settings, int]:
    climbing = climb(start, knobs)
    settings, tried = next(climbing), 1
    while True:
        try:
            settings = climbing.send(landscape(settings))
            tried += 1
        except StopIteration as end:
            return end.value, tried


def test_the_top_of_a_hill_is_found() -> None:
    knobs = [Knob("threads", ladder(8, 64)), Knob("depth", ladder(4, 16))]
    best, tried = run(
        {"threads": 8, "depth": 4}, knobs, lambda s: Window(min(s["threads"], 40) * min(s["depth"], 6), 0.5)
    )
    assert best["threads"] >= 40
    assert best["depth"] >= 6
    assert tried < 20


def test_fewer_is_found_too() -> None:
    best, _ = run({"threads": 8}, [Knob("threads", ladder(8, 64))], lambda s: Window(100 / s["threads"], 0.5))
    assert best == {"threads": 1}


def test_nothing_is_tried_where_nothing_waits() -> None:
    best, tried = run({"threads": 8}, [Knob("threads", ladder(8, 64))], lambda s: Window(100.0, 0.01))
    assert (best, tried) == ({"threads": 8}, 1)


@given(st.dictionaries(st.integers(1, 64), st.floats(1, 1000)), st.integers(1, 64), st.floats(0, 1))
def test_never_worse_than_the_start(rates: dict[int, float], start: int, stall: float) -> None:
    def landscape(settings: Settings) -> Window:
        return Window(rates.get(settings["threads"], 10.0), stall)

    best, _ = run({"threads": start}, [Knob("threads", ladder(start, 64))], landscape)
    assert landscape(best).rate >= landscape({"threads": start}).rate


def test_a_lucky_window_is_looked_at_again() -> None:
    seen: list[int] = []

    def landscape(settings: Settings) -> Window:
        seen.append(settings["threads"])
        lucky = settings["threads"] == 12 and seen.count(12) == 1
        return Window(20.0 if lucky else 10.0 if settings["threads"] == 8 else 9.0, 0.5)

    best, _ = run({"threads": 8}, [Knob("threads", ladder(8, 16))], landscape)
    assert best == {"threads": 8}


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 8))
def test_a_ladder_stays_in_its_bounds(value: int, most: int, least: int) -> None:
    steps = ladder(value, max(value, most), least=min(value, least))
    assert list(steps) == sorted(set(steps))
    assert value in steps
    assert min(value, least) <= steps[0]
    assert steps[-1] <= max(value, most)


class Stream:
    """Notes the settings that it is given."""

    def __init__(self, in_flight: int = 0) -> None:
        self.in_flight = in_flight
        self.used: list[Settings] = []

    def tune(self, settings: Settings) -> None:
        self.used.append(settings)


def tuned(knobs: list[Knob], stream: Stream) -> SelfTuning:
    """Of two threads, without anything known of earlier runs."""
    tuner = SelfTuning()
    tuner.begin("a plan", {"threads": 2}, knobs)
    tuner.attach(stream)
    return tuner


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What is saved for the next run."""
    saved: list[Settings] = []
    monkeypatch.setattr(cache, "load", lambda key: None)
    monkeypatch.setattr(cache, "save", lambda key, entry: saved.append(entry["settings"]))
    return saved


def steps(tuner: SelfTuning, count: int, period: Callable[[], float], waited: float) -> None:
    for _ in range(count):
        tuner.after_step(waited * period(), period())


def test_a_tuner_settles_and_begins_again_when_the_stall_changes(kept: list[Settings]) -> None:
    stream = Stream(in_flight=4)
    tuner = tuned([Knob("threads", ladder(2, 16))], stream)

    def period() -> float:
        return 0.1 / min(tuner.settings["threads"], 8)

    steps(tuner, 1000, period, 0.9)
    assert not tuner.climbing
    assert tuner.settings["threads"] >= 8
    assert kept == [tuner.settings]
    assert stream.used[-1] == tuner.settings
    steps(tuner, 200, period, 0.9)
    assert not tuner.climbing
    steps(tuner, 400, lambda: 0.05, 0.1)
    assert len(kept) == 2 or tuner.climbing


def test_what_trying_settings_cost_is_known_once_they_are_settled() -> None:
    stream = Stream()
    tuner = tuned([Knob("threads", (1, 2, 3))], stream)
    while tuner.climbing:
        assert tuner.lost_seconds == 0.0
        tuner.after_step(0.1, 0.1 if tuner.settings["threads"] == 2 else 0.25)
    assert tuner.settings == {"threads": 2}
    # A window of 8 steps with 1 thread and one with 3 took 2 s each in place of 0.8 s.
    assert tuner.lost_seconds == pytest.approx(2.4)


def test_settings_that_are_as_good_cost_nothing() -> None:
    stream = Stream()
    tuner = tuned([Knob("threads", (1, 2, 3))], stream)
    steps(tuner, 100, lambda: 0.1, 1.0)
    assert not tuner.climbing
    assert tuner.lost_seconds == pytest.approx(0.0, abs=1e-9)


def test_odd_steps_do_not_count() -> None:
    stream = Stream()
    tuner = tuned([Knob("threads", (1, 2))], stream)
    tuner.after_step(0.0, 60.0)  # validation
    for _ in range(20):
        tuner.after_step(0.01, 0.02)
    window = tuner.history[0][1]
    assert 45 < window.rate < 55
    assert 0.45 < window.stall < 0.55


def test_bursts_are_not_odd() -> None:
    # One worker brings four batches at once: three of four steps wait for nothing, the fourth for all.
    stream = Stream()
    tuner = tuned([Knob("threads", (1, 2))], stream)
    for step in range(40):
        waited = 0.1 if step % 4 == 0 else 0.0
        tuner.after_step(waited, waited + 1e-5)
    window = tuner.history[0][1]
    assert 35 < window.rate < 45
    assert window.stall > 0.99


def test_without_knobs_nothing_is_done() -> None:
    stream = Stream()
    tuner = tuned([], stream)
    steps(tuner, 100, lambda: 0.1, 1.0)
    assert tuner.history == stream.used == []
