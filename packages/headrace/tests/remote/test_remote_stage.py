"""The stage of Ray Data on a pack in a store."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torchvision.transforms import Compose, RandomResizedCrop, ToTensor

import headrace
from headrace.order import Shuffled
from headrace.ray_data import Decode
from support.object_stores import Proxy
from support.remote_setting import COUNT
from support.unknown import Jitter

pytestmark = pytest.mark.long  # as all that need the server


@pytest.mark.parametrize("middle", [(), (Jitter(0.4),)], ids=["native", "split"])
def test_the_stage_returns_the_samples_of_the_local_pack(
    remote: Callable[..., headrace.PackedDataset],
    local: headrace.PackedDataset,
    proxy: Proxy,
    middle: tuple[Jitter, ...],
) -> None:
    transform = Compose([RandomResizedCrop(40), *middle, ToTensor()])
    local.transform = transform
    loader = headrace.DataLoader(local, batch_size=7, shuffle=True, seed=5, num_workers=0)
    dataset = pickle.loads(pickle.dumps(remote(transform)))
    stage = Decode(dataset, order=Shuffled(COUNT), seed=5, batch_size=7, threads=2)
    for first in (0, 1):  # by two calls; the second begins in the middle of a batch
        made: dict[Any, Any] = {}
        for ids in (np.arange(first, 30), np.arange(30, COUNT)):
            for batch in stage({"id": ids}):
                made.update(zip(batch["id"].tolist(), batch["image"], strict=True))
        loader.set_epoch(0)
        expected = np.concatenate([images.numpy() for images, _ in loader])
        assert list(made) == list(range(first, COUNT))
        assert all(np.array_equal(made[i], expected[i]) for i in made)
    records = [r for r in proxy.requests if r.method == "GET" and "shard" in r.path]
    assert 0 < len(records) <= COUNT  # each fetched once
