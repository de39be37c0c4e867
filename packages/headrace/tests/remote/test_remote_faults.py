"""A store that fails: requests are repeated, and what stays wrong is reported once, with all that helps."""

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
from support.object_stores import Proxy, Request, http_server
from support.object_stores import proxy as proxied
from support.remote_setting import CACHE_BYTES, COUNT, TRANSFORM, same
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
    assert same(*loaders) == COUNT
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


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_record_that_fails_is_left_out_or_replaced_and_costs_none_of_its_request(
    remote: Make, local: headrace.PackedDataset, proxy: Proxy, policy: Any, batch_size: int
) -> None:
    dataset, instead = remote(), [12] if policy == "replace" else []
    spoil(proxy, dataset, 11, "reset")
    loader = headrace.DataLoader(dataset, batch_size=batch_size, on_error=policy, seed=2)
    labels = torch.cat([labels for _, labels in loader])
    assert labels.tolist() == [local.targets[i] for i in [*range(11), *instead, *range(12, COUNT)]]
    (failure,) = loader.stats().failures
    assert failure.index == 11
    assert f"after {RETRIES} retries" in failure.cause
    assert failure.path is not None
    assert failure.path.startswith("s3://bucket/pack/shard-")


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


@pytest.mark.parametrize(("transform", "whole"), list(zip(PYTHON, (True, False), strict=True)))
def test_worker_processes_name_samples_by_their_urls(
    remote: Make, proxy: Proxy, transform: str, whole: bool
) -> None:
    dataset = remote(PYTHON[transform])
    url, _, _ = spoil(proxy, dataset, 11)
    given, index = (dataset, 11) if whole else (Subset(dataset, [3, 11, 5]), 1)
    loader = headrace.DataLoader(given, batch_size=1, num_workers=1, on_error="skip")
    assert loader.plan().native is None
    kept = sum(len(labels) for _, labels in loader)
    assert kept == len(given) - 1
    (failure,) = loader.stats().failures
    assert (failure.index, failure.path) == (index, dataset.source.path(11))
    assert dataset.source.path(11).startswith(url)
    assert f"after {RETRIES} retries" in failure.cause
    with pytest.raises(OSError, match=rf"after {RETRIES} retries") as raised:
        list(headrace.DataLoader(given, batch_size=1, num_workers=1))
    assert url in str(raised.value)
    assert "503" in str(raised.value)


@pytest.mark.parametrize("cache_bytes", [CACHE_BYTES, 4096], ids=["kept", "not kept"])
def test_bytes_that_stay_damaged_are_an_error_and_not_kept(
    remote: Make, proxy: Proxy, cache_bytes: int
) -> None:
    dataset = remote(cache_bytes=cache_bytes)
    spoil(proxy, dataset, 0, "damage")
    with pytest.raises(RemoteError, match="checksum"):
        dataset[0]
    proxy.behave = lambda request: ""
    assert dataset[0][1] == dataset.targets[0]


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


def test_a_pack_that_was_made_again_is_noticed(
    served: Any, options: dict[str, Any], tmp_path: Path, proxy: Proxy
) -> None:
    folder = served.folder / "bucket" / "new"
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
        dataset = headrace.PackedDataset("s3://bucket/new", **arguments)
        expected = headrace.PackedDataset(folder)
        assert [dataset[i][0].tobytes() for i in range(6)] == [expected[i][0].tobytes() for i in range(6)]
        seen.append(dataset.index.path)
    assert seen[0] != seen[1]
    assert not seen[0].exists()


FINAL = {
    "301": "region",
    "304": "proxy on the way",
    "307": "region",
    "400": "MalformedXML.*The XML .*region or credentials",
    "401": "credentials",
    "403": "AccessDenied.*Access Denied.*credentials",
    "404": "NoSuchKey.*bucket and path",
    "412": "proxy on the way",
    "416": "InvalidRange.*shorter than was expected",
    "elsewhere": "Requested .*, got",
}
TRANSIENT = ("408", "429", "500", "502", "503")


@pytest.mark.parametrize("status", FINAL)
def test_errors_that_no_retry_fixes_are_reported_at_once(remote: Make, proxy: Proxy, status: str) -> None:
    dataset = remote()
    proxy.behave = lambda request: status if is_shard(request) else ""
    with pytest.raises(RemoteError, match=rf"(?s)can't be read: .*{FINAL[status]}") as caught:
        dataset[3]
    assert dataset.source.shard(3) in str(caught.value)
    assert sum(map(is_shard, proxy.requests)) == 1
    loader = headrace.DataLoader(dataset, batch_size=4)
    # Of errors without a class of their own nobody knows whether they are a sample's or the store's.
    kind = SampleError if status in ("304", "401", "403", "404", "412") else RemoteError
    with pytest.raises(kind, match=r"s3://bucket/pack/shard-"):
        list(loader)
    proxy.behave = lambda request: ""
    assert sum(len(labels) for _, labels in loader) == COUNT


