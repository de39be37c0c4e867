"""A loop examined from inside its loader: the phases that it goes through, and what it sees meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import headrace
import headrace_doctor
from headrace_doctor.examine import Job, Replacement, kept
from headrace_doctor.machine import usable_cores
from headrace_doctor.measure import examination as module
from headrace_doctor.measure import supplies
from headrace_doctor.measure.examination import Enough, Examination
from headrace_doctor.measure.observed import ACTUAL, DEMAND, EXAMINED, PARTS, SUPPLY, Observation
from headrace_doctor.measure.processes import Times
from headrace_doctor.measure.subject import describe, more_workers, name_of


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
    # One worker and two show that others are tried; each more takes a second of a core.
    monkeypatch.setattr(supplies, "more_workers", lambda count: more_workers(count)[:2])


def examine(
    loader: DataLoader[Any],
    step: Any,
    steps: int | None,
    epochs: int = 1000,
    promising: Any = lambda _: None,
    *,
    brief: bool = False,
) -> tuple[Observation, list[str]]:
    observation, phases = Observation(["test"], 4, 1), list[str]()
    examination = Examination(observation, steps, phases.append, headrace.DataLoader, promising=promising)
    examination.brief = brief
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
    observation, phases = examine(loader, step, 8)
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
    observation, _ = examine(DataLoader(Rows(400), 1), lambda batch: time.sleep(0.05), 6)
    assert list(observation.others(SUPPLY)) == []


def test_a_step_that_waits_for_a_loader_that_is_fast_on_average_gets_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supplies, "STALL_THAT_MATTERS", 0.0)
    observation, _ = examine(DataLoader(Rows(400), 1), lambda batch: time.sleep(0.05), 6)
    assert "supply num_workers=1" in {phase.name for phase in observation.others(SUPPLY)}


def test_a_slow_start_leaves_time_for_other_loaders_and_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    late = 0.0

    def step(batch: torch.Tensor) -> None:
        nonlocal late
        late = 1000.0  # seconds that the script's first step took

    monkeypatch.setattr(supplies, "time", SimpleNamespace(perf_counter=lambda: time.perf_counter() + late))
    settings = {"loader": {"num_workers": 1}}
    observation, _ = examine(DataLoader(Rows(400, 0.01), 1), step, 6, promising=lambda _: (settings, ""))
    names = {phase.name for phase in observation.phases}
    assert names >= {"supply num_workers=1", "supply num_workers=2", name_of(ACTUAL, settings)}


def test_starts_of_epochs_are_not_waits() -> None:
    class Slow(DataLoader[Any]):
        def __iter__(self) -> Any:
            time.sleep(0.05)
            return super().__iter__()

    observation, _ = examine(Slow(Rows(6), 1), lambda batch: time.sleep(0.001), 12)
    actual = observation.phase(ACTUAL)
    assert actual is not None
    assert actual.epochs_ended >= 1
    assert len(actual.startups) >= 1
    assert min(actual.startups) >= 0.05
    assert max(actual.waits) < 0.05


def test_a_script_that_ends_early_is_measured_as_far_as_it_goes() -> None:
    observation, _ = examine(DataLoader(Rows(8), 1), lambda batch: None, 50, epochs=1)
    assert observation.ended == "script ended"
    assert observation.phase(ACTUAL) is not None
    assert observation.phase(SUPPLY) is not None
    assert observation.phase(DEMAND) is None
    assert any("ended" in note for note in observation.notes)


def test_the_loader_is_measured_alone_where_the_actual_phase_ends_with_an_epoch() -> None:
    rows = module.WARM_STEPS + 8
    observation, _ = examine(DataLoader(Rows(rows), 1), lambda batch: None, 8)
    actual, supply = observation.phase(ACTUAL), observation.phase(SUPPLY)
    assert actual is not None
    assert supply is not None
    assert (len(actual.waits), actual.epochs_ended) == (8, 0)
    assert supply.samples_per_second > 0


def test_cores_that_a_quota_leaves_to_others_are_not_taken_from_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def busy() -> Times:  # others use ten cores
        now = time.perf_counter()
        return Times(now, 0.0, 0.0, 10 * now)

    monkeypatch.setattr(supplies, "times", busy)
    monkeypatch.setattr(supplies, "affine_cores", lambda: usable_cores() + 4, raising=False)
    observation, _ = examine(DataLoader(Rows(100), 1), lambda batch: None, 6, brief=True)
    assert observation.phases[0].others == pytest.approx(6)


def test_only_the_actual_phase_where_nothing_else_is_asked() -> None:
    observation, _ = examine(DataLoader(Rows(100), 1), lambda batch: None, 6, brief=True)
    assert [phase.name for phase in observation.phases] == [ACTUAL]


def test_streams_are_examined_too() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(torch.arange(500.0))

    observation, _ = examine(DataLoader(Stream(), 2), lambda batch: None, 6)
    assert observation.ended == EXAMINED
    assert observation.loader is not None
    assert observation.loader.samples is None


def test_headraces_own_loader_says_what_its_stages_cost() -> None:
    loader = headrace.DataLoader(Rows(2000, 0.001), 4, num_workers=2, worker_kind="thread")
    observation, _ = examine(loader, lambda batch: None, 6)
    assert observation.loader is not None
    assert observation.loader.kind == "headrace"
    assert "python" in observation.loader.stages
    assert list(observation.others(SUPPLY)) == []


def test_another_loader_within_the_loop_is_not_mistaken_for_the_first() -> None:
    observation, phases = Observation(["test"], 4, 1), list[str]()
    examination = Examination(observation, 12, phases.append, headrace.DataLoader)
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
        8,
        promising=lambda _: (settings, ""),
    )
    assert observation.ended == EXAMINED
    tried = observation.phase(name_of(ACTUAL, settings))
    assert tried is not None
    assert len(tried.waits) >= 8
    by_workers = [row for row, in_worker in seen if in_worker]
    assert by_workers == [float(row) for row in range(len(by_workers))]  # an epoch from its beginning


def test_what_starting_an_epoch_costs_with_other_settings_is_measured() -> None:
    seen = list[int]()
    settings = {"loader": {"batch_size": 2}}
    observation, _ = examine(
        DataLoader(Rows(24), 1),
        lambda batch: seen.append(len(batch)),
        20,
        promising=lambda _: (settings, ""),
    )
    tried = observation.phase("actual batch_size=2")
    assert tried is not None
    assert tried.epochs_ended >= 1
    assert tried.startups
    # It takes the place of the script's own in the epochs that follow, too.
    assert seen[seen.index(2) :] == [2] * seen.count(2)


def test_another_loops_loader_is_exchanged_and_its_loops_are_timed() -> None:
    observation = Observation(["test"], 4, 1)
    train, val = DataLoader(Rows(4000), 2), DataLoader(Rows(8, 0.01), 4)

    def promising(seen: Observation) -> tuple[dict[str, Any], str]:
        (loop,) = seen.loops
        return {"loader": {"batch_size": 8}}, loop.where

    examination = Examination(observation, 12, lambda name: None, headrace.DataLoader, promising=promising)
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
        DataLoader(Fails(100), 1), lambda batch: None, 8, promising=lambda _: (settings, "")
    )
    assert observation.ended == EXAMINED
    assert observation.phase(SUPPLY) is not None
    assert observation.phase(name_of(ACTUAL, settings)) is None
    assert any("the script num_workers=1" in note and "not in a worker" in note for note in observation.notes)
    assert observation.refused == [name_of(ACTUAL, settings)]


def test_threads_that_are_tried_are_set_back() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    observation, _ = examine(
        DataLoader(Rows(4000), 1),
        lambda batch: seen.append(torch.get_num_threads()),
        8,
        promising=lambda _: ({"threads": before + 1}, ""),
    )
    assert seen[-1] == before + 1
    assert torch.get_num_threads() == before == observation.threads


def test_the_facts_of_a_loader() -> None:
    observation, _ = examine(DataLoader(Rows(100), 2), lambda batch: None, 6)
    loader = observation.loader
    assert loader is not None
    assert loader.where.startswith("test_examination.py:")
    assert loader.code.startswith("DataLoader(Rows of 100, batch_size=2, num_workers=0")
    assert (loader.batches, loader.samples, loader.batch_nbytes) == (50, 100, 8)


def test_it_comes_back_from_a_file_as_it_was(tmp_path: Any) -> None:
    observation, _ = examine(DataLoader(Rows(100), 2), lambda batch: None, 6)
    assert Observation.load(tmp_path) is None
    observation.save(tmp_path)
    assert Observation.load(tmp_path) == observation


def test_numbers_of_workers_are_tried_upwards() -> None:
    assert more_workers(0)[:4] == [1, 2, 3, 4]
    assert more_workers(2)[0] == 3
    assert more_workers(1000) == []


def test_workers_of_another_loops_loader_are_measured_without_their_starts() -> None:
    observation = Observation(["test"], 4, 1)
    examination = Examination(observation, 12, lambda name: None, headrace.DataLoader)
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
    examination = Examination(observation, 12, lambda name: None, headrace.DataLoader)
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


def run_epoch(examination: Examination, loader: DataLoader[Any], step: Any) -> int:
    """A script's helper for training and validation; returns the number of batches."""
    number = 0
    for batch in examination.iterate(loader, partial(iter, loader)):
        step(number, batch)
        number += 1
    return number


