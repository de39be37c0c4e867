"""A loop examined from inside its loader: the phases that it goes through, and what is seen meanwhile."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import DataLoader

import headrace
import headrace_doctor
from headrace_doctor.examine import Job, Replacement, examined
from headrace_doctor.measure import examination as module
from headrace_doctor.measure import supplies
from headrace_doctor.measure.observed import ACTUAL, DEMAND, EXAMINED, PARTS, SUPPLY, Observation, Phase
from headrace_doctor.measure.subject import best_workers, describe, where_from
from support.datasets import Rows, Stream


def test_the_place_of_a_loop_names_the_function_around_a_generator() -> None:
    function = "test_the_place_of_a_loop_names_the_function_around_a_generator"
    (place,) = (where_from() for _ in range(1))
    assert re.fullmatch(rf"test_examination\.py:\d+ in {function}", place)


class Lengths(Rows):
    """Samples of two sizes."""

    def __init__(self) -> None:
        super().__init__(40)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(1 + index % 2)


class Doubled(DataLoader[Any]):
    def __iter__(self) -> Any:
        return (2 * batch for batch in super().__iter__())


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DEMAND_SECONDS", "PARTS_SECONDS", "LEAST_SECONDS"):
        monkeypatch.setattr(module, name, 0.1)
    monkeypatch.setattr(supplies, "SUPPLY_SECONDS", 0.1)
    monkeypatch.setattr(supplies, "SLOW_SUPPLY_SECONDS", 1.0)
    monkeypatch.setattr(module, "wait_until_quiet", lambda: None)
    # One worker and two show that others are tried; each more takes a second of a core.
    monkeypatch.setattr("headrace_doctor.measure.subject.TRIES_IN_VAIN", 1)


@pytest.fixture
def examine(tmp_path: Path) -> Callable[..., Observation]:
    def run(script: Callable[[], object], steps: int | None = 8) -> Observation:
        observation = Observation(["test"], 4, 1)
        with examined(observation, Job([], steps=steps), tmp_path):
            script()
        return observation

    return run


Examine = Callable[..., Observation]


def epochs(loader: DataLoader[Any], step: Callable[[Any], object], count: int = 1000) -> Callable[[], None]:
    def script() -> None:
        for _ in range(count):
            for batch in loader:
                step(batch)

    return script


def nothing(batch: Any) -> None:
    pass


def phase(observation: Observation, name: str) -> Phase:
    found = observation.phase(name)
    assert found is not None, name
    return found


def test_all_phases_are_gone_through(examine: Examine, tmp_path: Path) -> None:
    seen: list[float] = []

    def step(batch: torch.Tensor) -> None:
        seen.append(float(batch[0]))
        batch.fill_(-1)  # must not reach the batches that come again
        time.sleep(0.002)

    observation = examine(epochs(DataLoader(Rows(200, 0.004), batch_size=1), step))
    assert observation.ended == EXAMINED
    assert [one.name for one in observation.phases[:4]] == [ACTUAL, DEMAND, PARTS, SUPPLY]
    actual, demand, supply = (phase(observation, name) for name in (ACTUAL, DEMAND, SUPPLY))
    assert len(actual.waits) == len(actual.computes) == len(actual.samples) == 8
    assert actual.stall > 0.4
    assert sum(demand.waits) == sum(supply.computes) == 0
    assert min(demand.computes) >= 0.002
    assert min(supply.waits) >= 0.004
    # The first ones in order, then some of them again.
    assert seen[:11] == [float(i) for i in range(11)]
    assert set(seen[11:]) <= set(seen[:11])
    tried = [one.name for one in observation.others(SUPPLY)]
    assert tried[0] == "supply headrace"
    assert tried[1].startswith("supply num_workers=")
    loader = observation.loader
    assert loader is not None
    assert loader.where.startswith("test_examination.py:")
    assert loader.code.startswith("DataLoader(Rows of 200, batch_size=1, num_workers=0")
    assert (loader.batches, loader.samples, loader.batch_nbytes) == (200, 200, 4)
    assert Observation.load(tmp_path) is None
    observation.save(tmp_path)
    assert Observation.load(tmp_path) == observation


class Copied:
    """A batch that counts how often batches are copied."""

    times: ClassVar[int] = 0

    def __init__(self, samples: list[torch.Tensor]) -> None:
        self.samples = samples

    def __deepcopy__(self, memo: object) -> Copied:
        Copied.times += 1
        return self


def test_few_of_the_first_batches_are_copied(examine: Examine) -> None:
    """Copies take longer than steps on a fast device, which would not use up what is prefetched."""
    copies: list[int] = []
    loader = DataLoader(
        Rows(200), batch_size=1, num_workers=1, prefetch_factor=8, collate_fn=Copied, persistent_workers=True
    )
    examine(epochs(loader, lambda _: copies.append(Copied.times)))
    assert len(copies) > 24
    assert copies[23] <= 5


def test_a_loader_that_is_fast_enough_is_left_as_it_is(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supplies, "STALL_THAT_MATTERS", 1.0)  # a busy machine holds up any step
    observation = examine(epochs(DataLoader(Rows(400), 1), lambda batch: time.sleep(0.05)), 6)
    assert list(observation.others(SUPPLY)) == []


def test_few_steps_are_enough_if_each_takes_long(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.2)
    observation = examine(epochs(DataLoader(Rows(200), 1), lambda batch: time.sleep(0.04)), None)
    assert module.FEW_STEPS <= len(phase(observation, ACTUAL).computes) < module.LEAST_STEPS


class SometimesSlow(Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.1 * (index % 20 == 19))
        return super().__getitem__(index)


@pytest.mark.slow
def test_a_longer_queue_is_tried_before_more_workers_if_samples_are_uneven(examine: Examine) -> None:
    loader = DataLoader(SometimesSlow(400), 1, num_workers=1, persistent_workers=True)
    tried = [one.name for one in examine(epochs(loader, nothing)).others(SUPPLY)]
    assert tried[:2] == ["supply headrace", "supply prefetch_factor=8"]
    assert tried[-1].startswith("supply num_workers=")


def test_starts_of_epochs_are_not_waits(examine: Examine) -> None:
    class Slow(DataLoader[Any]):
        def __iter__(self) -> Any:
            time.sleep(0.05)
            return super().__iter__()

    loader = Slow(Rows(6), 1)
    observation = examine(epochs(loader, lambda batch: time.sleep(0.001)), 12)
    actual = phase(observation, ACTUAL)
    assert actual.epochs_ended >= 1
    assert min(actual.startups) >= 0.05
    assert max(actual.waits) < 0.05


def test_a_script_that_ends_early_is_measured_as_far_as_it_goes(examine: Examine) -> None:
    observation = examine(epochs(DataLoader(Rows(8), 1), nothing, count=1), 50)
    assert observation.ended == "script ended"
    assert phase(observation, ACTUAL)
    assert phase(observation, SUPPLY)
    assert observation.phase(DEMAND) is None
    assert any("before its step was measured by itself" in note for note in observation.notes)


def test_a_script_that_leaves_its_loop_is_examined_in_the_next_epochs(examine: Examine) -> None:
    loader = DataLoader(Rows(4000), 1)

    def script() -> None:
        while True:
            for number, _ in enumerate(loader):
                time.sleep(0.002)
                if number == 5:
                    break

    observation = examine(script)
    assert observation.ended == EXAMINED
    assert [one.name for one in observation.phases[:4]] == [ACTUAL, DEMAND, PARTS, SUPPLY]
    demand = phase(observation, DEMAND)
    assert sum(demand.waits) == 0
    assert observation.loader is not None
    assert observation.loader.batches == 6  # that the script takes
    assert len(demand.steps_at) == len(demand.computes) >= 8


def test_streams_are_examined_too(examine: Examine) -> None:
    observation = examine(epochs(DataLoader(Stream(500), 2), nothing))
    assert observation.ended == EXAMINED
    assert observation.loader is not None
    assert observation.loader.samples is None


def test_headraces_own_loader_says_what_its_stages_cost(examine: Examine) -> None:
    loader = headrace.DataLoader(Rows(2000, 0.001), 4, num_workers=2, worker_kind="thread")
    observation = examine(epochs(loader, nothing))
    assert observation.loader is not None
    assert observation.loader.kind == "headrace"
    assert "python" in observation.loader.stages
    assert list(observation.others(SUPPLY)) == []


def test_loops_over_another_loader_are_measured_beside_the_first(examine: Examine) -> None:
    train, val = DataLoader(Rows(4000), 2), DataLoader(Rows(8, 0.01), 4, num_workers=1)

    def script() -> None:
        for number, _ in enumerate(train):
            if number % 4 == 3:
                assert len(list(val)) == 2

    observation = examine(script, 12)
    (actual,) = (one for one in observation.phases if one.name == ACTUAL)
    assert set(actual.samples) == {2}
    (loop,) = observation.loops
    assert loop.batches == 2 * loop.loops >= 6
    assert actual.seconds + loop.seconds <= actual.ended - actual.began
    tried = [one.settings["loader"] for one in observation.phases if one.name.startswith("loop ")]
    assert all(settings["persistent_workers"] for settings in tried)
    assert loop.supplies


def test_a_loop_without_gradients_is_not_taken_for_the_training(examine: Examine) -> None:
    train, val = DataLoader(Rows(40), 2), DataLoader(Rows(400), 1)

    def script() -> None:
        for _ in range(1000):
            for _ in train:
                time.sleep(0.001)
            with torch.no_grad():
                batches = iter(val)  # as it is left while the training continues
                assert len([next(batches) for _ in range(400)]) == 400

    observation = examine(script, 60)
    assert set(phase(observation, ACTUAL).samples) == {2}
    assert [loop.arguments["batch_size"] for loop in observation.loops] == [1]


def test_loaders_made_anew_for_each_epoch_count_as_one(examine: Examine) -> None:
    away: list[float] = []  # seconds between two loops over the first loader

    def script() -> None:
        left = math.inf
        for _ in range(1000):
            time.sleep(0.06)  # as if files were listed
            # At one place, but each for itself.
            train, val = (DataLoader(Rows(count), 2) for count in (40, 6))
            for number, _ in enumerate(train):
                away.extend([time.perf_counter() - left] if number == 0 else [])
                time.sleep(0.005)
                left = time.perf_counter()
            for _ in val:
                time.sleep(0.005)

    observation = examine(script, 45)
    assert observation.ended == EXAMINED
    assert observation.loader is not None
    assert observation.loader.remade >= 2
    assert observation.loader.samples == 40
    (loop,) = observation.loops
    assert loop.code.startswith("DataLoader(Rows of 6")
    actual = phase(observation, ACTUAL)
    assert min(actual.between) >= 0.06
    assert max(actual.between) < max(away) - 0.01  # the time of the other loop isn't in it


def test_a_loader_that_the_trainer_of_transformers_made_is_noted(examine: Examine) -> None:
    for file, noted in (("/x/site-packages/transformers/trainer.py", True), ("/x/train.py", False)):

        def script(file: str = file) -> None:
            namespace: dict[str, Any] = {"DataLoader": DataLoader, "rows": Rows(1000)}
            exec(compile("make = lambda: DataLoader(rows, 4)", file, "exec"), namespace)
            exec(compile("loader = make()", "/x/site-packages/transformers/trainer.py", "exec"), namespace)
            for _ in namespace["loader"]:
                time.sleep(0.001)

        observation = examine(script)
        assert observation.loader is not None
        assert observation.loader.trainer is noted


def test_the_time_between_epochs_counts_if_the_last_batch_is_kept(examine: Examine) -> None:
    loader = DataLoader(Rows(30), 1)
    gaps: list[float] = []

    def script() -> None:
        for _ in range(1000):
            batches = iter(loader)  # as Lightning does: it never asks for more than there are
            for _ in range(len(loader)):
                next(batches)
                given = time.perf_counter()
                time.sleep(0.002)
            time.sleep(0.1)
            gaps.append(time.perf_counter() - given)

    between = phase(examine(script, 100), ACTUAL).between
    assert len(between) >= 2
    assert 0.09 <= min(between) <= max(between) < max(gaps) + 0.05


def test_the_time_between_epochs_counts_if_the_last_batch_is_kept_until_a_new_loader_is_made(
    examine: Examine,
) -> None:
    gaps: list[float] = []

    def script() -> None:
        batches, given = iter(()), math.inf
        for _ in range(1000):
            time.sleep(0.1)  # as if a table were loaded
            loader = DataLoader(Rows(30), 1)
            del batches
            batches = iter(loader)
            gaps.append(time.perf_counter() - given)
            for _ in range(30):
                next(batches)
                given = time.perf_counter()
                time.sleep(0.002)

    between = phase(examine(script, 100), ACTUAL).between
    assert len(between) >= 2
    assert 0.09 <= min(between) <= max(between) < max(gaps) + 0.05


@pytest.mark.parametrize("varies", [False, True])
def test_larger_batches_are_tried_for_an_evaluation_if_its_samples_can_be_collated(
    examine: Examine, varies: bool
) -> None:
    train, val = DataLoader(Rows(4000), 8), DataLoader(Lengths() if varies else Rows(40), 1)

    def script() -> None:
        for number, _ in enumerate(train):
            time.sleep(0.001)
            if number % 4 == 3:
                with torch.inference_mode():
                    assert len(list(val)) == 40

    observation = examine(script, 12)
    (loop,) = observation.loops
    assert not loop.gradients
    assert loop.batched[:1] == ([] if varies else [8.0])
    refused = [
        note for note in observation.notes if note.startswith("the loader batch_size=8 can't be tried")
    ]
    assert len(refused) == varies


def test_waiting_for_a_loader_in_lock_step_is_a_part_of_the_step(examine: Examine) -> None:
    first, second = DataLoader(Rows(4000), 2), DataLoader(Rows(4000, 0.004), 1)

    def script() -> None:
        for _ in zip(first, second, strict=True):
            time.sleep(0.002)

    observation = examine(script)
    actual, demand = phase(observation, ACTUAL), phase(observation, DEMAND)
    assert set(actual.samples) == set(demand.samples) == {2}
    assert min(actual.computes) >= 0.006
    assert observation.loops == []


def test_a_step_that_fails_leaves_the_threads_and_no_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    before, begin = torch.get_num_threads(), DataLoader.__iter__
    torch.set_num_threads(2)
    monkeypatch.setattr(module, "usable_cores", lambda: 1)  # fewer are tried with the step alone

    def step(batch: torch.Tensor) -> None:
        if torch.get_num_threads() == 1:
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        headrace_doctor.diagnose(DataLoader(Rows(4000), 1), step, steps=10)
    assert torch.get_num_threads() == 2
    assert DataLoader.__iter__ is begin
    torch.set_num_threads(before)


def test_a_script_that_fails_once_all_is_measured_is_examined(examine: Examine) -> None:
    def script() -> None:
        try:
            epochs(DataLoader(Rows(4000), 1), nothing)()
        finally:
            raise ValueError("cleaning up")

    observation = examine(script)
    assert observation.ended == EXAMINED
    assert observation.notes == []


@pytest.mark.parametrize(
    ("rates", "above", "best", "tried"),
    [
        ({1: 9, 2: 20, 3: 21, 4: 20.5, 6: 20}, 0, 3, [1, 2, 3, 4]),
        ({3: 5, 4: 5}, 2, None, [3, 4]),
        ({1: 30, 2: 60, 3: 90}, 0, 3, [1, 2, 3]),
    ],
    ids=["until it brings nothing", "none is faster", "until it is enough"],
)
def test_numbers_of_workers_are_tried_upwards(
    rates: dict[int, float], above: int, best: int | None, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_doctor.measure.subject.TRIES_IN_VAIN", 2)
    asked: list[int] = []

    def rate_of(count: int) -> float:
        asked.append(count)
        return rates[count]

    found = best_workers(above, rate_of, 10.0, enough=80.0)
    assert (found, asked) == (best, tried)


def attempt(settings: dict[str, Any], subject: DataLoader[Any]) -> Replacement:
    code = describe(subject, "train.py:9").code
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
    assert not observation.refused


def test_an_attempt_that_may_replace_no_loader_is_refused() -> None:
    doubled, observation = Doubled(Rows(100), 2), Observation(["test"], 4, 1)
    replacement = attempt({"loader": {"num_workers": 1}}, doubled)
    assert replacement.of(doubled, "train.py:9") is doubled
    replacement.report(observation)
    assert observation.notes == [
        "the loader at train.py:9 was left as it is: Doubled has an __iter__ of its own"
    ]
    assert observation.refused
    missed, threads = Observation(["test"], 4, 1), Observation(["test"], 4, 1)
    attempt({"loader": {"num_workers": 1}}, doubled).report(missed)
    assert missed.notes == ["no loader was iterated over at train.py:9"]
    attempt({"threads": 2}, doubled).report(threads)
    assert not threads.refused
