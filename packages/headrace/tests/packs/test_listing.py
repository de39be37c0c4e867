"""The list of samples to pack: in columns, in the order of the pack, cut into shards."""

from __future__ import annotations

import hashlib
import pickle

from headrace.packs.samples import Item, Listing, make_layout

ODD = [
    Item("n01/plain", 10, 1_700_000_000_000_000_000, 3, ("n01/plain.JPEG", "n01/plain.txt")),
    Item("", 0, 0, 0),
    Item("\u00e9\u4e2d\0binary", 1, -5, (1 << 63) - 1, ("un\udcffdecodable.jpg",)),
]


def numbered(count: int, size: int = 10) -> Listing:
    return Listing.of(Item(f"key{i}", size, i, i, (f"{i}.jpg",)) for i in range(count))


def test_items_come_back_as_they_were_given() -> None:
    items = Listing.of(ODD)
    assert list(items) == ODD
    assert list(items[1:]) == ODD[1:]
    assert list(items[1:][1:]) == ODD[2:]
    assert list(items.take([2, 0])) == [ODD[2], ODD[0]]


def test_sizes_and_times_beyond_63_bits_are_limited() -> None:
    (item,) = Listing.of([Item("key", 1 << 64, 1 << 70, 0)])
    assert item.size == item.stamp == (1 << 63) - 1


def test_a_pickled_part_holds_its_own_items_only() -> None:
    whole = numbered(10_000)
    part = whole.shuffled(7)[100:110]
    data = pickle.dumps(part)
    assert len(data) < 2000
    assert list(pickle.loads(data)) == list(part)


def test_a_shuffled_order_is_that_of_the_keys_digests() -> None:
    items = numbered(1000)
    seed = hashlib.sha256(b"7").digest()
    expected = sorted(items, key=lambda item: hashlib.sha256(seed + item.key.encode()).digest())
    assert list(items.shuffled(7)) == expected
    other_way_round = Listing.of(reversed(list(items)))
    assert list(other_way_round.shuffled(7)) == expected


def test_plans_cut_items_where_a_shard_would_become_too_large() -> None:
    sizes = [0, 0, 7, 3, 5, 5, 12, 0, 1]
    plan = make_layout(Listing.of(Item(str(i), size, 0, i) for i, size in enumerate(sizes)), 10, None)
    assert [[item.size for item in plan.of(i)] for i in range(plan.shards)] == [
        [0, 0, 7, 3],
        [5, 5],
        [12],
        [0, 1],
    ]
    assert plan.source_bytes == sum(sizes)
