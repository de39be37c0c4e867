"""What is in the cache already is kept for the samples of an epoch that need it, from its beginning on."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace import build
from headrace.cache import Cache, Record
from headrace.engine import prefetch
from headrace.remote import expecting
from headrace.remote.expecting import Expecting
from headrace.remote.loop import loop
from support import object_stores as stores
from support.object_stores import PATIENCE
from support.remote_setting import COUNT

Make = Callable[..., headrace.PackedDataset]


def until(condition: Callable[[], bool]) -> None:
    """Waits for `condition`."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it didn't come"
        time.sleep(0.005)


MADE: list[Expecting] = []


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keeps in `MADE` what announces epochs during a test."""
    prepare = Expecting.__init__

    def note(self: Expecting, *arguments: Any) -> None:
        prepare(self, *arguments)
        MADE.append(self)

    monkeypatch.setattr(Expecting, "__init__", note)
    yield
    MADE.clear()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], list[int]]]:
    """What caches are told, in order."""
    seen: list[tuple[list[str], list[int]]] = []
    expect = Cache.expect

    def note(cache: Cache, records: list[Record], positions: list[int]) -> None:
        expect(cache, records, positions)
        seen.append(([record.key for record in records], list(positions)))

    monkeypatch.setattr(Cache, "expect", note)
    return seen


@pytest.fixture
def small(remote: Make, local: headrace.PackedDataset, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Datasets whose cache holds half of them, and that fetch a batch ahead."""
    monkeypatch.setattr(prefetch, "AHEAD_BYTES", 1)
    monkeypatch.setattr(expecting, "FREE_SHARE", 2.0)
    sizes = np.asarray(local.source.extents.sizes, np.int64)
    room = int((-(-sizes // 4096)).sum()) * 4096 // 2
    return lambda: remote(cache_bytes=room)


def records_of(dataset: headrace.PackedDataset) -> Any:
    return dataset.source.access.records()  # type: ignore[attr-defined]


@pytest.fixture
def announced_first(proxy: stores.Proxy) -> None:
    """The store answers once the whole epoch is announced, so that at most two batches are claimed before,
    however late a loaded machine announces it."""

    def wait(_: stores.Request) -> str:
        until(lambda: not at_work())
        return ""

    proxy.behave = wait


def hits_of_an_epoch(dataset: headrace.PackedDataset, local: headrace.PackedDataset, **order: Any) -> int:
    """Samples of an epoch that the cache held; all is announced before the second batch is asked for."""
    torch.manual_seed(5)
    loader = headrace.DataLoader(dataset, batch_size=4, shuffle=True, **order)
    before = records_of(dataset).stats().cache_hits
    count = 0
    batches = iter(loader)
    for images, labels in batches:
        if not count:
            until(lambda: not at_work())
        count += len(labels)
        assert images.shape[0] == len(labels)
    assert count == COUNT
    assert sorted(local.targets) == sorted(dataset.targets)
    return int(records_of(dataset).stats().cache_hits - before)


def at_work() -> list[Expecting]:
    """Those that still announce, or wait for the cache to be full."""
    return [one for one in MADE if not one.work.done()]


@pytest.mark.usefixtures("announced_first")
@pytest.mark.parametrize("order", [{"seed": 9}, {}], ids=["seed", "no seed"])
def test_a_job_that_is_started_again_finds_what_the_last_one_left(
    small: Make, local: headrace.PackedDataset, monkeypatch: pytest.MonkeyPatch, order: dict[str, int]
) -> None:
    found = {}
    for tells in (False, True):
        with monkeypatch.context() as patch:
            if not tells:
                # Nothing is known beyond the batches in flight.
                patch.setattr(build, "Prefetcher", lambda *given: prefetch.Prefetcher(*given[:3]))
            first = small()
            hits_of_an_epoch(first, local, seed=4)
            records_of(first)._cache.close()  # as at the end of its process
            second = small()
            found[tells] = hits_of_an_epoch(second, local, **order)
            records_of(second)._cache.close()
    # Half of it is there, except for what up to four batches in flight replaced.
    assert found[True] >= COUNT // 2 - 4 * 4
    assert found[True] > found[False]


def test_the_rest_of_the_epoch_is_announced_in_order_and_nothing_that_is_passed(
    small: Make, told: list[tuple[list[str], list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expecting, "PIECE", 10)
    dataset = small()
    loader = headrace.DataLoader(dataset, batch_size=4, shuffle=True, seed=3)
    batches = iter(loader)
    next(batches)
    until(lambda: not at_work())
    places = [position for _, positions in told for position in positions]
    assert places == sorted(places)
    assert places[-1] == COUNT - 1
    assert len(set(places)) == len(places) <= COUNT
    order = loader._batches().order.at(np.arange(COUNT), 3, 0)[0]  # type: ignore[union-attr]
    keys = [record.record.key for record in dataset.source.wanted(order)]  # type: ignore[attr-defined]
    assert [key for said, _ in told for key in said] == [keys[place] for place in places]


def uses(dataset: headrace.PackedDataset) -> list[int]:
    """Positions at which records are said to be needed."""
    path = records_of(dataset).folder / "index.sqlite"
    with sqlite3.connect(path) as connection:
        return [row[0] for row in connection.execute("SELECT position FROM uses WHERE pins = 0")]


def test_an_epoch_that_is_left_leaves_no_expectations(
    small: Make, local: headrace.PackedDataset, told: list[tuple[list[str], list[int]]]
) -> None:
    first = small()
    hits_of_an_epoch(first, local, seed=4)
    records_of(first)._cache.close()
    dataset = small()
    loader = headrace.DataLoader(dataset, batch_size=4, shuffle=True)
    batches = iter(loader)
    next(batches)
    until(lambda: not at_work())
    assert len(uses(dataset)) > COUNT // 4
    del batches
    until(lambda: not uses(dataset))
    assert records_of(dataset).position == COUNT
    told.clear()
    batches = iter(loader)
    next(batches)
    until(lambda: not at_work())
    places = [position for _, positions in told for position in positions]
    assert min(places) >= COUNT
    assert max(places) == 2 * COUNT - 1


def test_nothing_is_announced_while_there_is_room(
    remote: Make, told: list[tuple[list[str], list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expecting, "LOOK_SECONDS", 0.01)
    dataset = remote()
    for _ in range(2):
        loader = headrace.DataLoader(dataset, batch_size=4, shuffle=True)
        assert sum(len(labels) for _, labels in loader) == COUNT
    until(lambda: not at_work())
    assert told == []


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    made = Cache(tmp_path, 10 * 4096)
    yield made
    made.close()


def test_a_cache_that_fails_ends_it_and_claims_report_why(cache: Cache) -> None:
    calls: list[str] = []

    async def on_disk(work: Callable[..., Any], *arguments: Any) -> Any:
        calls.append(work.__name__)
        raise headrace.errors.CacheError("the disk is gone")

    telling = Expecting(loop(), on_disk, cache, lambda first, count: [], 0)
    telling.work.result(PATIENCE)
    assert telling.end() == 0
    assert calls == ["_evicts"]
