"""One process: what is asked for is there, whole, once."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cache import Cache, Claim, Record
from headrace.errors import CacheError, ConfigError, DamagedError
from support.cache_records import BLOCK, bytes_on_disk, content, put, record, states


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    cache = Cache(tmp_path / "cache", 8 * BLOCK)
    yield cache
    cache.close()


def test_a_record_is_fetched_once_and_then_there(cache: Cache) -> None:
    assert cache.claim([record(1)], [0]) == [Claim("mine")]
    assert cache.claim([record(1)], [0]) == [Claim("other")]
    (path,) = cache.add([record(1)], [content(1)])
    assert path is not None
    assert Path(path).read_bytes() == content(1)
    assert cache.claim([record(1)], [1]) == [Claim("ready", path)]
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.records, stats.bytes) == (1, 1, 1, BLOCK)


def test_a_record_twice_in_a_claim_is_fetched_once(cache: Cache) -> None:
    assert [claim.state for claim in cache.claim([record(1), record(1)], [0, 1])] == ["mine", "other"]


def test_records_given_up_can_be_claimed_again(cache: Cache) -> None:
    cache.claim([record(1)], [0])
    cache.give_up([record(1), record(2)])
    assert cache.stats().bytes == 0
    assert states(cache, [1]) == ["mine"]


def test_pinned_records_are_not_evicted(cache: Cache) -> None:
    paths = put(cache, list(range(8)))
    assert states(cache, [8]) == ["full"]
    assert all(path and os.path.exists(path) for path in paths)
    cache.release([record(3)], [None])
    assert states(cache, [8]) == ["mine"]
    assert cache.stats().evictions == 1
    assert [path and os.path.exists(path) for path in paths] == [number != 3 for number in range(8)]


def test_a_pin_lasts_as_long_as_the_last_claim(cache: Cache) -> None:
    put(cache, [0])
    cache.claim([record(0)], [1])
    put(cache, list(range(1, 8)))
    cache.release([record(0)], [None])
    assert states(cache, [8]) == ["full"]
    cache.release([record(0)], [None])
    assert states(cache, [8]) == ["mine"]


def test_a_record_larger_than_the_cache_is_not_kept_and_evicts_nothing(cache: Cache) -> None:
    put(cache, [0])
    cache.release([record(0)], [None])
    large = Record("large", 9 * BLOCK, None)
    assert cache.claim([large], [0]) == [Claim("full")]
    assert states(cache, [0]) == ["ready"]


def test_empty_records_take_a_block(cache: Cache) -> None:
    empty = Record("empty", 0, 0)
    cache.claim([empty], [0])
    (path,) = cache.add([empty], [b""])
    assert path is not None
    assert Path(path).read_bytes() == b""
    assert cache.stats().bytes == BLOCK
    assert cache.claim([empty], [0]) == [Claim("ready", path)]


@pytest.mark.parametrize("wrong", [content(2), content(1)[:-1], b""])
def test_wrong_bytes_are_refused_whole(cache: Cache, tmp_path: Path, wrong: bytes) -> None:
    cache.claim([record(0), record(1)], [0, 0])
    with pytest.raises(
        DamagedError, match=r"1 of 2 records came damaged, as memory/1: .* instead of"
    ) as caught:
        cache.add([record(0), record(1)], [content(0), wrong])
    assert caught.value.keys == ("memory/1",)
    assert pickle.loads(pickle.dumps(caught.value)).keys == ("memory/1",)
    assert bytes_on_disk(tmp_path / "cache") == 0
    assert all(cache.add([record(0), record(1)], [content(0), content(1)]))


def test_a_record_without_checksum_keeps_that_of_its_first_bytes(tmp_path: Path) -> None:
    unknown = record(1, checksum=False)
    cache = Cache(tmp_path, 8 * BLOCK)
    cache.claim([unknown], [0])
    (path,) = cache.add([unknown], [content(1)])
    assert path is not None
    cache.close()
    cache = Cache(tmp_path, 8 * BLOCK)
    assert cache.claim([unknown], [0]) == [Claim("ready", path)]
    cache.close()
    Path(path).write_bytes(content(2))
    cache = Cache(tmp_path, 8 * BLOCK)
    assert cache.claim([unknown], [0]) == [Claim("mine")]


@pytest.mark.parametrize("harm", ["flip", "cut", "grow", "remove"])
@pytest.mark.parametrize("number", [0, 5])
def test_damage_is_noticed_and_fetched_again(tmp_path: Path, harm: str, number: int) -> None:
    cache = Cache(tmp_path, 8 * BLOCK)
    path = put(cache, list(range(6)))[number]
    assert path is not None
    cache.close()
    damaged = {
        "flip": bytes([content(number)[0] ^ 1]) + content(number)[1:],
        "cut": content(number)[:-1],
        "grow": content(number) + b"\0",
    }
    if harm == "remove":
        os.unlink(path)
    else:
        Path(path).write_bytes(damaged[harm])
    cache = Cache(tmp_path, 8 * BLOCK)
    found = cache.claim([record(n) for n in range(6)], list(range(6)))
    assert [claim.state for claim in found] == ["mine" if n == number else "ready" for n in range(6)]
    (new,) = cache.add([record(number)], [content(number)])
    assert new is not None
    assert Path(new).read_bytes() == content(number)
    assert (cache.stats().damaged, cache.stats().records) == (1, 6)
    assert bytes_on_disk(tmp_path) == cache.stats().bytes


def test_a_damaged_record_pinned_by_another_is_fetched_without_keeping(tmp_path: Path) -> None:
    """Its file can't be taken away from that other one."""
    cache, other = Cache(tmp_path, 8 * BLOCK), Cache(tmp_path, 8 * BLOCK)
    (path,) = put(cache, [1])
    assert path is not None
    Path(path).write_bytes(content(2))
    assert other.claim([record(1)], [0]) == [Claim("full")]
    assert Path(path).exists()
    cache.release([record(1)], [7])
    assert other.claim([record(1)], [0]) == [Claim("mine")]


