"""A loop examined from inside its loader: the phases that it goes through, and what it sees meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import headrace
from headrace.measure import examination as module
from headrace.measure import supplies
from headrace.measure.examination import Enough, Examination, Goal
from headrace.measure.observed import ACTUAL, DEMAND, EXAMINED, PARTS, SUPPLY, Observation
from headrace.measure.settings import name_of
from headrace.measure.subject import more_workers


class Rows(Dataset[Any]):
    def __init__(self, count: int, seconds: float = 0.0) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.tensor([float(index)])


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DEMAND_SECONDS", "PARTS_SECONDS", "LEAST_SECONDS"):
        monkeypatch.setattr(module, name, 0.1)
    monkeypatch.setattr(supplies, "SUPPLY_SECONDS", 0.1)
    monkeypatch.setattr(supplies, "SLOW_SUPPLY_SECONDS", 1.0)
    monkeypatch.setattr(module, "wait_until_quiet", lambda: True)


def examine(
    loader: DataLoader[Any], step: Any, goal: Goal, epochs: int = 1000, promising: Any = lambda _: None
) -> tuple[Observation, list[str]]:
    observation, phases = Observation(["test"], 4, 1), list[str]()
    examination = Examination(observation, goal, phases.append, headrace.DataLoader, promising=promising)
    try:
        for _ in range(epochs):
            for batch in examination.iterate(loader, partial(iter, loader)):
                step(batch)
        examination.script_ended()
    except Enough:
        pass
    return observation, phases


def test_all_phases_are_gone_through() -> None:
    seen: list[float] = []

    def step(batch: torch.Tensor) -> None:
        seen.append(float(batch[0]))
        batch.fill_(-1)  # must not reach the batches that come again
        time.sleep(0.002)

    loader = DataLoader(Rows(200, 0.004), batch_size=1)
    observation, phases = examine(loader, step, Goal(steps=8))
    assert observation.ended == EXAMINED
    assert phases[:6] == ["warm-up", ACTUAL, "", DEMAND, "", PARTS]
    actual, demand, supply = (observation.phase(name) for name in (ACTUAL, DEMAND, SUPPLY))
    assert actual is not None
    assert demand is not None
    assert supply is not None
    assert len(actual.waits) == len(actual.computes) == len(actual.samples) == 8
    assert actual.stall > 0.4
    assert sum(demand.waits) == sum(supply.computes) == 0
    assert min(demand.computes) >= 0.002
    assert min(supply.waits) >= 0.004
    # The first ones in order, then some of them again.
    assert seen[:11] == [float(i) for i in range(11)]
    assert set(seen[11:]) <= set(seen[:11])
    assert -1.0 not in seen
    others = {phase.name for phase in observation.others(SUPPLY)}
    assert others >= {"supply num_workers=1", "supply headrace"}


def test_a_loader_that_is_fast_enough_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supplies, "STALL_THAT_MATTERS", 1.0)  # a busy machine holds up any step
    observation, _ = examine(DataLoader(Rows(400), 1), lambda batch: time.sleep(0.05), Goal(steps=6))
    assert list(observation.others(SUPPLY)) == []


def test_a_step_that_waits_for_a_loader_that_is_fast_on_average_gets_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supplies, "STALL_THAT_MATTERS", 0.0)
    observation, _ = examine(DataLoader(Rows(400), 1), lambda batch: time.sleep(0.05), Goal(steps=6))
    assert "supply num_workers=1" in {phase.name for phase in observation.others(SUPPLY)}


def test_starts_of_epochs_are_not_waits() -> None:
    class Slow(DataLoader[Any]):
        def __iter__(self) -> Any:
            time.sleep(0.05)
            return super().__iter__()

    observation, _ = examine(Slow(Rows(6), 1), lambda batch: time.sleep(0.001), Goal(steps=12))
    actual = observation.phase(ACTUAL)
    assert actual is not None
    assert actual.epochs_ended >= 1
    assert len(actual.startups) >= 1
    assert min(actual.startups) >= 0.05
    assert max(actual.waits) < 0.05


def test_a_script_that_ends_early_is_measured_as_far_as_it_goes() -> None:
    observation, _ = examine(DataLoader(Rows(8), 1), lambda batch: None, Goal(steps=50), epochs=1)
    assert observation.ended == "script ended"
    assert observation.phase(ACTUAL) is not None
    assert observation.phase(SUPPLY) is not None
    assert observation.phase(DEMAND) is None
    assert any("ended" in note for note in observation.notes)


def test_only_the_actual_phase_where_nothing_else_is_asked() -> None:
    observation, _ = examine(DataLoader(Rows(100), 1), lambda batch: None, Goal(steps=6, actual_only=True))
    assert [phase.name for phase in observation.phases] == [ACTUAL]


def test_streams_are_examined_too() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(torch.arange(500.0))

    observation, _ = examine(DataLoader(Stream(), 2), lambda batch: None, Goal(steps=6))
    assert observation.ended == EXAMINED
    assert observation.loader is not None
    assert observation.loader.samples is None


def test_headraces_own_loader_says_what_its_stages_cost() -> None:
    loader = headrace.DataLoader(Rows(2000, 0.001), 4, num_workers=2, worker_kind="thread")
    observation, _ = examine(loader, lambda batch: None, Goal(steps=6))
    assert observation.loader is not None
    assert observation.loader.kind == "headrace"
    assert "python" in observation.loader.stages
    assert list(observation.others(SUPPLY)) == []


def test_another_loader_within_the_loop_is_not_mistaken_for_the_first() -> None:
    observation, phases = Observation(["test"], 4, 1), list[str]()
    examination = Examination(observation, Goal(steps=12), phases.append, headrace.DataLoader)
    train, val = DataLoader(Rows(4000), 2), DataLoader(Rows(8), 4)

    def script() -> None:
        for number, _ in enumerate(examination.iterate(train, partial(iter, train))):
            if number % 2 == 0:  # enters its own actual phase after the first one's began
                list(examination.iterate(val, partial(iter, val)))

    with pytest.raises(Enough):
        script()
    assert observation.loader is not None
    (actual,) = (phase for phase in observation.phases if phase.name == ACTUAL)
    assert observation.loader.arguments["batch_size"] == actual.samples[0]
    assert phases.count("warm-up") == 1


def test_the_script_goes_on_with_what_promises_most() -> None:
    settings = {"loader": {"num_workers": 2, "multiprocessing_context": "fork"}}
    seen: list[list[float]] = []

    class Where(Rows):
        def __getitem__(self, index: int) -> Any:
            return torch.tensor([float(index), torch.utils.data.get_worker_info() is not None])

    observation, _ = examine(
        DataLoader(Where(4000), 1),
        lambda batch: seen.append(batch[0].tolist()),
        Goal(steps=8),
        promising=lambda _: (settings, ""),
    )
    assert observation.ended == EXAMINED
    tried = observation.phase(name_of(ACTUAL, settings))
    assert tried is not None
    assert len(tried.waits) >= 8
    by_workers = [row for row, in_worker in seen if in_worker]
    assert by_workers == [float(row) for row in range(len(by_workers))]  # an epoch from its beginning


def test_what_starting_an_epoch_costs_with_other_settings_is_measured() -> None:
    begun: list[int] = []

    class Counted(DataLoader[Any]):
        def __iter__(self) -> Any:
            begun.append(0)
            return super().__iter__()

    known: dict[str, Observation] = {}

    def promising(seen: Observation) -> tuple[dict[str, Any], str]:
        known["it"] = seen
        begun.append(-1)
        return {"loader": {"drop_last": False}}, ""

    examine(Counted(Rows(12), 1), lambda batch: None, Goal(steps=20), promising=promising)
    tried = known["it"].phase("actual drop_last=False")
    assert tried is not None
    assert tried.epochs_ended >= 1
    assert tried.startups
    # The plain loader takes the place of the script's own, in the epochs that follow, too.
    assert begun[begun.index(-1) :] == [-1, -1]


def test_another_loops_loader_is_exchanged_and_its_loops_are_timed() -> None:
    observation = Observation(["test"], 4, 1)
    train, val = DataLoader(Rows(4000), 2), DataLoader(Rows(8, 0.01), 4)

    def promising(seen: Observation) -> tuple[dict[str, Any], str]:
        (loop,) = seen.loops
        return {"loader": {"batch_size": 8}}, loop.where

    examination = Examination(
        observation, Goal(steps=12), lambda name: None, headrace.DataLoader, promising=promising
    )
    batches: list[int] = []

    def script() -> None:
        for number, _ in enumerate(examination.iterate(train, partial(iter, train))):
            if number % 4 == 0:
                batches.append(len(list(examination.iterate(val, partial(iter, val)))))

    with pytest.raises(Enough):
        script()
    tried = observation.phases[-1]
    assert tried.name == f"actual batch_size=8 at {observation.loops[0].where}"
    assert tried.loops >= 2
    assert tried.loop_seconds / tried.loops > 0.08
    assert (batches[0], batches[-1]) == (2, 1)
    assert tried.samples == [2] * len(tried.samples)


def test_a_loader_that_refuses_a_trial_leaves_the_measurements_and_a_note() -> None:
    class Fails(Rows):
        def __getitem__(self, index: int) -> Any:
            if torch.utils.data.get_worker_info() is not None:
                raise OSError("not in a worker")
            return super().__getitem__(index)

    settings = {"loader": {"num_workers": 1, "multiprocessing_context": "fork"}}
    observation, _ = examine(
        DataLoader(Fails(100), 1), lambda batch: None, Goal(steps=8), promising=lambda _: (settings, "")
    )
    assert observation.ended == EXAMINED
    assert observation.phase(SUPPLY) is not None
    assert observation.phase(name_of(ACTUAL, settings)) is None
    assert any("the script num_workers=1" in note and "not in a worker" in note for note in observation.notes)


def test_threads_that_are_tried_are_set_back() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    observation, _ = examine(
        DataLoader(Rows(4000), 1),
        lambda batch: seen.append(torch.get_num_threads()),
        Goal(steps=8),
        promising=lambda _: ({"threads": before + 1}, ""),
    )
    assert seen[-1] == before + 1
    assert torch.get_num_threads() == before == observation.threads


def test_the_facts_of_a_loader() -> None:
    observation, _ = examine(DataLoader(Rows(100), 2), lambda batch: None, Goal(steps=6))
    loader = observation.loader
    assert loader is not None
    assert loader.where.startswith("test_examination.py:")
    assert loader.code.startswith("DataLoader(Rows of 100, batch_size=2, num_workers=0")
    assert (loader.batches, loader.samples, loader.batch_nbytes) == (50, 100, 8)


def test_it_comes_back_from_a_file_as_it_was(tmp_path: Any) -> None:
    observation, _ = examine(DataLoader(Rows(100), 2), lambda batch: None, Goal(steps=6))
    assert Observation.load(tmp_path) is None
    observation.save(tmp_path)
    assert Observation.load(tmp_path) == observation


def test_numbers_of_workers_are_tried_upwards() -> None:
    assert more_workers(0)[:4] == [1, 2, 3, 4]
    assert more_workers(2)[0] == 3
    assert more_workers(1000) == []


def test_workers_of_another_loops_loader_are_measured_without_their_starts() -> None:
    observation = Observation(["test"], 4, 1)
    examination = Examination(observation, Goal(steps=12), lambda name: None, headrace.DataLoader)
    train, val = DataLoader(Rows(4000), 2), DataLoader(Rows(8), 4, num_workers=1)

    def script() -> None:
        for number, _ in enumerate(examination.iterate(train, partial(iter, train))):
            if number % 4 == 0:
                assert len(list(examination.iterate(val, partial(iter, val)))) == 2

    with pytest.raises(Enough):
        script()
    tried = [phase.settings["loader"] for phase in observation.phases if phase.name.startswith("loop ")]
    assert tried
    assert all(settings["persistent_workers"] for settings in tried)
    assert observation.loops[0].supplies


def test_a_phase_holds_whole_periods_of_a_loop_over_another_loader() -> None:
    observation = Observation(["test"], 4, 1)
    examination = Examination(observation, Goal(steps=12), lambda name: None, headrace.DataLoader)
    train, val = DataLoader(Rows(4000), 2), DataLoader(Rows(8), 4)

    def script() -> None:
        for number, _ in enumerate(examination.iterate(train, partial(iter, train))):
            if number % 9 == 7:
                list(examination.iterate(val, partial(iter, val)))

    with pytest.raises(Enough):
        script()
    (actual,) = (phase for phase in observation.phases if phase.name == ACTUAL)
    (loop,) = observation.loops
    assert (len(actual.waits), loop.loops) == (18, 2)
