"""What `headrace top` computes from two looks, and how it draws it: made-up looks, no process."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from headrace_doctor.cli.top_view import Look, draw, duration, frame
from headrace_doctor.measure.processes import ProcessLook, TreeLook

GB = 10**9


def process(pid: int, *, cpu: float = 0.0, command: str = "python train.py") -> ProcessLook:
    return ProcessLook(pid, 1, 1000.0, command, 0, "sleeping", 4, cpu, GB, 0)


def loader(batches: int, **changed: Any) -> dict[str, Any]:
    """After `batches` of 100 batches of 10 samples, a tenth of a second each; no step waited."""
    seconds = 0.5 + 0.1 * batches
    epoch = {
        "number": 2,
        "state": "running",
        "batches": batches,
        "samples": 10 * batches,
        "seconds": seconds,
        "startup_seconds": 0.5,
        "stall_seconds": 0.0,
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
        "epochs_begun": 3,
        "epoch": None if given is None else epoch | given,
        "skipped": 0,
        "replaced": 0,
        "memory_used": GB // 10,
        "memory_allowed": GB,
        **changed,
    }


def text_of(found: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(draw(found))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def look(clock: float, *loaders: dict[str, Any], **changed: Any) -> Look:
    said = {
        "clock": clock + 500,
        "rank": None,
        "local_rank": None,
        "world_size": None,
        "loaders": list(loaders),
    }
    tree = TreeLook(clock, (process(7, cpu=clock),), 4.0)
    return replace(Look(tree, {7: said}), **changed)


def test_rates_are_differences() -> None:
    found = frame(look(10.0, loader(20)), look(12.0, loader(40)), 1060.0)
    [one] = found["ranks"][0]["loaders"]
    assert one["samples_per_second"] == pytest.approx(100)
    assert one["stall"] == 0
    assert (one["batches"], one["length"], one["epoch"], one["state"]) == (40, 100, 2, "running")
    assert one["left_seconds"] == pytest.approx(6.0)
    assert found["uptime"] == 60
    assert found["cpu"] == pytest.approx(1.0)
    json.dumps(found)


def test_stall_is_of_the_time_after_the_start_up_and_a_wait_that_lasts_counts() -> None:
    before = loader(20, stall_seconds=1.0, waiting_seconds=0.25)
    after = loader(30, stall_seconds=1.5, waiting_seconds=0.75)
    [one] = frame(look(10.0, before), look(12.0, after), 0)["ranks"][0]["loaders"]
    assert one["stall"] == pytest.approx((1.5 + 0.75 - 1.0 - 0.25) / 2)
    assert one["waiting_seconds"] == 0.75

    first = {"batches": 0, "samples": 0, "seconds": 0.0, "samples_per_second": 0.0}
    before = loader(0, waiting_seconds=0.5, epoch=first)
    after = loader(5, startup_seconds=2.5, stall_seconds=0.5)  # half of the second that was left
    [one] = frame(look(10.0, before), look(11.5, after), 0)["ranks"][0]["loaders"]
    assert one["stall"] == pytest.approx(0.5)
    [one] = frame(look(10.0, before), look(10.5, {**before, "waiting_seconds": 1.0}), 0)["ranks"][0][
        "loaders"
    ]
    assert (one["state"], one["stall"]) == ("starting", None)


def test_an_epoch_that_goes_on_from_a_state_counts_what_lies_before() -> None:
    [one] = frame(look(10.0), look(12.0, loader(20, epoch={"skipped": 50})), 0)["ranks"][0]["loaders"]
    assert (one["batches"], one["length"]) == (70, 100)
    assert (one["samples_per_second"], one["stall"], one["left_seconds"]) == (0.0, None, None), (
        "one look tells no rate"
    )


def ranks() -> dict[str, Any]:
    """Rank 1 waits for half of its time."""
    before, after = look(10.0), look(12.0)
    both = []
    for number, each in enumerate((before, after)):
        said = {
            pid: {
                "clock": each.tree.clock,
                "rank": str(rank),
                "local_rank": str(rank),
                "world_size": "3",
                "loaders": [loader(20 + 20 * number, stall_seconds=number * stalled)],
            }
            for rank, (pid, stalled) in enumerate(((30, 0.1), (20, 1.0), (10, 0.0)))
        }
        both.append(replace(each, said=said))
    return frame(both[0], both[1], 1060.0)


def test_the_rank_that_waits_most_comes_first() -> None:
    found = ranks()
    assert [(one["rank"], one["pid"]) for one in found["ranks"]] == [(0, 30), (1, 20), (2, 10)]
    rows = [line.split() for line in text_of(found).splitlines() if "ImageFolder" in line]
    assert [row[1] for row in rows] == ["20", "30", "10"]
    assert rows[0][:7] == ["1", "20", "100", "50.0%", "3.0", "of", "4"]


def test_of_many_loaders_those_that_wait_most_are_shown() -> None:
    before = look(10.0, *(loader(20, number=n) for n in range(20)))
    after = look(12.0, *(loader(40, number=n, stall_seconds=0.05 * n) for n in range(20)))
    text = text_of(frame(before, after, 0))
    shown = [line.split(":")[-2].split()[-1] for line in text.splitlines() if "ImageFolder" in line]
    assert shown == [str(n) for n in range(19, 7, -1)]
    assert "and 8 more loaders" in text


def test_it_fits_a_small_terminal() -> None:
    after = look(
        12.0,
        loader(40, waiting_seconds=3.0, skipped=2),
        loader(100, number=2, epoch={"state": "finished"}),
        loader(0, number=3, epoch=None),
    )
    text = text_of(frame(look(10.0, loader(20)), after, 1060.0))
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "headrace top  pid 7, up 1:00  python train.py",
        "cpu 1.00 of 4 cores",
        "0:06  1: ImageFolder",
        "2 finished",
        "not started",
        "process 7: 2 samples skipped, a batch has been awaited for 3.0 s",
    ):
        assert words in text, text


def test_what_others_chose_cant_steer_the_terminal() -> None:
    evil = process(7, command="python \x1b[2J\x1b]0;owned\x07\nx [red]y")
    looks = [look(t, tree=TreeLook(t, (evil,), 1.0), said={}) for t in (10.0, 12.0)]
    text = text_of(frame(looks[0], looks[1], 1060.0), 200)
    assert "\x1b" not in text
    assert r"python \x1b[2J\x1b]0;owned\x07\nx [red]y" in text
    assert "headrace doctor run SCRIPT" in text, "no loaders: it says what is missing, and what helps"


def test_words_for_numbers() -> None:
    assert [duration(t) for t in (0, 7.9, 65, 3753)] == ["0:00", "0:07", "1:05", "1:02:33"]