@pytest.mark.parametrize("status", ["400", "403", "404"])
def test_why_the_index_cannot_be_read_is_reported_though_head_does_not_say(
    options: dict[str, Any], proxy: Proxy, tmp_path: Path, status: str
) -> None:
    proxy.behave = lambda request: status
    with pytest.raises(PackError, match=FINAL[status]):
        headrace.PackedDataset("s3://bucket/pack", storage_options=options, cache_dir=tmp_path)
    assert [request.method for request in proxy.requests] == ["HEAD", "GET"]


@pytest.mark.parametrize("fault", TRANSIENT)
def test_temporary_errors_are_retried(
    remote: Make, local: headrace.PackedDataset, proxy: Proxy, options: dict[str, Any], fault: str
) -> None:
    options["client_options"] = {"timeout": "60s"}  # what takes long counts as busy, too
    dataset = remote()
    proxy.behave = lambda request: fault if is_shard(request) and request.again < 2 else ""
    loaders = [headrace.DataLoader(d, batch_size=7, shuffle=True, seed=5) for d in (dataset, local)]
    assert same(*loaders) == COUNT
    assert any(r.again == 2 for r in proxy.requests)


def test_a_store_that_redirects_is_followed_or_reported(
    remote: Make, served: Any, local: headrace.PackedDataset, proxy: Proxy, tmp_path: Path
) -> None:
    dataset = remote()
    proxy.behave = lambda request: "moved" if is_shard(request) else ""
    # What was signed for one host isn't valid for another.
    with pytest.raises(RemoteError, match=r"can't be read: .*40[03]"):
        dataset[3]
    arguments: dict[str, Any] = {"cache_dir": tmp_path / "http", "cache_bytes": CACHE_BYTES}
    with http_server(served.folder, tmp_path / "rclone.conf") as address, proxied(address) as web:
        dataset = headrace.PackedDataset(f"{web.url}/bucket/pack", TRANSFORM, **arguments)
        web.behave = lambda request: "moved" if is_shard(request) else ""
        loaders = [headrace.DataLoader(each, batch_size=7, seed=1) for each in (dataset, local)]
        assert same(*loaders) == COUNT


def test_a_server_that_ignores_ranges_is_reported(served: Any, tmp_path: Path) -> None:
    folder = tmp_path / "served" / "pack"
    headrace.pack(str(image_folder(tmp_path / "images", 2)), str(folder))
    arguments: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache_bytes": CACHE_BYTES}
    with http_server(tmp_path / "served", tmp_path / "rclone.conf") as address, proxied(address) as web:
        web.behave = lambda request: "whole" if is_shard(request) else ""
        dataset = headrace.PackedDataset(f"{web.url}/pack", TRANSFORM, **arguments)
        with pytest.raises(RemoteError, match=r"shard-000000.tar can't be read: .*[Rr]ange"):
            dataset[0]


def test_an_object_that_changes_while_it_is_read_is_reported_and_read_again(
    served: Any, proxy: Proxy, options: dict[str, Any], tmp_path: Path
) -> None:
    place = served.folder / "bucket" / "changing"
    place.mkdir(exist_ok=True)
    small, large = (
        sorted(image_folder(tmp_path / str(side), 1, side=side).rglob("*.jpg"))[0] for side in (40, 90)
    )
    shutil.copy(small, place / "a.jpg")
    arguments: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache_bytes": CACHE_BYTES}
    dataset = headrace.ImageDataset(["s3://bucket/changing/a.jpg"], [0], storage_options=options, **arguments)

    def change(request: Request) -> str:
        if request.method == "GET":
            shutil.copy(large, place / "a.jpg")
        return ""

    proxy.behave = change
    # As long as the old one was, the new one would be the beginning of an image.
    with pytest.raises(RemoteError, match=r"s3://bucket/changing/a\.jpg was changed while it was read"):
        dataset[0]
    expected = headrace.ImageDataset([large], [0])[0][0]
    assert dataset[0][0].tobytes() == expected.tobytes()


def test_an_index_that_changes_between_its_pieces_is_reported(
    served: Any, proxy: Proxy, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sources.stores.access.PIECE", 999)
    monkeypatch.setattr("headrace.sources.stores.access.PIECES", 1)
    folder = served.folder / "bucket" / "changing-pack"
    packs = []
    for seed in (1, 2):
        packs.append(tmp_path / f"pack{seed}")
        headrace.pack(str(image_folder(tmp_path / f"images{seed}", 6, seed=seed)), str(packs[-1]))
    shutil.copytree(packs[0], folder, dirs_exist_ok=True)

    def change(request: Request) -> str:
        if request.range.startswith("bytes=999-"):
            shutil.copy(packs[1] / "index.arrow", folder / "index.arrow")
        return ""

    proxy.behave = change
    arguments: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache_bytes": CACHE_BYTES}
    with pytest.raises(PackError, match=r"changing-pack/index\.arrow was changed while it was read"):
        headrace.PackedDataset("s3://bucket/changing-pack", storage_options=options, **arguments)
    shutil.copytree(packs[1], folder, dirs_exist_ok=True)
    dataset = headrace.PackedDataset("s3://bucket/changing-pack", storage_options=options, **arguments)
    assert dataset.index.path.read_bytes() == (packs[1] / "index.arrow").read_bytes()
