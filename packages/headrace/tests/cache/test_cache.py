"""One process: what is asked for is there, whole, once, and kept as long as somebody uses its dataset."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.cache import Cache, Claim, Record
from headrace.errors import CacheError, ConfigError, DamagedError
from support.cache_records import BLOCK, bytes_on_disk, content, put, record, states


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    cache = Cache(tmp_path / "cache", 8 * BLOCK)
    yield cache
    cache.close()


def test_a_record_is_fetched_once_and_then_there(cache: Cache) -> None:
    assert cache.claim([record(1), record(1)]) == [Claim("mine"), Claim("other")]
    (path,) = cache.add([record(1)], [content(1)])
    assert path is not None
    assert Path(path).read_bytes() == content(1)
    assert cache.claim([record(1)]) == [Claim("ready", path)]
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.records, stats.bytes) == (1, 1, 1, BLOCK)
    assert cache.claim([]) == cache.add([], []) == []


def test_records_given_up_can_be_claimed_again(cache: Cache) -> None:
    cache.claim([record(1)])
    cache.give_up([record(1), record(2)])
    assert cache.stats().bytes == 0
    assert states(cache, record(1)) == ["mine"]


def test_what_a_live_process_uses_is_kept(tmp_path: Path) -> None:
    """Whoever comes later gets the room of datasets that nobody uses any more, the oldest first."""
    caches = {name: Cache(tmp_path, 4 * BLOCK) for name in ("a", "b", "c")}
    a = put(caches["a"], [0, 1], "a")
    b = put(caches["b"], [0, 1], "b")
    assert states(caches["c"], record(2, dataset="a"), record(2, dataset="c")) == ["full", "full"]
    caches["c"].close()
    for name in ("a", "b"):
        caches[name].close()
    caches["c"] = Cache(tmp_path, 4 * BLOCK)
    for place, when in ((a[0], 1000), (b[0], 2000)):
        assert place is not None
        os.utime(Path(place).parents[1], (when, when))
    put(caches["c"], [0, 1], "c")
    assert not any(path and os.path.exists(path) for path in a)
    assert all(path and os.path.exists(path) for path in b)
    assert caches["c"].stats().evictions == 2
    put(caches["c"], [2], "c")
    assert sum(bool(path) and os.path.exists(str(path)) for path in b) == 1
    caches["c"].close()


def test_a_job_that_is_started_again_finds_what_the_last_one_left(tmp_path: Path) -> None:
    first = Cache(tmp_path, 4 * BLOCK)
    put(first, [0, 1, 2, 3])
    first.close()
    second = Cache(tmp_path, 4 * BLOCK)
    assert states(second, *map(record, (7, 6, 0, 5, 1, 2, 3))) == ["full", "full", "ready", "full"] + 3 * [
        "ready"
    ]
    second.close()


def test_a_record_larger_than_the_cache_is_not_kept_and_evicts_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 8 * BLOCK)
    put(cache, [0])
    cache.close()
    cache = Cache(tmp_path, 8 * BLOCK)
    assert cache.claim([Record("other", "large", 9 * BLOCK, None)]) == [Claim("full")]
    assert states(cache, record(0)) == ["ready"]
    cache.close()


@pytest.mark.parametrize("wrong", [content(2), content(1)[:-1], b""])
def test_wrong_bytes_are_refused_whole(cache: Cache, tmp_path: Path, wrong: bytes) -> None:
    cache.claim([record(0), record(1)])
    with pytest.raises(DamagedError, match=r"1 of 2 records came damaged, as 1: .* instead of") as caught:
        cache.add([record(0), record(1)], [content(0), wrong])
    assert pickle.loads(pickle.dumps(caught.value)).keys == ("1",)
    assert bytes_on_disk(tmp_path / "cache") == 0
    assert all(cache.add([record(0), record(1)], [content(0), content(1)]))


def test_a_record_without_checksum_keeps_that_of_its_first_bytes(tmp_path: Path) -> None:
    unknown = record(1, checksum=False)
    cache = Cache(tmp_path, 8 * BLOCK)
    cache.claim([unknown])
    (path,) = cache.add([unknown], [content(1)])
    assert path is not None
    cache.close()
    cache = Cache(tmp_path, 8 * BLOCK)
    assert cache.claim([unknown]) == [Claim("ready", path)]
    cache.close()
    stored = Path(path).read_bytes()
    assert stored[:3000] == content(1)
    Path(path).write_bytes(content(2) + stored[3000:])
    assert states(Cache(tmp_path, 8 * BLOCK), unknown) == ["mine"]


@pytest.mark.parametrize("harm", ["flip", "cut", "grow", "remove"])
def test_damage_is_noticed_and_fetched_again(tmp_path: Path, harm: str) -> None:
    cache = Cache(tmp_path, 8 * BLOCK)
    path = put(cache, list(range(6)))[5]
    assert path is not None
    cache.close()
    good = content(5)
    if harm == "remove":
        os.unlink(path)
    else:
        damaged = {"flip": bytes([good[0] ^ 1]) + good[1:], "cut": good[:-1], "grow": good + b"\0"}
        Path(path).write_bytes(damaged[harm])
    cache = Cache(tmp_path, 8 * BLOCK)
    assert states(cache, *map(record, range(6))) == ["ready"] * 5 + ["mine"]
    (new,) = cache.add([record(5)], [good])
    assert new is not None
    assert Path(new).read_bytes() == good
    assert (cache.stats().damaged, cache.stats().records) == (harm != "remove", 6)
    assert bytes_on_disk(tmp_path) == cache.stats().bytes
    os.unlink(new)
    assert states(cache, record(5)) == ["mine"], "while the cache is open"
    cache.close()


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 4 * BLOCK)
    path = put(cache, [0, 1, 2, 3])[0]
    assert path is not None
    cache.close()
    places = [tmp_path, tmp_path / "datasets", *list(Path(path).parents)[:2]]
    foreign = [place / name for place in places for name in ("mine.txt", "0", "ffffffff")]
    for file in foreign:
        file.write_text("keep")
    cache = Cache(tmp_path, 4 * BLOCK)
    put(cache, [4, 5, 6, 7], "other")
    cache.close()
    Cache(tmp_path, BLOCK).close()
    assert all(file.read_text() == "keep" for file in foreign)


def test_a_smaller_capacity_than_the_last_time_is_obeyed(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 8 * BLOCK)
    put(cache, list(range(8)))
    cache.close()
    smaller = Cache(tmp_path, 3 * BLOCK)
    assert bytes_on_disk(tmp_path) == smaller.stats().bytes == 3 * BLOCK
    with pytest.raises(ConfigError, match=r"capacity \(4,096\) must be 12,288 bytes, .* process \d+ uses"):
        Cache(tmp_path, BLOCK)
    smaller.close()
    Cache(tmp_path, BLOCK).close()


def test_arguments_that_cannot_be_obeyed(cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"capacity \(4,095\) must be 4,096 bytes or more"):
        Cache(tmp_path, BLOCK - 1)
    with pytest.raises(ConfigError, match=r"add\(\) of a record .* no claim to fetch: 1"):
        cache.add([record(1)], [content(1)])
    cache.close()
    cache.close()
    with pytest.raises(ConfigError, match="was closed"):
        cache.claim([record(1)])
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"can't be used: .*\(.*file\)"):
        Cache(tmp_path / "file", BLOCK)
    (tmp_path / "cache" / "lock").write_text("not the sums that are kept there")
    with pytest.raises(CacheError, match=r"lock isn't of this version .* and delete it"):
        Cache(tmp_path / "cache", 8 * BLOCK)


def test_what_version_0_1_kept_is_removed(tmp_path: Path) -> None:
    for name in ("index.sqlite", "index.lock", "headrace-0123abcd/07/7", "mine"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    Cache(tmp_path, BLOCK).close()
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "clients", "datasets", "mine"}


def test_pickled_it_is_the_same_cache_and_another_client(cache: Cache) -> None:
    put(cache, [1])
    copy = pickle.loads(pickle.dumps(cache))
    assert states(copy, record(1)) == ["ready"]
    copy.close()
    assert cache.stats().records == 1


@pytest.mark.parametrize("end", ["close", "let go"])
def test_what_one_fetches_that_ends_is_fetched_by_the_next(tmp_path: Path, end: str) -> None:
    cache, other = Cache(tmp_path, 2 * BLOCK), Cache(tmp_path, 2 * BLOCK)
    put(cache, [0])
    cache.claim([record(1)])
    assert states(other, record(1), record(2)) == ["other", "full"]
    if end == "close":
        cache.close()
    del cache
    gc.collect()
    assert states(other, record(1), record(2)) == ["mine", "full"]


CAPACITY = 6 * BLOCK
SIZES = (0, 10, 4096, 5000, 8193)  # of 1, 1, 1, 2, 3 blocks
clients = st.integers(0, 2)
numbers = st.lists(st.integers(0, 11), min_size=1, max_size=5)


def of(number: int) -> Record:
    return record(number, SIZES[number % len(SIZES)], dataset="ab"[number % 2])


class Clients(RuleBasedStateMachine):
    """Whatever three clients do, in whatever order: the bound holds, and what was "ready" stays."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.caches = [Cache(self.folder, CAPACITY) for _ in range(3)]
        self.paths: list[set[str]] = [set() for _ in range(3)]  # that were "ready"
        self.mine: list[set[int]] = [set() for _ in range(3)]  # that it is to fetch

    @rule(client=clients, wanted=numbers)
    def claim(self, client: int, wanted: list[int]) -> None:
        fetched = set().union(*self.mine)
        for number, claim in zip(wanted, self.caches[client].claim(list(map(of, wanted))), strict=True):
            if claim.state == "ready":
                assert claim.path is not None
                assert Path(claim.path).read_bytes() == content(number, of(number).size)
                self.paths[client].add(claim.path)
            elif claim.state == "mine":
                assert number not in fetched | self.mine[client], "two fetch it"
                self.mine[client].add(number)
            elif claim.state == "other":
                assert number in fetched | self.mine[client], "nobody fetches it"

    @rule(client=clients, share=st.integers(1, 3))
    def add(self, client: int, share: int) -> None:
        some = sorted(self.mine[client])[::share]
        data = [content(number, of(number).size) for number in some]
        for number, path in zip(some, self.caches[client].add(list(map(of, some)), data), strict=True):
            assert path is not None
            self.paths[client].add(path)
            self.mine[client].discard(number)

    @rule(client=clients)
    def give_up(self, client: int) -> None:
        self.caches[client].give_up(list(map(of, self.mine[client])))
        self.mine[client].clear()

    @rule(client=clients)
    def begin_again(self, client: int) -> None:
        self.caches[client].close()
        self.caches[client] = Cache(self.folder, CAPACITY)
        self.paths[client].clear()
        self.mine[client].clear()

    @invariant()
    def the_bound_holds(self) -> None:
        stats = self.caches[0].stats()
        assert bytes_on_disk(self.folder) <= stats.bytes <= CAPACITY

    @invariant()
    def what_was_ready_is_there(self) -> None:
        assert all(os.path.exists(path) for path in set().union(*self.paths))

    def teardown(self) -> None:
        for cache in self.caches:
            cache.close()
        shutil.rmtree(self.folder)


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=25, stateful_step_count=30)
