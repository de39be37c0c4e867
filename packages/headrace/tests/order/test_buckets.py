"""Batches by bucket: coverage, ranks, resuming, and the same batches from any loader."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import headrace
from headrace.order import BucketSampler

BUCKETS = st.lists(st.sampled_from("abc"), max_size=60)


@given(BUCKETS, st.integers(1, 5), st.integers(1, 3), st.booleans(), st.sampled_from(["pad", "drop"]))
def test_ranks_share_the_samples_of_each_bucket(
    buckets: list[str], batch_size: int, ranks: int, shuffle: bool, remainder: Literal["pad", "drop"]
) -> None:
    samplers = [
        BucketSampler(buckets, batch_size, shuffle=shuffle, rank=rank, world_size=ranks, remainder=remainder)
        for rank in range(ranks)
    ]
    shares = [list(sampler) for sampler in samplers]
    counts: Counter[int] = Counter()
    for step in zip(*shares, strict=True):  # equally many batches
        assert len({len(batch) for batch in step}) == 1
        assert 1 <= len(step[0]) <= batch_size
        assert len({buckets[index] for batch in step for index in batch}) == 1
        counts.update(index for batch in step for index in batch)
    assert all(len(share) == len(sampler) for share, sampler in zip(shares, samplers, strict=True))
    if remainder == "pad":
        assert counts.keys() == set(range(len(buckets)))
        assert counts.total() - len(buckets) < ranks * max(1, len(set(buckets)))
    else:
        assert all(count == 1 for count in counts.values())
        dropped = Counter(buckets[index] for index in set(range(len(buckets))) - counts.keys())
        assert all(count < batch_size * ranks for count in dropped.values())


@given(BUCKETS, st.data())
def test_an_epoch_continues_after_a_state(buckets: list[str], data: st.DataObject) -> None:
    whole = BucketSampler(buckets, 3, seed=5)
    epochs = [list(whole) for _ in range(3)]
    first = BucketSampler(buckets, 3, seed=5)
    first.set_epoch(1)
    taken = data.draw(st.integers(0, len(epochs[1])))
    iterator = iter(first)
    assert [next(iterator) for _ in range(taken)] == epochs[1][:taken]
    second = BucketSampler(buckets, 3, seed=5)
    second.load_state_dict(first.state_dict() if taken else {"epoch": 1, "batches": 0})
    assert list(second) == epochs[1][taken:]
    assert list(second) == epochs[2]


def test_epochs_and_seeds_differ() -> None:
    buckets = [index % 3 for index in range(90)]
    sampler, other = BucketSampler(buckets, 4), BucketSampler(buckets, 4, seed=1)
    assert len({str(list(each)) for each in (sampler, sampler, other, other)}) == 4


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_headraces_loader_gives_torchs_batches_and_resumes(workers: int) -> None:
    buckets = ["wide" if index % 3 else "tall" for index in range(50)]
    dataset = TensorDataset(torch.arange(50))

    def batches(loader: Any) -> list[list[int]]:
        return [batch.tolist() for (batch,) in loader]

    expected = DataLoader(dataset, batch_sampler=BucketSampler(buckets, 4))
    loader = headrace.DataLoader(dataset, batch_sampler=BucketSampler(buckets, 4), num_workers=workers)
    epochs = [batches(expected), batches(expected)]
    assert [batches(loader), batches(loader)] == epochs
    loader = headrace.DataLoader(dataset, batch_sampler=BucketSampler(buckets, 4), num_workers=workers)
    iterator = iter(loader)
    begun = [next(iterator)[0].tolist() for _ in range(5)]
    resumed = headrace.DataLoader(dataset, batch_sampler=BucketSampler(buckets, 4), num_workers=workers)
    resumed.load_state_dict(loader.state_dict())
    assert begun + batches(resumed) == epochs[0]
    assert batches(resumed) == epochs[1]


def test_batch_sizes_of_each_bucket() -> None:
    sampler = BucketSampler([(2, 1)] * 10 + [(1, 2)] * 10, {(2, 1): 5, (1, 2): 2}, shuffle=False)
    assert [len(batch) for batch in sampler] == [5, 5, 2, 2, 2, 2, 2]
    with pytest.raises(headrace.ConfigError, match="no entry for the bucket 'b'"):
        BucketSampler(["a", "b"], {"a": 1})
    with pytest.raises(headrace.ConfigError, match=r"rank \(2\) must be 0 to world_size - 1 \(1\)"):
        BucketSampler(["a"], 1, rank=2, world_size=2)


def test_buckets_by_the_sizes_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shapes = [(30, 20), (20, 30), (31, 20), (20, 20)]
    paths = []
    for number, (size, suffix) in enumerate(zip(shapes, ("jpg", "png", "webp", "gif"), strict=True)):
        paths.append(tmp_path / f"{number}.{suffix}")
        Image.new("RGB", size).save(paths[-1])
    done: list[tuple[int, int]] = []
    sizes = headrace.image_sizes(paths, progress=lambda *numbers: done.append(numbers))
    assert sizes.tolist() == [list(shape) for shape in shapes]
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert headrace.image_sizes(paths, progress=lambda *_: done.clear()).tolist() == sizes.tolist()
    assert done, "the sizes were read again"
    sampler = BucketSampler.by_size(sizes, lambda width, height: width > height, 2, shuffle=False)
    assert list(sampler) == [[0, 2], [1, 3]]
    Image.new("RGB", (5, 6)).save(paths[0])
    assert np.array_equal(headrace.image_sizes(paths)[0], [5, 6])
    paths[0].write_bytes(b"no image")
    with pytest.raises(OSError, match="cannot identify image file"):
        headrace.image_sizes(paths, cache=False)
