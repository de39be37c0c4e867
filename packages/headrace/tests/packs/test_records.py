"""The list of samples to pack: in columns, in the order of the pack, cut into shards."""

from __future__ import annotations

import hashlib
import pickle

import pytest

from headrace.errors import PackError
from headrace.packs.records import Record, Records, make_plan

ODD = [
    Record("n01/plain", 10, 1_700_000_000_000_000_000, 3, ("n01/plain.JPEG", "n01/plain.txt")),
    Record("", 0, 0, 0),
    Record("\u00e9\u4e2d\0binary", 1, -5, (1 << 63) - 1, ("un\udcffdecodable.jpg",)),
]


def numbered(count: int, size: int = 10) -> Records:
    return Records(Record(f"key{i}", size, i, i, (f"{i}.jpg",)) for i in range(count))


def test_records_come_back_as_they_were_given() -> None:
    records = Records(ODD)
    assert list(records) == ODD
    assert [records[i] for i in range(len(ODD))] == ODD
    assert list(records[1:]) == ODD[1:]
    assert list(records[1:][1:]) == ODD[2:]
    with pytest.raises(IndexError):
        records[3]


def test_sizes_and_times_beyond_63_bits_are_limited() -> None:
    (record,) = Records([Record("key", 1 << 64, 1 << 70, 0)])
    assert record.size == record.stamp == (1 << 63) - 1


def test_a_pickled_part_holds_its_own_records_only() -> None:
    whole = numbered(10_000)
    part = whole.shuffled(7)[100:110]
    data = pickle.dumps(part)
    assert len(data) < 2000
    assert list(pickle.loads(data)) == list(part)


def test_a_shuffled_order_is_that_of_the_keys_digests() -> None:
    records = numbered(1000)
    seed = hashlib.sha256(b"7").digest()
    expected = sorted(records, key=lambda record: hashlib.sha256(seed + record.key.encode()).digest())
    assert list(records.shuffled(7)) == expected
    other_way_round = Records(reversed(list(records)))
    assert list(other_way_round.shuffled(7)) == expected
    assert [records.find(f"key{i}") for i in (0, 999)] == [0, 999]
    assert records.find("key1000") is None


def test_plans_cut_records_where_a_shard_would_become_too_large() -> None:
    sizes = [0, 0, 7, 3, 5, 5, 12, 0, 1]
    plan = make_plan(Records(Record(str(i), size, 0, i) for i, size in enumerate(sizes)), 10, None)
    assert [[record.size for record in plan.of(i)] for i in range(plan.shards)] == [
        [0, 0, 7, 3],
        [5, 5],
        [12],
        [0, 1],
    ]
    assert plan.source_bytes == sum(sizes)


def test_digests_tell_keys_sizes_and_times_apart() -> None:
    made = make_plan(numbered(5), 100, None)
    assert make_plan(numbered(5), 100, 3).listing == made.listing
    assert make_plan(numbered(5, size=11), 100, None).listing != made.listing
    later = Records(Record(each.key, each.size, each.stamp + 1, 0) for each in numbered(5))
    assert make_plan(later, 100, None).listing == made.listing
    assert make_plan(later, 100, None).state != made.state


@pytest.mark.parametrize("where", [0, 4, 9])
def test_a_key_that_comes_twice_is_named(where: int) -> None:
    keys = [f"key{i}" for i in range(10)]
    keys.append(keys[where])
    with pytest.raises(PackError, match=rf"have the key '{keys[where]}'"):
        make_plan(Records(Record(key, 1, 0, 0) for key in keys), 10, None)
