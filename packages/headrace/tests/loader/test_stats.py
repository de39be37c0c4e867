"""stats() is true of real epochs, and costs little."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder

import headrace
from headrace.records import EpochStats, LoaderStats, QueueFill, SampleFailure, StageStats
from support.stateful import CountedStream

NATIVE_STAGES = ["read", "parse", "decode", "resize", "store"]


class Slow(Dataset[torch.Tensor]):
    """Item 0 takes long, and so does every tenth."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.05 if index % 10 == 0 else 0.0)
        return torch.full((5000,), index)


def test_stats_describe_every_epoch_of_a_native_loader(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    for _ in range(2):
        for _images, _labels in loader:
            pass
    stats = loader.stats()
    assert [(e.number, e.state, e.batches, e.samples) for e in stats.epochs] == [
        (0, "finished", 8, 30),
        (1, "finished", 8, 30),
    ]
    for epoch in stats.epochs:
        assert [stage.name for stage in epoch.stages][:5] == NATIVE_STAGES
        assert {stage.samples for stage in epoch.stages[:5]} == {30}
        assert all(stage.threads == 2 for stage in epoch.stages[:5])
        assert 0 < epoch.startup_seconds <= epoch.seconds
        assert 0 <= epoch.stall_seconds <= epoch.seconds - epoch.startup_seconds + 1e-3
        assert epoch.queue.depth == 4
        assert 0 < epoch.queue.in_flight <= 4
        assert 0 <= epoch.queue.ready <= 4
    for i, stage in enumerate(stats.stages):
        assert stage.samples == sum(
            epoch.stages[i].samples for epoch in stats.epochs if i < len(epoch.stages)
        )
    assert stats.startup_seconds == pytest.approx(sum(epoch.startup_seconds for epoch in stats.epochs))
    assert stats.waits[-1][1] == 14, "all steps but the first of each epoch"


def test_a_queue_that_is_full_is_seen_to_be_full(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    batches = iter(loader)
    next(batches)
    (first,) = loader.stats().epochs
    deadline = time.monotonic() + 60
    producer = batches._stream
    while producer.ready() < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    next(batches)
    queue = loader.stats().epochs[0].queue
    assert 2 * queue.ready - first.queue.ready == 4
    assert queue.in_flight == 4
    assert first.state == "running"


def test_stall_and_start_up_of_slow_samples_are_apart() -> None:
    loader = headrace.DataLoader(Slow(), batch_size=2, num_workers=0)
    for _ in loader:
        pass
    (epoch,) = loader.stats().epochs
    assert 0.05 <= epoch.startup_seconds <= epoch.seconds - epoch.stall_seconds
    assert epoch.stall_seconds >= 0.15, "three more samples took 50 ms each"
    assert 0.05 * 0.96 <= epoch.stall_p95_seconds <= epoch.stall_max_seconds
    assert epoch.stall_median_seconds < 0.05
    assert epoch.stall_share > 0.5
    assert epoch.queue.depth == 0, "torch's workers don't say what they have"


class Large(Slow):
    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index).repeat(20)


def test_python_on_threads_tells_of_its_samples_its_queue_and_its_memory() -> None:
    loader = headrace.DataLoader(Large(), batch_size=4, num_workers=2, worker_kind="thread")
    batches = iter(loader)
    first = next(batches)
    assert loader.stats().memory_used >= first.nbytes
    rest = list(batches)
    (epoch,) = loader.stats().epochs
    by_name = {stage.name: stage for stage in epoch.stages}
    assert len(rest) == 9
    assert by_name["python"].samples == by_name["collate"].samples == 40
    assert by_name["python"].seconds >= 0.2, "four samples of 50 ms"
    assert by_name["python"].threads == 2
    assert epoch.queue.depth >= epoch.queue.in_flight > 0


def test_a_loop_left_early_is_stopped_and_the_next_is_its_own(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    for _images, _labels in loader:
        break
    batches = iter(loader)
    next(batches)
    other = iter(loader)
    next(other)
    del batches
    next(other)
    assert [(e.state, e.batches) for e in loader.stats().epochs] == [
        ("stopped", 1),
        ("stopped", 1),
        ("running", 2),
    ]


def test_an_epoch_counts_its_own_samples_when_workers_come_and_go(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=0)
    batches = iter(loader)
    next(batches)
    del batches
    for workers in (2, 0):
        loader.num_workers = workers
        for _images, _labels in loader:
            pass
        by_name = {stage.name: stage.samples for stage in loader.stats().epochs[-1].stages}
        assert [by_name[name] for name in NATIVE_STAGES] == [len(dataset)] * len(NATIVE_STAGES)
        assert loader.stats().decode_threads == workers


def test_an_error_in_the_loop_leaves_true_counts(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, sampler=[0, 1, 10_000, 2], batch_size=2, num_workers=1)
    with pytest.raises(IndexError):
        list(loader)
    (epoch,) = loader.stats().epochs
    assert epoch.samples == loader.stats().samples <= 2
    assert epoch.state != "finished"


def test_stats_can_be_read_in_another_thread_all_the_time(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=2, num_workers=2)
    seen: list[LoaderStats] = []
    failed: list[Exception] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.wait(0.001):  # a thread that never waits may keep others from the lock
                seen.append(loader.stats())
        except Exception as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        for _images, _labels in loader:
            pass
    done.set()
    reader.join()
    assert not failed
    samples = [stats.samples for stats in seen]
    assert samples == sorted(samples)
    assert all(sum(epoch.samples for epoch in stats.epochs) == stats.samples for stats in seen)
    assert loader.stats().samples == 300


def test_json_is_made_of_json_types(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=8, num_workers=1)
    for _images, _labels in loader:
        pass
    stats = loader.stats()
    read = json.loads(json.dumps(stats.to_json(), allow_nan=False))
    assert read["epochs"][0]["stages"][0]["name"] == "read"
    assert read["epochs"][0]["queue"]["depth"] == 4
    assert read["epochs"][0]["stall_seconds"] == stats.epochs[0].stall_seconds
    assert read["waits"][-1] == [None, 3]
    assert read["memory_allowed"] == stats.memory_allowed > 0


def test_the_table() -> None:
    """By hand: the text does not depend on a run."""
    stages = (StageStats("read", 1000, 4.0, 80_000_000, 32), StageStats("decode", 1000, 1.5, 300_000_000, 4))
    epoch = EpochStats(
        number=7,
        state="finished",
        batches=10,
        samples=1000,
        seconds=2.5,
        startup_seconds=0.5,
        stall_seconds=0.1,
        stall_median_seconds=0.001,
        stall_p95_seconds=0.02,
        stall_max_seconds=0.05,
        stages=stages,
        queue=QueueFill(4, 3.5, 4.0),
    )
    stats = LoaderStats(
        batches=10,
        samples=1000,
        startup_seconds=0.5,
        stall_seconds=0.1,
        waits=(),
        epochs_begun=1,
        epochs=(epoch, replace(epoch, number=8, state="running", queue=QueueFill(0, 0.0, 0.0))),
        stages=(*stages, StageStats("collate", 1000, 0.25)),
        decoded_by={"headrace": 990, "pillow": 10},
        stale_entries=0,
        failures=(SampleFailure(3, None, "bad", "skipped"),),
        memory_used=20_000_000,
        memory_allowed=1_000_000_000,
        in_flight=4,
        decode_threads=4,
        read_threads=0,
    )
    assert str(stats).splitlines() == [
        "stage        samples    seconds   share   samples/s   x threads         MB",
        "read           1,000      4.000   25.0%         250       8,000       80.0",
        "decode         1,000      1.500   75.0%         667       2,667      300.0",
        "collate        1,000      0.250               4,000       4,000",
        "epoch        samples    seconds   stall   samples/s start-up s median ms    p95 ms    max ms  ready",
        "7              1,000      2.500    5.0%         400      0.500      1.00     20.00     50.00  3.5/4",
        "8+             1,000      2.500    5.0%         400      0.500      1.00     20.00     50.00",
        "(+ running, - stopped before its end)",
        "10 batches, 1,000 samples; decoded by: headrace 990, pillow 10",
        "memory: 20 of 1,000 MB allowed, 4 batches in flight; 4 decode and 0 read threads",
        "1 samples skipped",
    ]


def test_a_sentence_takes_the_place_of_a_table_without_stages() -> None:
    loader = headrace.DataLoader(Slow(), batch_size=20, num_workers=0)
    assert str(loader.stats()).startswith("stages: none measured before the first batch")
    list(loader)
    lines = str(loader.stats()).splitlines()
    assert lines[0].startswith("stages: none measured.")
    assert lines[1].startswith("epoch ")
    assert "2 batches, 40 samples" in lines


@pytest.mark.parametrize("dataset", [Slow(), CountedStream(40)], ids=["samples", "stream"])
def test_worker_processes_report_what_their_samples_took(dataset: Any) -> None:
    loader = headrace.DataLoader(dataset, batch_size=10, num_workers=2)
    for epochs in (1, 2):
        list(loader)
        stages = {stage.name: stage for stage in loader.stats().stages}
        assert {name: (stage.samples, stage.threads) for name, stage in stages.items()} == dict.fromkeys(
            ("python", "render"), (40 * epochs, 2)
        )
        assert all(stage.seconds > 0 for stage in stages.values())
    assert [stage.samples for stage in loader.stats().epochs[1].stages] == [40, 40]