def test_of_two_loaders_in_one_loop_the_right_one_is_measured_and_none_changed() -> None:
    def promising(seen: Observation) -> tuple[dict[str, Any], str]:
        return {"loader": {"batch_size": 8}}, seen.loops[0].where

    observation, batches = Observation(["test"], 4, 1), set[int]()
    examination = Examination(observation, 12, lambda name: None, headrace.DataLoader, promising=promising)
    train, val = DataLoader(Rows(4000), 2), DataLoader(Rows(8, 0.02), 4)

    def step(number: int, batch: torch.Tensor) -> None:
        assert len(batch) == 2
        if number % 4 == 0:
            batches.add(run_epoch(examination, val, lambda number, batch: None))

    with pytest.raises(Enough):
        run_epoch(examination, train, step)
    (loop,) = observation.loops
    assert observation.loader is not None
    assert loop.where == observation.loader.where
    assert loop.supplies["0"][0] > 0.01  # that of the samples of validation
    assert batches == {2}
    assert [phase.name for phase in observation.phases if phase.name.startswith(ACTUAL)] == [ACTUAL]


def test_a_loader_that_is_made_for_each_loop_is_not_changed() -> None:
    def promising(seen: Observation) -> tuple[dict[str, Any], str]:
        return {"loader": {"batch_size": 8}}, seen.loops[0].where

    observation = Observation(["test"], 4, 1)
    examination = Examination(observation, 12, lambda name: None, headrace.DataLoader, promising=promising)
    train = DataLoader(Rows(4000), 2)

    def step(number: int, batch: torch.Tensor) -> None:
        if number % 4 == 0:
            val = DataLoader(Rows(8), 4)
            list(examination.iterate(val, partial(iter, val)))

    with pytest.raises(Enough):
        run_epoch(examination, train, step)
    assert [phase.name for phase in observation.phases if phase.name.startswith(ACTUAL)] == [ACTUAL]


