"""What a loader counts: per epoch and in all, from any thread, and in forked children."""

from __future__ import annotations

import gc
import os
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from headrace.engine import meter as meter_module
from headrace.engine.meter import KEPT_EPOCHS, Meter
from headrace.records import NativeStats


class Clock:
    """In place of the `time` module: a clock that advances when it is asked to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def perf_counter_ns(self) -> int:
        return round(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(meter_module, "time", clock)
    return clock


NATIVE = NativeStats(
    samples=10,
    failed=0,
    bytes_read=1000,
    pixels_decoded=500,
    stale_entries=0,
    nanoseconds={"read": 2_000_000_000, "decode": 4_000_000_000},
    decoded_by={"headrace": 10},
    decode_threads=4,
    read_threads=0,
)


class Pool:
    """In place of native threads."""

    totals = NATIVE

    def stats(self) -> NativeStats:
        return self.totals


def test_the_first_wait_is_start_up_and_all_others_are_stall(clock: Clock) -> None:
    meter = Meter()
    epoch = meter.begin_epoch(3)
    for wait, step in ((2.0, 0.5), (0.25, 0.5), (0.0, 0.5), (1.0, 0.5)):
        clock.now += wait
        epoch.received(samples=8, asked=clock.now - wait, in_flight=4, ready=1, depth=4)
        clock.now += step
    (running,) = meter.epochs()
    assert (running.number, running.state) == (3, "running")
    assert running.seconds == pytest.approx(4.75), "up to the batch received last"
    epoch.end(finished=True)
    (stats,) = meter.epochs()
    assert stats.state == "finished"
    assert stats.seconds == pytest.approx(5.25)
    assert stats.startup_seconds == pytest.approx(2.0)
    assert stats.stall_seconds == pytest.approx(1.25)
    assert stats.stall_share == pytest.approx(1.25 / 3.25)
    assert stats.stall_median_seconds == pytest.approx(0.25, rel=0.04)
    assert stats.stall_p95_seconds == pytest.approx(1.0, rel=0.04)
    assert stats.stall_max_seconds == 1.0
    assert (stats.batches, stats.samples) == (4, 32)
    assert stats.batches_per_second == pytest.approx(4 / 5.25)
    assert stats.samples_per_second == pytest.approx(32 / 5.25)
    assert (stats.queue.ready, stats.queue.in_flight) == (1.0, 4.0)
    assert (meter.batches, meter.samples, meter.waits.count) == (4, 32, 3)
    assert meter.startup_seconds == pytest.approx(2.0)


def test_an_epoch_ends_once_and_does_not_change_afterwards(clock: Clock) -> None:
    meter = Meter()
    epoch = meter.begin_epoch(0)
    epoch.received(samples=1, asked=clock.now)
    clock.now += 1
    epoch.end(finished=False)
    before = meter.epochs()
    assert before[0].state == "stopped"
    assert before[0].seconds == 0.0, "nobody knows what the time after the last batch was spent on"
    clock.now += 1
    epoch.end(finished=True)
    meter.add("collate", 5, 1.0)
    assert meter.epochs() == before


def test_an_iterator_that_is_dropped_late_ends_its_own_epoch() -> None:
    meter = Meter()
    first = meter.begin_epoch(0)
    second = meter.begin_epoch(1)
    first.end(finished=False)
    second.received(samples=2, asked=time.perf_counter())
    assert [epoch.state for epoch in meter.epochs()] == ["stopped", "running"]
    assert [epoch.samples for epoch in meter.epochs()] == [0, 2]


def test_an_epochs_stages_are_the_difference_of_totals() -> None:
    pool, meter = Pool(), Meter()
    meter.count_native(pool.stats)
    meter.add("pillow", 3, 1.5, threads=2)
    meter.add("transfer", 64, 0.5, nbytes=1000)
    epoch = meter.begin_epoch(0)
    meter.add("pillow", 2, 0.5, threads=2)
    meter.add("transfer", 64, 0.25, nbytes=500)
    nanoseconds = {"read": 3_000_000_000, "decode": 9_000_000_000}
    pool.totals = replace(NATIVE, samples=30, bytes_read=5000, pixels_decoded=800, nanoseconds=nanoseconds)
    epoch.end(finished=True)
    pool.totals = replace(NATIVE, samples=99)
    by_name = {stage.name: stage for stage in meter.epochs()[0].stages}
    assert list(by_name) == ["read", "decode", "pillow", "transfer"]
    assert (by_name["read"].samples, by_name["read"].seconds, by_name["read"].bytes) == (20, 1.0, 4000)
    assert (by_name["decode"].seconds, by_name["decode"].bytes) == (5.0, 900)
    assert by_name["decode"].samples_per_second == 4.0
    assert by_name["decode"].supply == 16.0
    assert (by_name["pillow"].samples, by_name["pillow"].seconds) == (2, 0.5)
    assert by_name["transfer"].bytes_per_second == 2000
    assert {stage.name: stage.samples for stage in meter.stages()}["pillow"] == 5


def test_threads_that_count_from_zero_again_give_no_negative_costs() -> None:
    pool, meter = Pool(), Meter()
    meter.count_native(pool.stats)
    epoch = meter.begin_epoch(0)
    pool.totals = replace(NATIVE, samples=4, nanoseconds={"read": 1_000_000_000, "decode": 1_000_000_000})
    epoch.end(finished=True)
    assert [(stage.samples, stage.seconds) for stage in meter.epochs()[0].stages] == [(4, 1.0), (4, 1.0)]


def test_only_the_latest_epochs_are_kept_and_all_are_counted() -> None:
    meter = Meter()
    for number in range(KEPT_EPOCHS + 5):
        epoch = meter.begin_epoch(number)
        epoch.received(samples=1, asked=time.perf_counter())
        epoch.end(finished=True)
    assert [epoch.number for epoch in meter.epochs()] == list(range(5, KEPT_EPOCHS + 5))
    assert meter.samples == meter.epochs_begun == KEPT_EPOCHS + 5


def test_without_a_depth_there_is_no_queue() -> None:
    meter = Meter()
    meter.begin_epoch(0).received(samples=1, asked=time.perf_counter())
    assert meter.epochs()[0].queue.depth == 0
    assert meter.epochs()[0].queue.ready == 0


def test_threads_add_up_while_others_read() -> None:
    meter = Meter()
    running = True

    def read() -> None:
        while running:
            for epoch in meter.epochs():
                assert epoch.samples == 3 * epoch.batches
                assert epoch.queue.ready == (1.0 if epoch.batches else 0.0)

    def write(number: int) -> None:
        epoch = meter.begin_epoch(number)
        for _ in range(3000):
            epoch.received(samples=3, asked=time.perf_counter() - 1e-3, in_flight=2, ready=1, depth=2)
            meter.add("pillow", 1, 0.5)
        epoch.end(finished=True)

    failures: list[threading.ExceptHookArgs] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        reader = threading.Thread(target=read)
        writers = [threading.Thread(target=write, args=(i,)) for i in range(4)]
        for thread in (reader, *writers):
            thread.start()
        for writer in writers:
            writer.join()
        running = False
        reader.join()
    finally:
        threading.excepthook = hook
    assert not failures
    assert (meter.batches, meter.samples, meter.waits.count) == (12_000, 36_000, 12_000 - 4)
    assert [(stage.samples, stage.seconds) for stage in meter.stages()] == [(12_000, 6000.0)]


def test_an_epoch_may_end_inside_a_collection_of_the_thread_that_holds_the_lock() -> None:
    meter = Meter()

    class Iterator:
        def __init__(self) -> None:
            self.epoch = meter.begin_epoch(0)
            self.cycle = self

        def __del__(self) -> None:
            self.epoch.end(finished=False)

    Iterator()
    with meter.lock:
        gc.collect()
    assert meter.epochs()[0].state == "stopped"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_another_thread_reads_leaves_a_meter_that_works() -> None:
    meter = Meter()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with meter.lock:
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        done = threading.Thread(
            target=lambda: meter.begin_epoch(0).received(samples=1, asked=time.perf_counter())
        )
        done.daemon = True
        done.start()
        done.join(20)
        os._exit(0 if meter.samples == 1 else 1)
    release.set()
    holder.join()
    assert os.waitpid(child, 0)[1] == 0


def test_what_is_timed_is_counted_even_if_it_fails() -> None:
    meter = Meter()
    with suppress(ValueError), meter.timed("collate", 4):
        time.sleep(0.002)
        raise ValueError("bad")
    (stage,) = meter.stages()
    assert (stage.name, stage.samples) == ("collate", 4)
    assert stage.seconds >= 0.002
