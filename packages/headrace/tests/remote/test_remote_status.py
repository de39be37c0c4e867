"""Each odd answer of a store: told at once where another try is in vain, tried again where it isn't, with
what to do; never other bytes, never for ever."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import headrace
from headrace.errors import PackError, RemoteError, SampleError
from support.jpegs import image_folder
from support.object_stores import Proxy, Request, http_server
from support.object_stores import proxy as proxied
from support.remote_setting import CACHE_BYTES, COUNT, TRANSFORM

Make = Callable[..., headrace.PackedDataset]
RETRIES = 5
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


def is_shard(request: Request) -> bool:
    return request.method == "GET" and "shard-" in request.path


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
    for (images, labels), (expected, targets) in zip(*loaders, strict=True):
        assert torch.equal(images, expected)
        assert torch.equal(labels, targets)
    assert any(r.again == 2 for r in proxy.requests)


@pytest.mark.parametrize("fault", TRANSIENT)
def test_lasting_errors_are_reported_after_the_last_attempt(remote: Make, proxy: Proxy, fault: str) -> None:
    dataset = remote()
    proxy.behave = lambda request: fault if is_shard(request) else ""
    with pytest.raises(RemoteError, match=rf"after {RETRIES} retries.* {fault} .*overloaded"):
        dataset[3]
    assert sum(map(is_shard, proxy.requests)) == RETRIES + 1


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
        for (images, labels), (expected, targets) in zip(*loaders, strict=True):
            assert torch.equal(images, expected)
            assert torch.equal(labels, targets)


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
    monkeypatch.setattr("headrace.remote.access.PIECE", 999)
    monkeypatch.setattr("headrace.remote.access.PIECES", 1)
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
