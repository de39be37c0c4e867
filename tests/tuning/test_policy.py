"""From measurements to workers."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.records import Probe
from headrace.tuning.policy import choose_workers, insist_on_threads, waiting_threads


def probe(seconds: float, cpu: float, **others: Any) -> Probe:
    values = {"nbytes": 1, "draws": False, "against_threads": None, "gain": None, **others}
    return Probe(samples=4, seconds=seconds, cpu_seconds=cpu, **values)


@pytest.mark.parametrize(
    ("measured", "kind", "words"),
    [
        (probe(5e-3, 1e-4), "thread", "side by side"),
        (probe(5e-3, 1e-4, draws=True), "process", "random numbers"),
        (probe(5e-3, 1e-4, against_threads="dataset.f is a File"), "process", "dataset.f is a File"),
        (probe(5e-3, 5e-3, gain=1.0), "process", "holds the GIL"),
        (probe(5e-3, 5e-3, gain=1.9), "thread", "1.9 times"),
        (probe(1e-6, 1e-6, gain=1.0), "caller", "takes 64 µs"),
        (
            probe(5e-5, 1e-5),
            "process",
            "holds the GIL",
        ),  # it waits, but not for long
        ("it died", "process", "it died"),
    ],
)
def test_the_kind(measured: Probe | str, kind: str, words: str) -> None:
    workers = choose_workers(measured, batch_size=64, cores=8, count=None)
    assert workers.kind == kind
    assert words in workers.reason


def test_a_number_that_was_given_is_obeyed() -> None:
    for measured in (probe(5e-3, 1e-4), probe(5e-3, 5e-3, gain=1.0), probe(1e-6, 1e-6), "it died"):
        assert choose_workers(measured, batch_size=64, cores=8, count=3).count == 3


def test_threads_as_many_as_wait() -> None:
    assert waiting_threads(probe(10e-3, 5e-3), cores=8) == 16
    assert waiting_threads(probe(10e-3, 4e-3), cores=8) == 20
    assert waiting_threads(probe(10e-3, 1e-5), cores=8) == 50  # they take turns with the GIL
    assert waiting_threads(probe(50e-3, 0.0), cores=8) == 64


def test_threads_that_are_insisted_on_say_what_would_have_been() -> None:
    measured = probe(5e-3, 5e-3, gain=1.0)
    workers = choose_workers(measured, batch_size=64, cores=8, count=None)
    insisted = insist_on_threads(workers, measured, 8, None)
    assert (insisted.kind, insisted.count) == ("thread", 8)
    assert "left to itself: 8 processes" in insisted.reason
