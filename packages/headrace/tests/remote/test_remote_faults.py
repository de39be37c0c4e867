"""A store that fails: what can be mended is, what can't is told, once, and with everything that helps."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset
from torchvision.transforms import Compose, Resize, ToTensor
from torchvision.transforms.functional import to_tensor

import headrace
from headrace.errors import ConfigError, PackError, RemoteError, SampleError
from support.jpegs import image_folder
from support.object_stores import Proxy, Request
from support.remote_setting import COUNT
from support.unknown import Jitter

Make = Callable[..., headrace.PackedDataset]
RETRIES = 5


def is_shard(request: Request) -> bool:
    return request.method == "GET" and "shard-" in request.path


@pytest.mark.parametrize("fault", ["reset", "503", "cut", "slow", "damage"])
def test_every_sample_comes_once_and_whole(
    remote: Make, local: headrace.PackedDataset, proxy: Proxy, fault: str
) -> None:
    # Every second range fails at first, every sixth twice; an answer that trickles is waited for. Damage
    # comes to a range once: a record that is asked for by itself had it in a larger one before.
    def behave(request: Request) -> str:
        most = 2 if request.number % 6 == 0 and fault != "damage" else 1
        times = most if request.number % 2 == 0 else 0
        return fault if request.again < times else ""

    dataset = remote()
    proxy.behave = behave
    loaders = [headrace.DataLoader(d, batch_size=5, shuffle=True, seed=5) for d in (dataset, local)]
    labels: list[int] = []
    for (images, targets), (expected, _) in zip(*loaders, strict=True):
        assert torch.equal(images, expected)
        labels += targets.tolist()
    assert sorted(labels) == sorted(local.targets)
    stats = loaders[0].stats().remote
    assert stats is not None
    assert loaders[0].stats().failures == ()
    assert any(behave(r) == fault for r in proxy.requests)
    if fault != "slow":
        assert any(r.again and is_shard(r) for r in proxy.requests)
    assert stats.cache_misses == COUNT


def test_an_answer_that_never_ends_is_given_up(
    remote: Make, local: headrace.PackedDataset, proxy: Proxy, options: dict[str, Any]
) -> None:
    options["client_options"] = {"timeout": "300ms"}
    dataset = remote()
    proxy.behave = lambda request: "stall" if request.again == 0 and request.number % 3 == 0 else ""
    loader = headrace.DataLoader(dataset, batch_size=8, seed=1)
    assert sum(len(labels) for _, labels in loader) == COUNT
    assert any(r.again for r in proxy.requests)


def spoil(
    proxy: Proxy, dataset: headrace.PackedDataset, sample: int, fault: str = "503"
) -> tuple[str, int, int]:
    """Every request for any byte of `sample` fails; (URL, first byte, size)."""
    (wanted,) = dataset.source.wanted([sample])  # type: ignore[attr-defined]
    assert wanted.size is not None
    name = wanted.url.rsplit("/", 1)[1]
    begin, end = wanted.start, wanted.start + wanted.size

    def behave(request: Request) -> str:
        if not is_shard(request) or name not in request.path:
            return ""
        first, last = (int(n) for n in request.range.removeprefix("bytes=").split("-"))
        return fault if first < end and last >= begin else ""

    proxy.behave = behave
    return wanted.url, begin, wanted.size


def test_the_error_after_the_last_attempt_names_url_range_cause_and_attempts(
    remote: Make, proxy: Proxy
) -> None:
    dataset = remote()
    url, begin, size = spoil(proxy, dataset, 11)
    with pytest.raises(RemoteError) as caught:
        dataset[11]
    text = str(caught.value)
    assert f"bytes {begin:,} to {begin + size - 1:,} of {url}" in text
    assert f"after {RETRIES} retries" in text
    assert "503" in text
    assert sum(is_shard(r) for r in proxy.requests) == RETRIES + 1
    with pytest.raises(SampleError, match=rf"sample 11 .*after {RETRIES} retries") as raised:
        for _ in headrace.DataLoader(dataset, batch_size=1):
            pass
    assert raised.value.index == 11


@pytest.mark.parametrize(("policy", "expected"), [("skip", COUNT - 1), ("replace", COUNT)])
def test_on_error_is_honoured(remote: Make, proxy: Proxy, policy: Any, expected: int) -> None:
    dataset = remote()
    spoil(proxy, dataset, 11, "reset")
    loader = headrace.DataLoader(dataset, batch_size=1, on_error=policy, seed=2)
    assert sum(len(labels) for _, labels in loader) == expected
    (failure,) = loader.stats().failures
    assert failure.index == 11
    assert f"after {RETRIES} retries" in failure.cause
    assert failure.path is not None
    assert failure.path.startswith("s3://bucket/pack/shard-")


def test_a_record_that_fails_costs_none_of_its_request(
    remote: Make, local: headrace.PackedDataset, proxy: Proxy
) -> None:
    dataset = remote()
    spoil(proxy, dataset, 11)
    loader = headrace.DataLoader(dataset, batch_size=8, on_error="skip", seed=2)
    labels = torch.cat([labels for _, labels in loader])
    assert labels.tolist() == [local.targets[i] for i in range(COUNT) if i != 11]
    (failure,) = loader.stats().failures
    assert failure.index == 11


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_store_that_is_down_is_no_bad_sample(remote: Make, proxy: Proxy, policy: Any) -> None:
    loader = headrace.DataLoader(remote(), batch_size=8, on_error=policy, seed=2)
    proxy.behave = lambda request: "503" if is_shard(request) else ""
    with pytest.raises(RemoteError, match=rf"after {RETRIES} retries.*503"):
        list(loader)
    proxy.behave = lambda request: ""
    assert sum(len(labels) for _, labels in loader) == COUNT
    assert loader.stats().failures == ()


def test_a_store_that_is_down_is_no_bad_sample_in_an_epoch_of_one_batch(remote: Make, proxy: Proxy) -> None:
    dataset = Subset(remote(), range(4))
    loader = headrace.DataLoader(dataset, batch_size=4, on_error="skip")
    proxy.behave = lambda request: "503" if is_shard(request) else ""
    with pytest.raises(RemoteError, match=rf"after {RETRIES} retries.*503"):
        list(loader)


def as_python(image: Any) -> torch.Tensor:
    """A transform that nobody understands: the dataset runs as it is."""
    return to_tensor(image.resize((16, 16)))


PYTHON = {
    "a step in workers": Compose([Resize((24, 24)), Jitter(0.3), ToTensor()]),
    "all of it in workers": as_python,
}


@pytest.mark.parametrize("transform", PYTHON)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "Subset"])
def test_worker_processes_name_samples_by_their_urls(
    remote: Make, proxy: Proxy, transform: str, whole: bool
) -> None:
    dataset = remote(PYTHON[transform])
    url, _, _ = spoil(proxy, dataset, 11)
    given, index = (dataset, 11) if whole else (Subset(dataset, [3, 11, 5]), 1)
    loader = headrace.DataLoader(given, batch_size=1, num_workers=2, on_error="skip")
    assert loader.plan().native is None
    kept = sum(len(labels) for _, labels in loader)
    assert kept == len(given) - 1
    (failure,) = loader.stats().failures
    assert (failure.index, failure.path) == (index, dataset.source.path(11))
    assert dataset.source.path(11).startswith(url)
    assert f"after {RETRIES} retries" in failure.cause
    with pytest.raises(OSError, match=rf"after {RETRIES} retries") as raised:
        list(headrace.DataLoader(given, batch_size=1, num_workers=2))
    assert url in str(raised.value)
    assert "503" in str(raised.value)


def test_bytes_that_stay_damaged_are_an_error_and_not_kept(remote: Make, proxy: Proxy) -> None:
    dataset = remote()
    spoil(proxy, dataset, 0, "damage")
    with pytest.raises(RemoteError, match="checksum"):
        dataset[0]
    proxy.behave = lambda request: ""
    assert dataset[0][1] == dataset.targets[0]


def test_a_missing_pack_is_reported_at_once(options: dict[str, Any], proxy: Proxy, tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"s3://bucket/nothing/index\.arrow can't be read: .*NoSuchKey"):
        headrace.PackedDataset("s3://bucket/nothing", storage_options=options, cache_dir=tmp_path)
    assert [request.method for request in proxy.requests] == ["HEAD", "GET"], "the latter says why"


def test_wrong_credentials_are_reported_at_once(
    options: dict[str, Any], proxy: Proxy, tmp_path: Path
) -> None:
    options["secret_access_key"] = "wrong"
    with pytest.raises(PackError, match="SignatureDoesNotMatch"):
        headrace.PackedDataset("s3://bucket/pack", storage_options=options, cache_dir=tmp_path)


def test_options_that_cant_be_obeyed(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="storage_options, cache_dir and cache_bytes are for URLs"):
        headrace.PackedDataset(tmp_path, storage_options=options)
    with pytest.raises(ConfigError, match="cache_bytes"):
        headrace.PackedDataset("s3://bucket/pack", storage_options=options, cache_dir=tmp_path, cache_bytes=0)
    with pytest.raises(ConfigError, match="can't be used with these storage_options"):
        headrace.PackedDataset(
            "s3://bucket/pack", storage_options={"retry_config": {"max_retries": "many"}}, cache_dir=tmp_path
        )
    with pytest.raises(ConfigError, match="nonsense"):
        headrace.PackedDataset(
            "s3://bucket/pack", storage_options={**options, "nonsense": "1"}, cache_dir=tmp_path
        )
    with pytest.raises(ConfigError, match="names no object"):
        headrace.PackedDataset("s3:///pack", cache_dir=tmp_path)


def test_a_shard_that_gives_no_end_in_time_is_a_timeout_of_the_loader(remote: Make, proxy: Proxy) -> None:
    dataset = remote()
    proxy.behave = lambda request: "stall" if is_shard(request) else ""
    loader = headrace.DataLoader(dataset, batch_size=4, timeout=0.2)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.2 seconds"):
        next(iter(loader))


def test_without_obstore_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[remote\]'"):
        headrace.PackedDataset("s3://bucket/pack", cache_dir=tmp_path, cache_bytes=1 << 20)


def test_an_index_of_many_pieces_is_whole(
    remote: Make, local: headrace.PackedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.remote.access.PIECE", 999)
    dataset = remote()
    assert dataset.index.path.read_bytes() == local.index.path.read_bytes()
    assert [path.suffix for path in dataset.index.path.parent.iterdir() if path.suffix != ".lock"] == [
        ".arrow"
    ]


def test_a_pack_that_was_made_again_is_noticed(
    served: Any, options: dict[str, Any], tmp_path: Path, proxy: Proxy
) -> None:
    folder = served.folder / "bucket" / "anew"
    arguments: dict[str, Any] = {
        "storage_options": options,
        "cache_dir": tmp_path / "cache",
        "cache_bytes": 1 << 24,
    }
    seen = []
    for seed in (1, 2):
        images = image_folder(tmp_path / str(seed), 6, seed=seed)
        shutil.rmtree(folder, ignore_errors=True)
        headrace.pack(str(images), str(folder))
        dataset = headrace.PackedDataset("s3://bucket/anew", **arguments)
        expected = headrace.PackedDataset(folder)
        assert [dataset[i][0].tobytes() for i in range(6)] == [expected[i][0].tobytes() for i in range(6)]
        seen.append(dataset.index.path)
    assert seen[0] != seen[1]
    assert not seen[0].exists()
