"""Ranges, waits, limits and URLs, without a store."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import thread as executors
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.remote.client import is_url, store_and_name
from headrace.remote.failures import Retry
from headrace.remote.lease import LEAST_GAP, WASTE, coalesce
from headrace.remote.reader import LEAST, Limit
from headrace.remote.records import Records

READS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 10_000), st.integers(1, 2_000)), max_size=30)


@given(READS, st.integers(0, 3_000), st.integers(1_000, 20_000))
def test_ranges_hold_every_read_once_and_stay_within_their_bounds(
    reads: list[tuple[str, int, int]], gap: int, most: int
) -> None:
    ranges = coalesce(reads, gap, most)
    assert sorted(i for part in ranges for i in part.parts) == list(range(len(reads)))
    for part in ranges:
        for i in part.parts:
            name, start, size = reads[i]
            assert part.name == name
            assert part.start <= start
            assert start + size <= part.stop
        assert part.nbytes <= max(most, *(reads[i][2] for i in part.parts))
    assert [min(part.parts) for part in ranges] == sorted(min(part.parts) for part in ranges)


def test_neighbours_are_one_request_and_strangers_are_not() -> None:
    size = 100_000
    near, far = size + LEAST_GAP, 10 * size
    assert [p.parts for p in coalesce([("a", far, size), ("a", 0, size), ("a", near, size)], 0, far)] == [
        (0,),
        (1, 2),
    ]
    reads = [("a", 0, size), ("a", size + 2 * size // WASTE, size)]
    assert len(coalesce(reads, size, far)) == 1
    assert len(coalesce(reads, LEAST_GAP, far)) == 2
    assert len(coalesce([("a", 0, size), ("b", 0, size)], size, far)) == 2


def test_waits_double_up_to_a_bound_and_are_drawn_from_zero_on() -> None:
    retry = Retry(tries=9, first_seconds=0.1, base=2, most_seconds=1.0)
    draw = random.Random(1)
    for failed, most in ((1, 0.1), (2, 0.2), (4, 0.8), (5, 1.0), (8, 1.0)):
        waits = [retry.wait(failed, draw) for _ in range(500)]
        assert 0 <= min(waits) < 0.1 * most
        assert 0.9 * most < max(waits) <= most


def test_retries_are_configured_as_in_obstore() -> None:
    given = {"max_retries": 2, "backoff": {"init_backoff": timedelta(seconds=1), "max_backoff": 4, "base": 3}}
    assert Retry.from_options(given) == Retry(3, 1.0, 3.0, 4.0)
    assert Retry.from_options(None) == Retry()
    with pytest.raises(ConfigError, match="max_retries"):
        Retry.from_options({"max_retries": -1})


def simulate(limit: Limit, slots: int, latency: float, rounds: int, nbytes: int = 100_000) -> None:
    """A store that serves `slots` requests at a time, each in `latency`: more than that only wait."""
    now = 0.0
    for _ in range(rounds):
        at_once = limit.now
        seconds = latency * max(1.0, at_once / slots)
        for i in range(at_once):
            limit.done(now + seconds * (i + 1) / at_once, nbytes, latency, seconds, saturated=True)
        now += seconds


@pytest.mark.parametrize("slots", [4, 30, 100])
def test_the_limit_finds_the_capacity_of_the_store(slots: int) -> None:
    limit = Limit()
    simulate(limit, slots, 0.03, 200)
    assert slots / 2 <= limit.now <= max(4 * slots, 16)


def test_the_limit_stays_while_nothing_waits_and_falls_when_the_store_refuses() -> None:
    limit = Limit()
    for i in range(1000):
        limit.done(float(i), 1000, 0.03, 0.01, saturated=False)
    assert limit.now == Limit().now
    assert limit.gap(1 << 20) == pytest.approx(0.03 * 100_000, rel=0.01)
    for _ in range(10):
        limit.refused()
    assert limit.now == LEAST


@pytest.mark.parametrize(
    ("url", "root", "name"),
    [
        ("s3://bucket/a/b.tar", "s3://bucket", "a/b.tar"),
        ("gs://bucket/b", "gs://bucket", "b"),
        ("az://account/container/a/b", "az://account/container", "a/b"),
        ("https://host:8/a/b", "https://host:8", "a/b"),
    ],
)
def test_urls_name_a_store_and_an_object(url: str, root: str, name: str) -> None:
    assert is_url(url)
    assert store_and_name(url) == (root, name)


def test_other_strings_than_urls_are_paths() -> None:
    assert not any(map(is_url, ("/a/b", "a:b", "file:///a", "C://x", b"s3://a/b", None)))
    with pytest.raises(ConfigError, match="query"):
        store_and_name("https://host/a?signature=1")


def test_records_may_be_collected_in_the_middle_of_anything(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    made = [Records({}, tmp_path, 1 << 20)]

    def collected_while_a_task_is_handed_over() -> None:
        with executors._global_shutdown_lock:  # as the collector found it, in a thread that was in submit()
            made.clear()

    thread = threading.Thread(target=collected_while_a_task_is_handed_over, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_disk_work_is_awaited_however_often_it_is_cancelled(tmp_path: Path) -> None:
    records = Records({}, tmp_path, 1 << 20)
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(60)
        ended.set()

    async def cancel() -> None:
        task = asyncio.create_task(records._on_disk(work))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    try:
        asyncio.run(cancel())
    finally:
        go_on.set()