def test_a_file_that_vanishes_while_the_cache_is_open_is_noticed(cache: Cache) -> None:
    (path,) = put(cache, [1])
    assert path is not None
    cache.release([record(1)], [None])
    os.unlink(path)
    assert cache.claim([record(1)], [0]) == [Claim("mine")]


def test_a_record_that_has_another_checksum_now_is_fetched_again(cache: Cache) -> None:
    put(cache, [1])
    cache.release([record(1)], [None])
    changed = record(1)._replace(checksum=7)
    assert cache.claim([changed], [0]) == [Claim("mine")]


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 4 * BLOCK)
    paths = put(cache, [0, 1, 2, 3])
    assert paths[0] is not None
    places = [tmp_path, Path(paths[0]).parent, Path(paths[0]).parent.parent]
    foreign = [place / name for place in places for name in ("mine.txt", "0", "ffffffff")]
    for path in foreign:
        path.write_text("keep")
    for number in range(4):
        cache.release([record(number)], [None])
    for number in range(4, 40):
        put(cache, [number])
        cache.release([record(number)], [None])
    cache.close()
    Cache(tmp_path, BLOCK).close()
    assert all(path.read_text() == "keep" for path in foreign)


def test_a_smaller_capacity_than_the_last_time_is_obeyed(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 8 * BLOCK)
    put(cache, list(range(8)))
    cache.release([record(n) for n in range(8)], list(range(8)))
    cache.close()
    smaller = Cache(tmp_path, 3 * BLOCK)
    assert bytes_on_disk(tmp_path) == smaller.stats().bytes == 3 * BLOCK


def test_two_that_live_agree_on_the_capacity(tmp_path: Path) -> None:
    first = Cache(tmp_path, 8 * BLOCK)
    with pytest.raises(ConfigError, match=r"capacity \(4,096\) must be 32,768 bytes, .* process \d+ uses"):
        Cache(tmp_path, BLOCK)
    first.close()
    Cache(tmp_path, BLOCK)


def test_arguments_that_cannot_be_obeyed(cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"capacity \(4,095\) must be 4,096 bytes or more"):
        Cache(tmp_path, BLOCK - 1)
    with pytest.raises(ConfigError, match=r"add\(\) of a record .* no claim to fetch: memory/1"):
        cache.add([record(1)], [content(1)])
    put(cache, [1])
    with pytest.raises(ConfigError, match=r"release\(\) of a record .* hasn't pinned: memory/1"):
        cache.release([record(1), record(1)], [None, None])
    cache.release([record(1)], [None])
    with pytest.raises(ConfigError, match="hasn't pinned"):
        cache.release([record(1)], [None])
    cache.close()
    cache.close()
    with pytest.raises(ConfigError, match="was closed"):
        cache.claim([record(1)], [0])


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"can't make its folder .*file"):
        Cache(tmp_path / "file", BLOCK)
    (tmp_path / "index.sqlite").write_text("not a database, but long enough to be looked at as one" * 100)
    with pytest.raises(CacheError, match=r"index .*index\.sqlite can't be used .* delete the folder"):
        Cache(tmp_path, BLOCK)


def test_no_records_are_no_claims(cache: Cache) -> None:
    assert cache.claim([], []) == []
    assert cache.add([], []) == []
    cache.release([], [])


def test_pickled_it_is_the_same_cache_and_another_client(cache: Cache) -> None:
    put(cache, [1])
    copy = pickle.loads(pickle.dumps(cache))
    assert copy.claim([record(1)], [0])[0].state == "ready"
    copy.close()
    assert cache.stats().records == 1


def test_pins_of_a_closed_cache_are_released(tmp_path: Path) -> None:
    cache, other = Cache(tmp_path, 2 * BLOCK), Cache(tmp_path, 2 * BLOCK)
    put(cache, [0])
    cache.claim([record(1)], [0])
    assert other.claim([record(1), record(2)], [0, 0]) == [Claim("other"), Claim("full")]
    cache.close()
    assert other.claim([record(1), record(2)], [0, 0]) == [Claim("mine"), Claim("mine")]


def test_one_that_is_let_go_without_closing_is_like_a_dead_one(tmp_path: Path) -> None:
    cache, other = Cache(tmp_path, 2 * BLOCK), Cache(tmp_path, 2 * BLOCK)
    put(cache, [0])
    cache.claim([record(1)], [0])
    del cache
    gc.collect()
    assert other.claim([record(1), record(2)], [0, 0]) == [Claim("mine"), Claim("mine")]
