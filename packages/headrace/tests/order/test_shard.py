"""Laws of sharing an epoch among ranks."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from headrace.order.permutation import key_of, permute
from headrace.order.shard import Remainder, Shard, detect_rank

SIZES = st.integers(1, 10_000)
WORLDS = st.integers(1, 64)
BATCHES = st.sampled_from([1, 2, 3, 7, 16, 64, 256])


class Empty(Sized):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n


def positions(n: int, start: int, shard: Shard) -> np.ndarray:
    return np.array(shard.positions(n, start, 0, n), np.int64)


def ranks(world: int, batch: int, drop_last: bool = False, remainder: Remainder = "pad") -> list[Shard]:
    return [Shard(rank, world, batch, drop_last, remainder) for rank in range(world)]


@given(n=SIZES, world=WORLDS, batch=BATCHES, key=st.integers(0, 2**64 - 1), data=st.data())
def test_every_sample_once_over_all_ranks(
    n: int, world: int, batch: int, key: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, n))
    taken = np.concatenate([positions(n, start, s) for s in ranks(world, batch, remainder="exact")])
    indices = np.concatenate((permute(np.arange(start), n, key), permute(taken, n, key)))
    assert (np.sort(indices) == np.arange(n)).all()


@given(
    n=SIZES, world=WORLDS, batch=BATCHES, drop_last=st.booleans(), remainder=st.sampled_from(["pad", "drop"])
)
def test_all_ranks_have_as_many_batches(
    n: int, world: int, batch: int, drop_last: bool, remainder: Remainder
) -> None:
    shards = ranks(world, batch, drop_last, remainder)
    assert len({len(positions(n, 0, shard)) for shard in shards}) == 1
    assert len({shard.batches(n) for shard in shards}) == 1
    taken = np.concatenate([positions(n, 0, shard) for shard in shards])
    assert len(np.unique(taken)) == len(taken)
    if drop_last:
        assert len(taken) == n // (world * batch) * world * batch
    elif remainder == "pad":
        assert set(range(n)) <= set(taken.tolist())
        assert len(taken) < n + world
    else:
        assert n - world < len(taken) <= n


@given(n=SIZES, world=WORLDS, batch=BATCHES, remainder=st.sampled_from(["pad", "drop", "exact"]))
def test_batches_are_counted_as_they_come(n: int, world: int, batch: int, remainder: Remainder) -> None:
    for shard in ranks(world, batch, remainder=remainder)[:: max(1, world // 3)]:
        count, first = 0, 0
        while part := shard.positions(n, 0, first, batch):
            first += len(part)
            count += 1
        assert count == shard.batches(n)
        assert first == shard.samples(n)


@given(n=SIZES, total=st.sampled_from([12, 24, 60]), data=st.data())
def test_global_batches_are_the_same_whatever_the_world_size(n: int, total: int, data: st.DataObject) -> None:
    world, other = (
        data.draw(st.sampled_from([w for w in range(1, total + 1) if total % w == 0])) for _ in "ab"
    )

    def batches(world: int) -> list[set[int]]:
        shards = ranks(world, total // world, remainder="exact")
        return [
            {p for s in shards for p in s.positions(n, 0, k * s.batch_size, s.batch_size)}
            for k in range(-(-n // total))
        ]

    assert batches(world) == batches(other) == [set(range(k, min(k + total, n))) for k in range(0, n, total)]


@given(n=SIZES, data=st.data(), drop_last=st.booleans())
def test_world_and_batch_size_may_change_in_the_middle(n: int, data: st.DataObject, drop_last: bool) -> None:
    start, taken = 0, []
    for _ in range(3):
        world, batch = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 20))
        shards = ranks(world, batch, drop_last, "exact")
        done = data.draw(st.integers(0, min(s.batches(n, start) for s in shards)))
        taken += [p for s in shards for p in s.positions(n, start, 0, done * batch)]
        start = shards[0].after(n, start, done)
        assert sorted(taken) == list(range(start))


@given(n=SIZES, world=WORLDS, drop_last=st.booleans())
def test_in_order_it_is_torchs_distributed_sampler(n: int, world: int, drop_last: bool) -> None:
    remainder: Remainder = "drop" if drop_last else "pad"
    if drop_last and n < world:
        return  # torch's gives one sample to some ranks then
    for rank in {0, world // 2, world - 1}:
        theirs: Any = DistributedSampler(Empty(n), world, rank, shuffle=False, drop_last=drop_last)  # type: ignore[arg-type]
        assert (positions(n, 0, Shard(rank, world, 4, False, remainder)) % n).tolist() == list(theirs)


def test_ranks_share_an_endless_order() -> None:
    assert Shard(1, 2, 4).positions(None, 10, 3, 2) == range(17, 21, 2)
    assert Shard(1, 2, 4).after(None, 10, 3) == 34


def test_ranks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert detect_rank() == (0, 1)
    monkeypatch.setenv("RANK", "3")
    assert detect_rank() == (0, 1)
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert detect_rank() == (3, 8)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert detect_rank() == (0, 1)
    finally:
        torch.distributed.destroy_process_group()


def test_a_key_depends_on_the_order_of_its_parts() -> None:
    assert len({key_of(1, 2), key_of(2, 1), key_of(1), key_of(1, 2, 0), key_of(0, 1, 2)}) == 5
