"""What `headrace top` computes from two answers of a job, and how it draws it."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from headrace_doctor.cli.top import Watch, draw, duration

GB = 10**9
Frame = Callable[..., dict[str, Any]]


def loader(batches: int, **changed: Any) -> dict[str, Any]:
    """After `batches` of 100 batches of 10 samples, a tenth of a second each; no step waited."""
    seconds = 0.5 + 0.1 * batches
    epoch = {
        "number": 2,
        "state": "running",
        "batches": batches,
        "samples": 10 * batches,
        "stall_share": 0.0,
        "samples_per_second": 10 * batches / seconds,
        "depth": 4,
        "ready": 3.0,
        "length": 100,
        "skipped": 0,
    }
    given = changed.pop("epoch", {})
    return {
        "number": 1,
        "dataset": "ImageFolder",
        "batch_size": 10,
        "batches": 200 + batches,
        "samples": 2000 + 10 * batches,
        "startup_seconds": 1.5,
        "stall_seconds": 0.0,
        "waiting_seconds": 0.0,
        "epoch": None if given is None else epoch | given,
        "skipped": 0,
        "replaced": 0,
        "memory_used": GB // 10,
        "memory_allowed": GB,
        **changed,
    }


def answer(clock: float, *loaders: dict[str, Any], rank: str | None = None) -> dict[str, Any]:
    return {"clock": clock, "rank": rank, "local_rank": rank, "world_size": None, "loaders": list(loaders)}


@pytest.fixture
def frame(monkeypatch: pytest.MonkeyPatch) -> Frame:
    """The frame between two answers of this process, as those of a job."""

    def make(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
        answers = iter((before, after))
        job = SimpleNamespace(name="job", pid=os.getpid(), ask=lambda: next(answers))
        monkeypatch.setattr("headrace_doctor.cli.top.running", lambda known: [job])
        frame = Watch(os.getpid()).frame()
        assert frame is not None
        return frame

    return make


def text_of(frame: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(draw(frame))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def test_stall_is_of_the_time_after_the_start_up_and_a_wait_that_lasts_counts(frame: Frame) -> None:
    before = loader(20, stall_seconds=1.0, waiting_seconds=0.25)
    after = loader(30, stall_seconds=1.5, waiting_seconds=0.75)
    [one] = frame(answer(10.0, before), answer(12.0, after))["ranks"][0]["loaders"]
    assert one["stall"] == pytest.approx((1.5 + 0.75 - 1.0 - 0.25) / 2)

    before = loader(0, waiting_seconds=0.5)
    after = loader(5, startup_seconds=2.5, stall_seconds=0.5)  # half of the second that was left
    [one] = frame(answer(10.0, before), answer(11.5, after))["ranks"][0]["loaders"]
    assert one["stall"] == pytest.approx(0.5)
    longer = {**before, "waiting_seconds": 1.0}
    [one] = frame(answer(10.0, before), answer(10.5, longer))["ranks"][0]["loaders"]
    assert (one["state"], one["stall"]) == ("starting", None)


def test_of_many_loaders_those_that_wait_most_are_shown(frame: Frame) -> None:
    before = answer(10.0, *(loader(20, number=n) for n in range(20)), rank="1")
    after = answer(12.0, *(loader(40, number=n, stall_seconds=0.05 * n) for n in range(20)), rank="1")
    text = text_of(frame(before, after), 120)
    rows = [line.split() for line in text.splitlines() if "ImageFolder" in line]
    assert [row[-2] for row in rows] == [f"{n}:" for n in range(19, 7, -1)]
    assert rows[0][:7] == ["1", str(os.getpid()), "100", "47.5%", "3.0", "of", "4"]
    assert "and 8 more loaders" in text


def test_it_fits_a_small_terminal(frame: Frame) -> None:
    found = frame(
        answer(10.0, loader(20)),
        answer(
            12.0,
            loader(40, waiting_seconds=3.0, skipped=2),
            loader(100, number=2, epoch={"state": "finished"}),
            loader(0, number=3, epoch=None),
        ),
    )
    found["ranks"][0]["pid"] = 7
    text = text_of({**found, "command": "/usr/bin/python train.py", "uptime": 60, "pid": 7, "cpu": 1})
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "headrace top  pid 7, up 1:00  python train.py",
        "cpu 1.00 of ",
        "0:06  1: ImageFolder",
        "2 finished",
        "not started",
        "process 7: 2 samples skipped, a batch has been awaited for 3.0 s",
    ):
        assert words in text, text


def test_what_others_chose_cant_steer_the_terminal(frame: Frame) -> None:
    found = frame(answer(10.0), answer(12.0)) | {"command": "python \x1b[2J\x1b]0;owned\x07\nx [red]y"}
    text = text_of(found, 200)
    assert "\x1b" not in text
    assert r"python \x1b[2J\x1b]0;owned\x07\nx [red]y" in text
    assert "headrace doctor run SCRIPT" in text, "no loaders: it says what is missing, and what helps"


def test_words_for_numbers() -> None:
    assert [duration(t) for t in (0, 7.9, 65, 3753)] == ["0:00", "0:07", "1:05", "1:02:33"]
