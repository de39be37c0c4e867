"""Where the samples of a Python dataset are made, and why."""

from __future__ import annotations

import io
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, default_collate

import headrace
from headrace.engine.guarded import Guarded
from headrace.engine.probe import measure, probe
from headrace.engine.sharing import changed, code_stamp, snapshot, unshareable
from headrace.records import Probe
from headrace.tuning import cache


class Samples(Dataset[Any]):
    """Whose samples are what `make` gives."""

    def __init__(self, make: Any = None, **attributes: Any) -> None:
        self.make = make
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return index if self.make is None else self.make(index)


def probed(dataset: Dataset[Any]) -> Probe:
    result = probe(Guarded(dataset, default_collate, "raise"), range(16))
    assert isinstance(result, Probe), result
    return result


def test_a_sample_that_waits_is_seen_to() -> None:
    result = probed(Samples(lambda i: time.sleep(0.005)))
    assert result.seconds >= 0.005
    assert result.cpu_seconds < 0.5 * result.seconds
    assert not result.draws
    assert result.against_threads is None


@pytest.mark.parametrize(
    "draw", [lambda i: torch.rand(2), lambda i: np.random.rand(), lambda i: random.random()]
)
def test_drawing_is_seen_and_changes_nothing_here(draw: Any) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index, union-attr]
    assert probed(Samples(draw)).draws
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # type: ignore[index, arg-type]
    assert before[2] == random.getstate()


def test_what_samples_change_stays_in_the_child(tmp_path: Path) -> None:
    class Lazy(Samples):
        file: Any = None

        def __getitem__(self, index: int) -> Any:
            if self.file is None:
                self.file = open(tmp_path / "data", "rb")  # noqa: SIM115
            self.file.seek(index)
            return self.file.read(1)

    (tmp_path / "data").write_bytes(bytes(range(16)))
    dataset = Lazy()
    assert "dataset.file is a BufferedReader" in str(probed(dataset).against_threads)
    assert dataset.file is None


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"stream": io.BytesIO(b"x")}, "dataset.stream is a BytesIO"),
        ({"rng": np.random.default_rng(0)}, "dataset.rng is a Generator, from which"),
        ({"inner": Samples(rngs=[random.Random(1)])}, "dataset.inner.rngs[0] is a Random, from which"),
        ({"jobs": {"a": (i for i in "x")}}, "dataset.jobs['a'] is a generator"),
    ],
)
def test_what_threads_cannot_share_is_named(attributes: dict[str, Any], words: str) -> None:
    assert words in str(unshareable(Samples(**attributes)))


def test_ordinary_members_speak_against_nothing() -> None:
    dataset = Samples(
        paths=["a"] * 100_000,
        x=torch.zeros(3),
        y=np.zeros(3),
        table={"a": (1, 2.0)},
        none=None,
        path=Path("."),
    )
    assert unshareable(dataset) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda d: setattr(d, "count", 1),
        lambda d: d.cache.update(a=1),
        lambda d: d.seen.append(1),
        lambda d: d.x.add_(1),
        lambda d: d.inner.seen.append(1),
    ],
)
def test_changes_are_found(change: Any) -> None:
    dataset = Samples(count=0, cache={}, seen=[], x=torch.zeros(2), inner=Samples(seen=[]))
    before = snapshot(dataset)
    assert changed(before, snapshot(dataset)) is None
    change(dataset)
    assert str(changed(before, snapshot(dataset))).startswith("dataset.")


def test_a_sample_that_fails_is_no_reason_to_fail() -> None:
    def make(index: int) -> Any:
        raise OSError("not there")

    assert probe(Guarded(Samples(make), default_collate, "raise"), range(4)) == (
        "a sample raised OSError: not there"
    )


def test_a_sample_that_kills_its_process_does_no_harm() -> None:
    def make(index: int) -> Any:
        import os

        os._exit(3)

    assert "died" in str(probe(Guarded(Samples(make), default_collate, "raise"), range(4)))