def test_a_loader_with_an_iter_of_its_own_is_not_replaced() -> None:
    class Doubled(DataLoader[Any]):
        def __iter__(self) -> Any:
            return (2 * batch for batch in super().__iter__())

    seen = set[int]()
    observation, _ = examine(
        Doubled(Rows(4000), 1),
        lambda batch: seen.add(int(batch[0]) % 2),
        8,
        promising=lambda _: ({"loader": {"drop_last": False}}, ""),
    )
    assert observation.ended == EXAMINED
    assert seen == {0}
    # The number of threads is no matter of the loader.
    threads = {"threads": torch.get_num_threads() + 1}
    observation, _ = examine(Doubled(Rows(4000), 1), lambda batch: None, 8, promising=lambda _: (threads, ""))
    assert observation.phase(name_of(ACTUAL, threads)) is not None


def test_a_script_that_leaves_its_loop_is_examined_in_the_next_epochs() -> None:
    observation, phases = Observation(["test"], 4, 1), list[str]()
    examination = Examination(observation, 8, phases.append, headrace.DataLoader)
    loader, finished = DataLoader(Rows(4000), 1), list[str]()

    def script() -> None:
        while True:
            for number, _ in enumerate(examination.iterate(loader, partial(iter, loader))):
                time.sleep(0.002)
                if number == 5:
                    break
                finished.append(phases[-1])

    with pytest.raises(Enough):
        script()
    assert observation.ended == EXAMINED
    assert [phase.name for phase in observation.phases[:4]] == [ACTUAL, DEMAND, PARTS, SUPPLY]
    demand = observation.phase(DEMAND)
    assert demand is not None
    assert sum(demand.waits) == 0
    assert phases.count(DEMAND) > 1
    assert len(demand.steps_at) == len(demand.computes) == finished.count(DEMAND)


