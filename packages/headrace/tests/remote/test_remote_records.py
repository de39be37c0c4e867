"""Records of a store in memory: each by itself, each once, each given back."""

from __future__ import annotations

import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.errors import PackError, RemoteError
from headrace.sources.pack_index import Shard
from headrace.sources.remote import RemotePackSource
from headrace.sources.stores.access import Access
from headrace.sources.stores.cache import Cache, Record
from headrace.sources.stores.client import Answer
from headrace.sources.stores.lease import Wanted
from headrace.sources.stores.threads import Threads
from support.jpegs import image_folder
from support.memory_store import ROOT, MemoryStore, access_to, lead_to, store_of
from support.pack_folders import change_index
from support.remote_setting import TRANSFORM

SIZE = 4096


def data_of(number: int) -> bytes:
    return bytes([number]) * SIZE


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore({"x": b"".join(map(data_of, range(64)))})


def test_a_record_that_stays_damaged_costs_no_other(store: MemoryStore, tmp_path: Path) -> None:
    """They come by one request: damaged all at first, then one."""

    def change(name: str, start: int, data: bytes) -> bytes:
        return b"?" * len(data) if len(data) > SIZE or start == SIZE else data

    store.change = change
    records = access_to(store, tmp_path).records()
    places = [
        Wanted(f"{ROOT}/x", SIZE * n, SIZE, Record("x", f"{n}", SIZE, zlib.crc32(data_of(n))))
        for n in range(3)
    ]
    lease = records.begin(places).arrived()
    assert list(lease.errors) == [1]
    assert f"bytes {SIZE:,} to {2 * SIZE - 1:,} of s3://bucket/x can't be used" in str(lease.errors[1])
    assert [lease.read(number) for number in (0, 2)] == [data_of(0), data_of(2)]
    lease.release()


def test_an_empty_object_is_an_image_that_cannot_be_read(tmp_path: Path) -> None:
    pictures = image_folder(tmp_path / "pictures", 2, side=40)
    empty = MemoryStore({"full.jpg": next(pictures.rglob("*.jpg")).read_bytes(), "empty.jpg": b""})
    urls = [f"{ROOT}/empty.jpg", f"{ROOT}/full.jpg"]
    dataset = headrace.ImageDataset(urls, transform=TRANSFORM, cache_dir=tmp_path / "c", cache_bytes=1 << 20)
    lead_to(empty, dataset.source.access)  # type: ignore[attr-defined]
    loader = headrace.DataLoader(dataset, 2, on_error="skip")
    [(images, _)] = list(loader)
    assert len(images) == 1
    [failure] = loader.stats().failures
    assert (failure.index, "cannot identify image file" in failure.cause) == (0, True)
    assert empty.requests == 3  # two sizes, and one object


def test_records_that_one_thread_holds_are_its_own(store: MemoryStore, tmp_path: Path) -> None:
    """The cache has room for one: what else nobody holds is requested."""
    records = access_to(store, tmp_path, capacity=SIZE).records()
    places = [
        Wanted(f"{ROOT}/x", SIZE * n, SIZE, Record("x", f"{n}", SIZE, zlib.crc32(data_of(n))))
        for n in range(6)
    ]

    def hold_others() -> None:
        with records.holding(places[3:]):
            assert [records.read(each) for each in places[3:]] == [data_of(n) for n in range(3, 6)]

    with records.holding(places[:3]):
        other = threading.Thread(target=hold_others)
        other.start()
        other.join()
        before = store.requests
        assert [records.read(each) for each in places[:3]] == [data_of(n) for n in range(3)]
        assert store.requests == before
    assert records.read(places[0]) == data_of(0)


def test_sizes_and_versions_of_single_objects_take_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sources.stores.records.MOST_REMEMBERED", 3)
    store = MemoryStore({f"{n}.jpg": data_of(n) for n in range(8)})
    records = access_to(store, tmp_path).records()
    objects = [Wanted(f"{ROOT}/{n}.jpg", 0, None, None) for n in range(8)]
    for number, each in enumerate(objects):
        assert records.read(each) == data_of(number)
    assert len(records._remembered) == 3
    before = store.requests
    assert [records.read(objects[n]) for n in (7, 0)] == [data_of(7), data_of(0)]
    assert store.requests == before + 1  # the size of 0; both are in the cache