def test_code_that_holds_the_gil_gains_nothing_by_threads() -> None:
    def make(index: int) -> int:
        return sum(range(20_000))

    gains = [measure(Guarded(Samples(make), default_collate, "raise"), range(4)).gain for _ in range(5)]
    known = [gain for gain in gains if gain is not None]
    assert len(known) == 5
    assert min(known) < 1.6  # whoever else computes on these cores slows one of the two at a time


def test_the_choice_is_explained() -> None:
    loader = headrace.DataLoader(Samples(lambda i: (time.sleep(0.003), i)[1]), 4)
    assert "chosen when the first epoch begins" in loader.explain()
    assert [b.tolist() for b in loader] == [[4 * k + i for i in range(4)] for k in range(4)]
    assert "threads: a sample takes 3." in loader.explain()


def test_code_that_draws_goes_to_processes_and_is_repeatable() -> None:
    def epoch(**arguments: Any) -> list[Any]:
        dataset = Samples(lambda i: (time.sleep(0.002), torch.rand(2))[1])
        loader = headrace.DataLoader(dataset, 4, seed=3, **arguments)
        batches = [b.tolist() for b in loader]
        if not arguments:
            assert "2 processes" in loader.explain() or "processes: a sample takes" in loader.explain()
        return batches

    assert epoch() == epoch(num_workers=0) == epoch(num_workers=1)


@pytest.mark.parametrize("kind", ["fibre", None, 3])
def test_a_kind_that_is_none_is_refused(kind: Any) -> None:
    with pytest.raises(headrace.ConfigError, match=r"worker_kind .* must be 'auto', 'thread' or 'process'"):
        headrace.DataLoader(Samples(), worker_kind=kind)


def test_what_is_meant_for_processes_gets_them() -> None:
    loader = headrace.DataLoader(Samples(), 4, num_workers=1, worker_init_fn=lambda worker: None)
    assert len(list(loader)) == 4
    assert "1 process: worker_init_fn is meant for processes" in loader.explain()


def test_a_choice_is_kept_for_the_same_code_and_flags_only() -> None:
    first = code_stamp(Samples(time.sleep, augment=False), default_collate)
    assert first is not None
    assert first == code_stamp(Samples(time.sleep, augment=False), default_collate)
    for other in (Samples(time.sleep, augment=True), Samples(lambda i: i, augment=False)):
        assert code_stamp(other, default_collate) != first
    assert code_stamp(Samples(lambda i: i), default_collate) != code_stamp(
        Samples(lambda i: i + 1), default_collate
    )
    assert code_stamp(Samples(time.sleep, augment=False), list) != first


def test_code_that_comes_from_no_file_is_measured_each_time() -> None:
    names: dict[str, Any] = {"__name__": "nowhere"}
    exec("class Made:\n    def __len__(self): return 3\n    def __getitem__(self, i): return i", names)
    assert code_stamp(names["Made"]()) is None


def test_samples_on_a_device_are_made_here() -> None:
    """As with torch's own default, num_workers=0: a dataset that keeps its tensors on the GPU works."""
    dataset = Samples(lambda i: (time.sleep(0.002), torch.zeros(2, device="meta"))[1])
    loader = headrace.DataLoader(dataset, 4)
    assert [batch.device.type for batch in loader] == ["meta"] * 4
    assert "none: samples are on a device" in loader.explain()


@pytest.mark.parametrize(
    "damage",
    [
        {},
        {"workers": None, "both": False},
        {"workers": {"kind": "thread", "count": 2}, "both": False},
        {"workers": {"kind": "fibre", "count": 2, "reason": ""}, "both": False},
        {"workers": {"kind": "process", "count": 0, "reason": ""}, "both": False},
        {"workers": {"kind": "thread", "count": 2, "reason": ""}},
    ],
)
def test_a_damaged_choice_is_made_anew(damage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "load", lambda key: damage)
    loader = headrace.DataLoader(Samples(), batch_size=8)
    assert [batch.tolist() for batch in loader] == [list(range(8)), list(range(8, 16))]
