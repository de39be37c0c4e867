"""What `headrace top` computes from two looks, and how it draws it: made-up looks, no process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from headrace.cli.top_view import Look, draw, duration, frame, rank_stall, slowest
from headrace.measure.nvml import Gpu
from headrace.measure.processes import ProcessLook, TreeLook

GB = 10**9


def process(
    pid: int, *, cpu: float = 0.0, read: int | None = 0, command: str = "python train.py"
) -> ProcessLook:
    return ProcessLook(pid, 1, 1000.0, command, 0, "sleeping", 4, cpu, GB, read)


def stage(name: str, samples: int, seconds: float, nbytes: int = 0, threads: int = 2) -> dict[str, Any]:
    return {"name": name, "samples": samples, "seconds": seconds, "bytes": nbytes, "threads": threads}


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
    epoch.update(changed.pop("epoch", {}))
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
        "epoch": epoch,
        "stages": [],
        "skipped": 0,
        "replaced": 0,
        "memory_used": GB // 10,
        "memory_allowed": GB,
        "in_flight": 3,
        "decode_threads": 2,
        "read_threads": 0,
        **changed,
    }


def text_of(found: dict[str, Any], width: int = 80, stalls: Sequence[float | None] = ()) -> str:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(draw(found, stalls))
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
    return replace(Look(tree, {7: said}, (), (), "no GPU"), **changed)


def test_rates_are_differences() -> None:
    found = frame(look(10.0, loader(20)), look(12.0, loader(40)), 1060.0)
    [one] = found["ranks"][0]["loaders"]
    assert one["samples_per_second"] == pytest.approx(100)
    assert one["stall"] == 0
    assert (one["batches"], one["length"], one["epoch"], one["state"]) == (40, 100, 2, "running")
    assert one["left_seconds"] == pytest.approx(6.0)
    assert found["uptime"] == 60
    assert found["processes"][0]["cpu"] == pytest.approx(1.0)
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


def test_a_stage_is_loaded_by_what_the_step_asks_for() -> None:
    before = loader(
        20, stages=[stage("read", 200, 1.0), stage("decode", 200, 2.0), stage("collate", 200, 0.1)]
    )
    after = loader(
        40,
        stall_seconds=1.0,  # of two seconds: the step alone would take 200 samples in one
        stages=[stage("read", 400, 1.5), stage("decode", 400, 4.0), stage("collate", 400, 0.2, threads=1)],
    )
    [one] = frame(look(10.0, before), look(12.0, after), 0)["ranks"][0]["loaders"]
    found = {row["name"]: row for row in one["stages"]}
    assert list(found) == ["native", "read", "decode", "collate"]
    assert found["read"]["supply"] == pytest.approx(2 * 200 / 0.5)
    assert found["decode"]["supply"] == pytest.approx(2 * 200 / 2.0)
    assert found["native"]["supply"] == pytest.approx(2 * 200 / 2.5)
    assert found["decode"]["load"] == pytest.approx(200 / 200)
    assert found["native"]["load"] == pytest.approx(200 / 160)
    # Readers of their own aren't part of what decode threads share.
    [one] = frame(look(10.0, before), look(12.0, {**after, "read_threads": 32}), 0)["ranks"][0]["loaders"]
    assert "native" not in [row["name"] for row in one["stages"]]


def test_transfer_is_bytes_per_second() -> None:
    before = loader(20, stages=[stage("transfer", 0, 0.0, 100)])
    after = loader(40, stages=[stage("transfer", 0, 0.0, 2_000_100)])
    assert frame(look(10.0, before), look(12.0, after), 0)["ranks"][0]["loaders"][0][
        "transfer"
    ] == pytest.approx(1e6)


def test_an_epoch_that_goes_on_from_a_state_counts_what_lies_before() -> None:
    [one] = frame(look(10.0), look(12.0, loader(20, epoch={"skipped": 50})), 0)["ranks"][0]["loaders"]
    assert (one["batches"], one["length"]) == (70, 100)
    assert (one["samples_per_second"], one["stall"], one["left_seconds"]) == (0.0, None, None), (
        "one look tells no rate"
    )


def test_a_new_process_of_an_old_number_is_not_the_old_one() -> None:
    before = look(10.0, tree=TreeLook(10.0, (process(7), process(8, cpu=99.0, read=10**9)), 4.0))
    young = replace(process(8, cpu=1.0, read=500), started=2000.0)
    after = look(12.0, tree=TreeLook(12.0, (process(7, read=None), young), 4.0))
    found = frame(before, after, 0)
    assert [(one["cpu"], one["read"]) for one in found["processes"]] == [(0.0, None), (0.0, None)]


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


def test_ranks_are_in_order_and_the_slowest_is_shown() -> None:
    found = ranks()
    assert [(one["rank"], one["pid"]) for one in found["ranks"]] == [(0, 30), (1, 20), (2, 10)]
    assert slowest(found) is found["ranks"][1]
    text = text_of(found)
    assert ["▶", "1", "20", "100", "50.0%", "2,", "batch", "40", "of", "100"] in map(
        str.split, text.splitlines()
    )
    assert "▶ waits most: process 20" in text
    assert rank_stall(found["ranks"][1]) == pytest.approx(0.5)  # type: ignore[arg-type]
    assert "50.0% now, " in text


def full() -> dict[str, Any]:
    stages = [stage(name, 400, 1.0) for name in ("read", "parse", "decode", "resize", "store", "collate")]
    gpu = Gpu(0, "NVIDIA H200", "", 140 * GB, 61 * GB, 0.87, (7,))
    changed: dict[str, Any] = {"gpus": (gpu,), "no_gpus": ""}
    return frame(
        look(10.0, loader(20), **changed),
        look(
            12.0,
            loader(40, stages=stages, waiting_seconds=3.0, stall_seconds=0.5),
            loader(100, number=2, epoch={"state": "finished"}),
            **changed,
        ),
        1060.0,
    )


def test_it_fits_a_small_terminal() -> None:
    text = text_of(full(), stalls=[0.1, None, 0.3])
    assert max(map(len, text.splitlines())) <= 80
    text = " ".join(text.replace("━", "").replace("╸", "").replace("╺", "").split())
    for words in (
        "headrace top pid 7, up 1:00 python train.py",
        "1.00 of 4 cores",
        "gpu 0 87% busy, 61 GB of 140 GB NVIDIA H200",
        "loader 1: ImageFolder, batches of 10",
        "epoch 40% 2, batch 40 of 100, 0:06 left",
        "100 samples/s now, 89 in the epoch",
        "20.0% over a minute",
        "waiting for its batch for 3.0 s",
        "queue 3.0 of 4 ready",
        "memory 100 MB of 1 GB allowed",
        "decode supplies ",
        "loader 2: ImageFolder, batches of 10: epoch 2 finished",
    ):
        assert words in text, words


def test_what_others_chose_cant_steer_the_terminal() -> None:
    evil = process(7, command="python \x1b[2J\x1b]0;owned\x07\nx [red]y")
    looks = [look(t, tree=TreeLook(t, (evil,), 1.0), said={}) for t in (10.0, 12.0)]
    text = text_of(frame(looks[0], looks[1], 1060.0), 200)
    assert "\x1b" not in text
    assert r"python \x1b[2J\x1b]0;owned\x07\nx [red]y" in text
    assert "headrace doctor run SCRIPT" in text, "no loaders: it says what is missing, and what helps"


def remote(**changed: Any) -> dict[str, Any]:
    return {
        "bytes_fetched": 10**9,
        "requests": 10_000,
        "retries": 5,
        "concurrency": 32,
        "latency_seconds": 0.031,
        "cache_hits": 100,
        "cache_misses": 10_000,
        "cache_evictions": 0,
        "cache_bytes": 3 * GB,
        "cache_capacity": 4 * GB,
        **changed,
    }


def test_what_a_dataset_of_urls_fetches_now() -> None:
    later = remote(
        bytes_fetched=10**9 + 24_600_000,
        requests=10_200,
        retries=15,
        cache_hits=160,
        cache_misses=10_140,
        cache_evictions=40,
    )
    found = frame(look(10.0, loader(20, remote=remote())), look(12.0, loader(40, remote=later)), 1060.0)
    text = " ".join(text_of(found).split())
    assert "12.3 MB/s by 100 requests/s, 32 at a time, 31 ms, 5% retried" in text
    assert "3 GB of 4 GB, 30% found, 20/s evicted" in text
    json.dumps(found)


def test_a_dataset_of_urls_that_waits_and_one_that_was_seen_once() -> None:
    idle = frame(look(10.0, loader(20, remote=remote())), look(12.0, loader(20, remote=remote())), 0)
    text = text_of(idle)
    assert "0 bytes/s by 0 requests/s, 32 at a time, 31 ms, 5" in text
    assert "3 GB of 4 GB\n" in f"{text}\n"
    [once] = frame(look(10.0), look(12.0, loader(20, remote=remote())), 0)["ranks"][0]["loaders"]
    assert once["remote"] is not None
    assert (once["remote"]["bytes_per_second"], once["remote"]["found"]) == (0.0, None)
    [earlier] = frame(look(10.0), look(12.0, loader(20)), 0)["ranks"][0]["loaders"]
    assert earlier["remote"] is None, "a job of an earlier version says nothing of it"


def test_words_for_numbers() -> None:
    assert [duration(t) for t in (0, 7.9, 65, 3753)] == ["0:00", "0:07", "1:05", "1:02:33"]