def test_a_store_that_tells_no_size_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not 100 bad samples."""

    def fail(name: str) -> Answer:
        raise RemoteError(f"{name} can't be read") from OSError("503")

    store = MemoryStore({})
    monkeypatch.setattr(store, "head", fail)
    urls = [f"{ROOT}/{n}.jpg" for n in range(100)]
    dataset = headrace.ImageDataset(urls, transform=TRANSFORM, cache_dir=tmp_path, cache_bytes=1 << 20)
    lead_to(store, dataset.source.access)  # type: ignore[attr-defined]
    with pytest.raises(RemoteError, match=r"jpg can't be read"):
        list(headrace.DataLoader(dataset, 1, on_error="skip"))


def test_objects_of_unknown_sizes_count_as_much_as_the_others(tmp_path: Path) -> None:
    """The bytes that are fetched ahead are bounded by them."""
    records = access_to(MemoryStore({"large.jpg": bytes(8 << 20)}), tmp_path).records()
    large = Wanted(f"{ROOT}/large.jpg", 0, None, None)
    assert records.begin([large]).arrived().nbytes == 2 << 20
    assert records.begin([large, large]).arrived().nbytes == 2 * (8 << 20)


def test_a_system_that_allows_no_more_threads_is_an_error(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a wait without end."""
    start = threading.Thread.start
    requests = Threads(1, "refused")

    def refuse(thread: threading.Thread) -> None:
        if thread.name == requests.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr("headrace.sources.stores.records.requests", requests)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    lease = access_to(store, tmp_path).records().begin([Wanted(f"{ROOT}/x", 0, 9, Record("x", "0", 9, None))])
    with pytest.raises(RuntimeError, match="new thread"):
        lease.arrived()


def test_a_stopped_process_is_waited_for_within_limits(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sources.stores.records.PATIENCE", 0.1)
    access = access_to(store, tmp_path)
    stopped = Cache(tmp_path / "records", access.records().capacity)
    record = Record("x", "0", SIZE, None)
    assert stopped.claim([record])[0].state == "mine"
    assert access.records().read(Wanted(f"{ROOT}/x", 0, SIZE, record)) == data_of(0)
    stopped.close()


def test_the_default_capacity_survives_a_power_failure(tmp_path: Path) -> None:
    (tmp_path / "records.bytes").touch()
    capacity = Access(f"{ROOT}/pack", {}, tmp_path, None).records().capacity
    assert capacity == int((tmp_path / "records.bytes").read_text()) > 4096


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """In a folder of its own."""
    source = image_folder(tmp_path / "pictures", 6, side=40)
    (tmp_path / "bucket").mkdir()
    return Path(headrace.pack(source, tmp_path / "bucket" / "pack").path)


def remote_source(pack: Path, cache: Path) -> RemotePackSource:
    return RemotePackSource.at(f"{ROOT}/pack", access_to(store_of(pack.parent), cache))


def remote_dataset(pack: Path, cache: Path) -> headrace.PackedDataset:
    dataset = headrace.PackedDataset(pack, TRANSFORM)
    dataset.source = remote_source(pack, cache)
    return dataset


@pytest.mark.parametrize("name", ["../secret.tar", "/etc/passwd", "a/../../secret.tar"])
def test_an_index_names_no_object_outside_its_folder(
    name: str, pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the user's cache, too, where indexes of the user's own making are trusted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    change_index(pack, shards=(Shard(name, 14),))
    with pytest.raises(PackError, match="outside of its folder"):
        remote_source(pack, tmp_path / "headrace")


@pytest.mark.parametrize(
    "columns",
    [
        {"offset": [(1 << 64) - 1] * 6},
        {"offset": [1 << 40] * 6},
        {"size": [(1 << 64) - 1] * 6},
        {"size": [1 << 29] * 6},
        {"shard": [7] * 6},
        {"shard": [(1 << 32) - 1] * 6},
    ],
    ids=str,
)
def test_places_outside_of_shards_are_pack_errors(
    columns: dict[str, list[int]], pack: Path, tmp_path: Path
) -> None:
    change_index(pack, **columns)
    dataset = remote_dataset(pack, tmp_path / "cache")
    with pytest.raises(PackError, match="row 0 is in none of its shards"):
        dataset.source.open(0)
    with pytest.raises(PackError, match="row 0 is in none of its shards"):
        next(iter(headrace.DataLoader(dataset, 3)))


def test_rows_at_the_end_of_a_shard_are_accepted(pack: Path, tmp_path: Path) -> None:
    """The last byte of a shard is in it; another folder's index isn't looked for."""
    source = remote_source(pack, tmp_path / "cache")
    last = int(np.argmax(source.extents.begins))
    size = int(source.index.about.shards[0].size - source.extents.begins[last])
    change_index(pack, size=[size if i == last else 1 for i in range(6)], checksum=[0] * 6)
    again = remote_source(pack, tmp_path / "other")
    assert again.wanted([last])[0].size == size
    with pytest.raises(RemoteError, match="checksum"):
        again.open(last)
