"""Measuring and trying settings without a training step."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader as TorchDataLoader

import headrace
from headrace_doctor.errors import ConfigError
from headrace_doctor.tune import Trial, TuneReport, capture, measure, tune
from support.datasets import Rows, Stream


class CountedLoader(TorchDataLoader[Any]):
    """Knows how many epochs were started."""

    begun = 0

    def __iter__(self) -> Any:
        self.begun += 1
        return super().__iter__()


def test_a_slow_loader_is_measured_in_the_epoch_that_was_begun() -> None:
    # The first twentieth of this epoch, which isn't counted where there is time, takes a second by itself.
    loader = CountedLoader(Rows(2000, 0.01), batch_size=1)
    rate, first = measure(loader, seconds=0.1)
    assert loader.begun == 1
    assert 0 < rate <= 100
    assert first >= 0.01


def test_a_short_epoch_is_begun_again() -> None:
    loader = CountedLoader(Rows(4, 0.005), batch_size=2)
    rate, _ = measure(loader, seconds=0.1)
    assert loader.begun > 1
    assert 0 < rate <= 200


def test_nothing_comes_of_an_empty_loader() -> None:
    assert measure(TorchDataLoader(Rows(1), batch_size=2, drop_last=True), seconds=0.1) == (0.0, 0.0)


def test_both_loaders_are_tried_with_the_same_arguments() -> None:
    report = tune(TorchDataLoader(Rows(64), batch_size=8, drop_last=True), seconds=0.05)
    assert {trial.loader for trial in report.trials} == {"torch", "headrace"}
    assert report.trials[0].arguments == {"num_workers": 0}
    best = report.best()["torch"]
    assert best.samples_per_second == max(t.samples_per_second for t in report.trials if t.loader == "torch")
    assert best.code().startswith("torch.utils.data.DataLoader(dataset, …, num_workers=")


def test_an_iterable_dataset_is_refused() -> None:
    with pytest.raises(ConfigError, match="Stream is an IterableDataset"):
        tune(TorchDataLoader(Stream(3)))


def test_the_loader_that_a_script_iterates_over_is_found() -> None:
    loaders = [TorchDataLoader(Rows(2)), headrace.DataLoader(Rows(2))]
    reached = []

    def script() -> None:
        for loader in loaders:
            list(loader)
            reached.append(loader)

    original = TorchDataLoader.__iter__
    assert capture(script, 2) is loaders[1]
    assert reached == loaders[:1]
    assert capture(script, 3) is None
    assert TorchDataLoader.__iter__ is original


def test_threads_are_tried_only_where_they_were_asked_for() -> None:
    waiting = TorchDataLoader(Rows(64, 0.002), batch_size=8)
    assert not any(trial.on_threads for trial in tune(waiting, seconds=0.05).trials)
    assert any(trial.on_threads for trial in tune(waiting, seconds=0.05, threads=True).trials)


def trial(rate: float, **arguments: Any) -> Trial:
    return Trial("headrace", arguments, rate, 0.0)


def test_threads_are_advised_with_their_gain_and_their_condition() -> None:
    report = TuneReport((trial(100.0), trial(250.0, num_workers=8, worker_kind="thread")))
    assert report.best()["headrace"].samples_per_second == 100.0
    advice = report.advice()
    assert advice is not None
    assert "num_workers=8, worker_kind='thread') gives 2.50 times as many samples per second" in advice
    assert "only if the dataset, its transforms and collate_fn are thread-safe" in advice


def test_threads_that_gain_nothing_are_not_advised() -> None:
    assert TuneReport((trial(100.0),)).advice() is None
    slower = trial(99.0, num_workers=8, worker_kind="thread")
    assert TuneReport((trial(100.0), slower)).advice() is None