def test_a_script_that_ends_amid_repeated_batches_keeps_its_actual_steps() -> None:
    observation = Observation(["test"], 4, 1)
    examination = Examination(observation, 8, lambda name: None, headrace.DataLoader)
    loader = DataLoader(Rows(4000), 1)
    for number, _ in enumerate(examination.iterate(loader, partial(iter, loader))):
        if number == 12:  # after three steps to warm up
            break
    examination.script_ended()
    assert [phase.name for phase in observation.phases[:2]] == [ACTUAL, SUPPLY]
    assert len(observation.phases[0].waits) == 8
    assert observation.ended == "script ended"
    assert any("before its step was measured by itself" in note for note in observation.notes)


@pytest.mark.parametrize(("rows", "counts"), [(16, False), (60, True)])
def test_a_trial_of_a_few_steps_predicts_nothing(rows: int, counts: bool) -> None:
    observation, _ = examine(
        DataLoader(Rows(rows), 1),
        lambda batch: None,
        8,
        epochs=1,
        promising=lambda _: ({"loader": {"drop_last": False}}, ""),
    )
    assert observation.ended == EXAMINED
    assert (observation.phase("actual drop_last=False") is not None) == counts


def test_a_trial_takes_as_many_steps_as_it_needs() -> None:
    observation, _ = examine(
        DataLoader(Rows(4000), 1),
        lambda batch: None,
        5,
        promising=lambda _: ({"loader": {"drop_last": False}}, ""),
    )
    actual, tried = observation.phase(ACTUAL), observation.phase("actual drop_last=False")
    assert actual is not None
    assert tried is not None
    assert len(actual.waits) == 5
    assert len(tried.waits) >= module.LEAST_STEPS


def test_after_a_trial_that_fails_the_next_best_is_tried() -> None:
    class Fails(Rows):
        def __getitem__(self, index: int) -> Any:
            if torch.utils.data.get_worker_info() is not None:
                raise OSError("not in a worker")
            return super().__getitem__(index)

    in_worker = {"loader": {"num_workers": 1, "multiprocessing_context": "fork"}}
    impossible = {"loader": {"num_workers": -1}}
    second = {"loader": {"drop_last": False}}

    def promising(seen: Observation) -> tuple[dict[str, Any], str]:
        wanted = (one for one in (in_worker, impossible) if name_of(ACTUAL, one) not in seen.refused)
        return next(wanted, second), ""

    observation, _ = examine(
        DataLoader(Fails(400), 1), lambda batch: time.sleep(0.01), 8, promising=promising
    )
    assert observation.ended == EXAMINED
    assert observation.refused == [name_of(ACTUAL, in_worker), name_of(ACTUAL, impossible)]
    assert observation.phase(name_of(ACTUAL, second)) is not None


def test_what_is_known_is_saved_before_each_trial(tmp_path: Any) -> None:
    settings = {"loader": {"drop_last": False}}
    observation = Observation(["test"], 4, 1)
    examination = Examination(
        observation,
        8,
        lambda name: None,
        headrace.DataLoader,
        promising=lambda _: (settings, ""),
    )
    examination.save = partial(Observation.save, folder=tmp_path)
    with pytest.raises(Enough):
        run_epoch(examination, DataLoader(Rows(4000), 1), lambda number, batch: None)
    saved = Observation.load(tmp_path)
    assert saved is not None
    assert saved.ended == EXAMINED
    assert saved.phase(SUPPLY) is not None
    assert saved.refused == ["actual drop_last=False"]
    assert "was killed" in saved.notes[-1]
    assert observation.refused == observation.notes == []
    assert observation.phase("actual drop_last=False") is not None


