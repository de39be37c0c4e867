"""Packs in a store: the same samples as on disk, each once, fetched once."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset
from torchvision.transforms import Compose, PILToTensor, RandomResizedCrop, Resize, ToTensor

import headrace
from headrace.errors import CacheError
from headrace.export.figures import figures
from headrace.order import Shuffled
from headrace.ray_data import Decode
from support.object_stores import KEY, SECRET, Proxy, http_server
from support.object_stores import proxy as proxied
from support.processes import exit_of_fork
from support.remote_setting import CACHE_BYTES, COUNT, TRANSFORM, same
from support.unknown import Jitter

Make = Callable[..., headrace.PackedDataset]


def gets(proxy: Proxy, what: str) -> int:
    return sum(r.method == "GET" and what in r.path for r in proxy.requests)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_equal_the_local_ones_and_come_from_the_cache_again(
    remote: Make, local: headrace.PackedDataset, proxy: Proxy, workers: int
) -> None:
    dataset = remote()
    loaders = [
        headrace.DataLoader(data, batch_size=7, shuffle=True, seed=5, num_workers=workers)
        for data in (dataset, local)
    ]
    assert loaders[0].plan().native is not None
    assert same(*loaders) == COUNT
    asked = len(proxy.requests)
    assert same(*loaders) == COUNT
    assert len(proxy.requests) == asked
    stats = loaders[0].stats().remote
    assert stats is not None
    assert stats.requests == asked
    assert (stats.cache_misses, stats.cache_hits) == (COUNT, COUNT)
    assert stats.cache_evictions == 0
    assert "MB by" in str(loaders[0].stats())
    text = loaders[0].explain()
    assert "s3://bucket/pack" in text
    assert proxy.url in text
    said = figures(loaders[0], None)["remote"]
    assert (said["cache_misses"], said["cache_hits"], said["requests"]) == (COUNT, COUNT, asked)


def test_another_process_of_the_node_finds_index_and_records(remote: Make, proxy: Proxy) -> None:
    dataset = remote()
    first = [dataset[i][1] for i in range(COUNT)]
    asked = len(proxy.requests)
    again = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(dataset)) < 4000
    assert [again[i][1] for i in range(COUNT)] == first
    # The ETag of the index is asked for, and nothing else.
    assert [r.method for r in proxy.requests[asked:]] == ["HEAD"]
    assert gets(proxy, "index.arrow") == 1


def test_samples_fields_and_subsets(remote: Make, local: headrace.PackedDataset) -> None:
    dataset = remote(PILToTensor())
    assert torch.equal(dataset[-1][0], headrace.PackedDataset(local.root, PILToTensor())[COUNT - 1][0])
    assert dataset.targets == local.targets
    assert dataset.key(3) == local.key(3)
    assert dataset.fields(3) == local.fields(3)
    assert dataset.shard_boundaries.tolist() == local.shard_boundaries.tolist()
    order = [9, 2, -1, 2]
    loaders = [headrace.DataLoader(Subset(d, order), batch_size=3, seed=1) for d in (remote(), local)]
    assert same(*loaders) == len(order)
    assert "\nremote: s3://bucket/pack" in loaders[0].explain()
    assert loaders[0].stats().remote is not None
    assert "remote:" not in loaders[1].explain()


def test_a_resumed_epoch_equals_the_rest_of_it(remote: Make, local: headrace.PackedDataset) -> None:
    def loader(data: Any) -> headrace.DataLoader:
        return headrace.DataLoader(data, batch_size=5, shuffle=True, seed=3)

    begun = loader(remote())
    batches = iter(begun)
    for _ in range(4):
        next(batches)
    state = begun.state_dict()
    del batches
    resumed, expected = loader(remote()), loader(local)
    resumed.load_state_dict(state)
    expected.load_state_dict(state)
    assert same(resumed, expected) == COUNT - 20


def test_two_ranks_get_every_sample_once_and_fetch_it_once(remote: Make, proxy: Proxy) -> None:
    loaders = [
        headrace.DataLoader(
            remote(PILToTensor_small), batch_size=4, shuffle=True, seed=3, rank=rank, world_size=2
        )
        for rank in range(2)
    ]
    seen: list[list[int]] = [[], []]

    def walk(rank: int) -> None:
        for _, labels in loaders[rank]:
            seen[rank] += labels.tolist()

    threads = [threading.Thread(target=walk, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen[0] + seen[1]) == sorted(remote().targets)
    fetched = sum(loader.stats().remote.cache_misses for loader in loaders)  # type: ignore[misc, union-attr]
    assert fetched == COUNT


PILToTensor_small = Compose([Resize((16, 16)), ToTensor()])


def test_a_cache_that_holds_little_is_enough(remote: Make, local: headrace.PackedDataset) -> None:
    dataset = remote(cache_bytes=80_000)
    loaders = [headrace.DataLoader(d, batch_size=6, shuffle=True, seed=2) for d in (dataset, local)]
    for _ in range(3):
        assert same(*loaders) == COUNT
        stats = loaders[0].stats().remote
        assert stats is not None
        assert stats.cache_bytes <= 80_000
    assert stats.cache_misses > COUNT  # type: ignore[union-attr]


def test_python_steps_in_worker_processes(remote: Make, local: headrace.PackedDataset) -> None:
    transform = Compose([Resize((24, 24)), Jitter(0.3), ToTensor()])
    loaders = [
        headrace.DataLoader(data, batch_size=6, seed=4, num_workers=1)
        for data in (remote(transform), headrace.PackedDataset(local.root, transform))
    ]
    assert loaders[0].plan().runs_python
    assert same(*loaders) == COUNT


def test_workers_of_torch(remote: Make, local: headrace.PackedDataset) -> None:
    transform = Compose([Resize((16, 16)), ToTensor()])
    ours = TorchLoader(remote(transform), 8, num_workers=1, multiprocessing_context="forkserver")
    assert same(ours, TorchLoader(headrace.PackedDataset(local.root, transform), 8)) == COUNT


def test_a_process_that_is_forked_after_stores_were_used_is_refused(remote: Make, proxy: Proxy) -> None:
    """What is there already it may read no more either: that depends on chance."""
    dataset = remote(Compose([Resize((16, 16)), ToTensor()]))
    with pytest.raises(headrace.ConfigError, match=r"forked after they were used.*'forkserver'"):
        list(TorchLoader(dataset, 8, num_workers=1, multiprocessing_context="fork"))
    loader = headrace.DataLoader(dataset, batch_size=6)
    batches = iter(loader)
    next(batches)

    def read() -> None:
        with pytest.raises(headrace.ConfigError):
            list(batches)

    assert exit_of_fork(read) == 0
    assert sum(len(labels) for _, labels in batches) == COUNT - 6


def test_endpoint_and_credentials_of_the_environment(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: Any
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    dataset = headrace.PackedDataset("s3://bucket/pack", cache_dir=tmp_path, cache_bytes=CACHE_BYTES)
    assert len(dataset) == COUNT
    assert dataset[0][0].size == headrace.PackedDataset(served.folder / "bucket" / "pack")[0][0].size


def test_a_loader_left_in_the_middle_gives_everything_back(remote: Make) -> None:
    dataset = remote()
    loader = headrace.DataLoader(dataset, batch_size=4, shuffle=True, seed=1)
    batches = iter(loader)
    next(batches)
    del batches
    assert sum(len(labels) for _, labels in loader) == COUNT
    assert TRANSFORM is dataset.transform


def test_single_images_in_a_store(
    served: Any, proxy: Proxy, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = sorted((served.folder.parent / "images").rglob("*.jpg"))
    loose = served.folder / "bucket" / "loose"
    loose.mkdir(exist_ok=True)
    for path in images:
        (loose / path.name).write_bytes(path.read_bytes())
    urls = [f"s3://bucket/loose/{path.name}" for path in images]
    arguments: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache_bytes": CACHE_BYTES}
    dataset = headrace.ImageDataset(urls, range_of(urls), TRANSFORM, storage_options=options, **arguments)
    expected = headrace.ImageDataset(images, range_of(urls), TRANSFORM)
    loaders = [headrace.DataLoader(d, batch_size=5, shuffle=True, seed=5) for d in (dataset, expected)]
    assert loaders[0].plan().native is not None
    assert same(*loaders) == COUNT
    assert torch.equal(pickle.loads(pickle.dumps(dataset))[0][0].mean() > 0, torch.tensor(True))
    asked = gets(proxy, "loose")
    assert asked == COUNT
    assert same(*loaders) == COUNT
    assert gets(proxy, "loose") == asked
    with pytest.raises(headrace.ConfigError, match="one or the other"):
        headrace.ImageDataset([urls[0], images[0]])


def range_of(items: list[str]) -> list[int]:
    return list(range(len(items)))


def test_a_pack_on_a_plain_web_server(served: Any, local: headrace.PackedDataset, tmp_path: Path) -> None:
    with http_server(served.folder, tmp_path / "rclone.conf") as address, proxied(address) as proxy:
        arguments: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache_bytes": CACHE_BYTES}
        dataset = headrace.PackedDataset(f"{proxy.url}/bucket/pack", TRANSFORM, **arguments)
        loaders = [headrace.DataLoader(d, batch_size=6, shuffle=True, seed=9) for d in (dataset, local)]
        assert same(*loaders) == COUNT
        assert all(r.range for r in proxy.requests if "shard-" in r.path)


@pytest.mark.long  # as all of Ray
@pytest.mark.parametrize("middle", [(), (Jitter(0.4),)], ids=["native", "unknown"])
def test_the_stage_returns_the_samples_of_the_local_pack(
    remote: Make, local: headrace.PackedDataset, proxy: Proxy, middle: tuple[Jitter, ...]
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


def test_a_cache_folder_that_cant_be_made_is_named_with_the_way_out(remote: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=r"file.* can't .*: Not a directory.* cache_dir="):
        remote(cache_dir=tmp_path / "file")