@pytest.mark.parametrize("error", [ValueError("no more"), KeyboardInterrupt()])
def test_a_step_that_fails_during_a_trial_keeps_the_diagnosis(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr("headrace_doctor.examine.next_trial", lambda _: ({"threads": before + 1}, ""))
    monkeypatch.setattr("headrace_doctor.examine.is_decided", lambda _: True)

    def step(batch: torch.Tensor) -> None:
        time.sleep(0.01)
        if torch.get_num_threads() > before:
            raise error

    diagnosis = headrace_doctor.diagnose(DataLoader(Rows(4000), 1), step, steps=10)
    assert torch.get_num_threads() == before
    (note,) = (note for note in diagnosis.notes if note.startswith("the script failed while"))
    assert type(error).__name__ in note


def test_a_step_that_fails_before_leaves_the_threads_and_no_diagnosis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(module, "usable_cores", lambda: 1)  # fewer are tried with the step alone

    def step(batch: torch.Tensor) -> None:
        if torch.get_num_threads() == 1:
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        headrace_doctor.diagnose(DataLoader(Rows(4000), 1), step, steps=10)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_a_script_that_fails_after_all_trials_is_not_said_to_have_failed_in_one() -> None:
    observation = Observation(["test"], 4, 1)
    examination = Examination(observation, 8, lambda name: None, headrace.DataLoader)

    def script() -> None:
        try:
            run_epoch(examination, DataLoader(Rows(4000), 1), lambda number, batch: None)
        finally:
            raise ValueError("cleaning up")

    with kept(examination):
        script()
    assert observation.ended == EXAMINED
    assert observation.notes == []


def test_a_loop_that_comes_once_in_the_measured_steps_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TRIAL_SECONDS", 0.5)
    observation, phases = Observation(["test"], 4, 1), list[str]()
    examination = Examination(observation, 12, phases.append, headrace.DataLoader)
    train, val = DataLoader(Rows(4000), 2), DataLoader(Rows(8), 4)
    looped_at = 0.0

    def script() -> None:
        nonlocal looped_at
        for number, _ in enumerate(examination.iterate(train, partial(iter, train))):
            time.sleep(0.01)
            if number == 8:
                looped_at = time.perf_counter() - observation.began
                list(examination.iterate(val, partial(iter, val)))

    with pytest.raises(Enough):
        script()
    (actual,) = (phase for phase in observation.phases if phase.name == ACTUAL)
    (loop,) = observation.loops
    assert loop.loops == 1
    assert actual.began < looped_at < actual.ended
    assert actual.steps_at == sorted(actual.steps_at)
    assert len(actual.steps_at) == len(actual.computes) == len(actual.waits) == len(actual.samples)
    assert actual.seconds + loop.seconds <= actual.ended - actual.began
    # Its samplers begin again with it.
    assert phases.index(ACTUAL) < phases.index("actual again 1")
    assert observation.notes == []


def test_a_loop_that_ran_before_the_measured_steps_is_noted() -> None:
    observation = Observation(["test"], 4, 1)
    examination = Examination(observation, 12, lambda name: None, headrace.DataLoader)
    train, val = DataLoader(Rows(4000), 2), DataLoader(Rows(8), 4)

    def script() -> None:
        list(examination.iterate(val, partial(iter, val)))  # as Lightning does, to see whether it works
        for _ in examination.iterate(train, partial(iter, train)):
            pass

    with pytest.raises(Enough):
        script()
    assert observation.loops == []
    (note,) = observation.notes
    assert "test_examination.py:" in note
    assert "ran before the steps that were measured" in note


def test_a_script_that_ends_before_its_next_validation_keeps_the_steps_before_the_first() -> None:
    observation = Observation(["test"], 4, 1)
    examination = Examination(observation, None, lambda name: None, headrace.DataLoader)
    train, val = DataLoader(Rows(40), 2), DataLoader(Rows(8), 4)
    for epoch in range(2):
        for _ in examination.iterate(train, partial(iter, train)):
            time.sleep(0.005)
        if epoch == 0:
            list(examination.iterate(val, partial(iter, val)))
    examination.script_ended()
    (actual,) = (phase for phase in observation.phases if phase.name == ACTUAL)
    assert sum(actual.samples) == 2 * 40 - 2 * module.WARM_STEPS
    (loop,) = observation.loops
    assert loop.loops == 1


LOCK_STEP = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.tensor([float(index)])

labeled, unlabeled = DataLoader(Rows(50, 0), 2), DataLoader(Rows(300, 0.004), 3)
val = DataLoader(Rows(8, 0), 4)
steps = 0
{loop}
"""
BY_ZIP = """
for _ in range(20):
    for a, b in zip(labeled, unlabeled):
        assert (len(a), len(b)) == (2, 3)
        steps += 1
"""
BY_NEXT = """
first, second = iter(labeled), None
for steps in range(400):
    try:
        a = next(first)
    except StopIteration:
        first = iter(labeled)
        a = next(first)
    if second is None:
        second = iter(unlabeled)
    try:
        b = next(second)
    except StopIteration:
        second = iter(unlabeled)
        b = next(second)
    assert (len(a), len(b)) == (2, 3)
    if steps % 9 == 7:
        for _ in val:
            pass
"""


@pytest.mark.parametrize("loop", [BY_ZIP, BY_NEXT], ids=["zip", "next"])
def test_of_loaders_in_lock_step_the_one_that_is_waited_for_is_examined(loop: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOCK_STEP.format(loop=loop))
    status, observation, output = Job([str(script)], steps=12, brief=True).run(quiet=True)
    assert observation is not None, output
    assert observation.ended == EXAMINED, (status, output)
    assert observation.loader is not None
    assert observation.loader.arguments["batch_size"] == 3
    (actual,) = observation.phases
    assert len(actual.waits) >= 12
    assert set(actual.samples) == {3}
    assert [loop.arguments["batch_size"] for loop in observation.loops] == ([4] if loop == BY_NEXT else [])
    (note,) = observation.notes
    assert "in lock-step" in note
    assert "batch_size=2" in note


def test_loaders_in_lock_step_go_through_all_phases() -> None:
    observation, phases = Observation(["test"], 4, 1), list[str]()
    examination = Examination(observation, 8, phases.append, headrace.DataLoader)
    fast, slow = DataLoader(Rows(4000), 2), DataLoader(Rows(4000, 0.004), 1)

    def script() -> None:
        loaders = [examination.iterate(loader, partial(iter, loader)) for loader in (fast, slow)]
        for _ in zip(*loaders, strict=True):
            time.sleep(0.002)

    with pytest.raises(Enough):
        script()
    actual, demand, supply = (observation.phase(name) for name in (ACTUAL, DEMAND, SUPPLY))
    assert actual is not None
    assert demand is not None
    assert supply is not None
    assert set(actual.samples) == set(demand.samples) == set(supply.samples) == {1}
    assert min(actual.computes) >= 0.002
    assert actual.seconds <= actual.ended - actual.began
    assert observation.loops == []


class Doubled(DataLoader[Any]):
    def __iter__(self) -> Any:
        return (2 * batch for batch in super().__iter__())


def attempt(settings: dict[str, Any], examined: DataLoader[Any]) -> Replacement:
    code = describe(examined, "train.py:9").code
    return Replacement(Job(["train.py"], settings=settings, subject="train.py:9", loader=code))


def test_an_attempt_replaces_the_examined_loader_alone_and_notes_what_it_left() -> None:
    train, val = DataLoader(Rows(100), 2), DataLoader(Rows(8), 4)
    replacement = attempt({"loader": {"num_workers": 1}}, train)
    assert replacement.of(val, "train.py:9") is val
    assert replacement.of(train, "train.py:20") is train
    other = replacement.of(train, "train.py:9")
    assert other.num_workers == 1
    assert replacement.of(train, "train.py:9") is other
    observation = Observation(["test"], 4, 1)
    replacement.report(observation)
    (note,) = observation.notes
    assert note.startswith("another loader at train.py:9 was left as it is: DataLoader(Rows of 8")
    assert observation.refused == []


def test_an_attempt_that_may_replace_no_loader_is_refused() -> None:
    doubled, observation = Doubled(Rows(100), 2), Observation(["test"], 4, 1)
    replacement = attempt({"loader": {"num_workers": 1}}, doubled)
    assert replacement.of(doubled, "train.py:9") is doubled
    replacement.report(observation)
    assert observation.notes == [
        "the loader at train.py:9 was left as it is: Doubled has an __iter__ of its own"
    ]
    assert observation.refused == ["actual num_workers=1 at train.py:9"]
    missed = Observation(["test"], 4, 1)
    attempt({"loader": {"num_workers": 1}}, doubled).report(missed)
    assert missed.notes == ["no loader was iterated over at train.py:9"]
    threads = Observation(["test"], 4, 1)
    attempt({"threads": 2}, doubled).report(threads)
    assert threads.refused == threads.notes == []
