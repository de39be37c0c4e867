"""Each odd answer of a store: told at once where another try is in vain, tried again where it isn't, with
what to do; never other bytes, never for ever."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import headrace
from headrace.errors import PackError, RemoteError, SampleError
from headrace.remote.client import StoreError
from headrace.remote.failures import Failure
from support.jpegs import image_folder
from support.object_stores import Proxy, Request, http_server
from support.object_stores import proxy as proxied
from support.remote_setting import CACHE_BYTES, COUNT, TRANSFORM

Make = Callable[..., headrace.PackedDataset]
TRIES = 6
FINAL = {
    "301": "region",
    "304": "proxy on the way",
    "307": "region",
    "400": "MalformedXML: The XML .*region, endpoint and credentials",
    "401": "credentials",
    "403": "AccessDenied: Access Denied.*credentials",
    "404": "NoSuchKey: .*bucket and path",
    "412": "proxy on the way",
    "416": "InvalidRange: .*Upload it again",
}
TRANSIENT = ("408", "429", "500", "502", "503", "elsewhere")


def is_shard(request: Request) -> bool:
    return request.method == "GET" and "shard-" in request.path


@pytest.mark.parametrize("status", FINAL)
def test_errors_that_no_retry_fixes_are_reported_at_once(remote: Make, proxy: Proxy, status: str) -> None:
    dataset = remote()
    proxy.behave = lambda request: status if is_shard(request) else ""
    with pytest.raises(RemoteError, match=rf"(?s)after 1 try: .*{FINAL[status]}") as caught:
        dataset[3]
    assert dataset.source.shard(3) in str(caught.value)
    assert sum(map(is_shard, proxy.requests)) == 1
    loader = headrace.DataLoader(dataset, batch_size=4)
    with pytest.raises(SampleError, match=r"sample 0 \(s3://bucket/pack/shard-.*on_error='skip'"):
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
    stats = loaders[0].stats().remote
    assert stats is not None
    assert stats.retries >= 2
    assert (stats.concurrency < 16) == (fault in ("408", "429", "503")), "fewer at a time where it is busy"


@pytest.mark.parametrize("fault", TRANSIENT)
def test_lasting_errors_are_reported_after_the_last_attempt(remote: Make, proxy: Proxy, fault: str) -> None:
    dataset = remote()
    proxy.behave = lambda request: fault if is_shard(request) else ""
    words = "Requested .*, got" if fault == "elsewhere" else rf"{fault} .*retry_config"
    with pytest.raises(RemoteError, match=rf"after {TRIES} tries: .*{words}"):
        dataset[3]
    assert sum(map(is_shard, proxy.requests)) == TRIES


def test_a_store_that_redirects_is_followed_or_reported(
    remote: Make, served: Any, local: headrace.PackedDataset, proxy: Proxy, tmp_path: Path
) -> None:
    dataset = remote()
    proxy.behave = lambda request: "moved" if is_shard(request) else ""
    # What was signed for one host isn't valid for another.
    with pytest.raises(RemoteError, match=r"after 1 try: .*40[03]"):
        dataset[3]
    arguments: dict[str, Any] = {"cache_dir": tmp_path / "http", "cache_bytes": CACHE_BYTES}
    with http_server(served.folder, tmp_path / "rclone.conf") as address, proxied(address) as web:
        dataset = headrace.PackedDataset(f"{web.url}/bucket/pack", TRANSFORM, **arguments)
        web.behave = lambda request: "moved" if is_shard(request) else ""
        loaders = [headrace.DataLoader(each, batch_size=7, seed=1) for each in (dataset, local)]
        for (images, labels), (expected, targets) in zip(*loaders, strict=True):
            assert torch.equal(images, expected)
            assert torch.equal(labels, targets)


def test_a_server_that_sends_the_whole_object(served: Any, tmp_path: Path) -> None:
    folder = tmp_path / "served" / "pack"
    images = image_folder(tmp_path / "images", 2)
    headrace.pack(str(images), str(folder))
    local = headrace.PackedDataset(folder, TRANSFORM)
    arguments: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache_bytes": CACHE_BYTES}
    with http_server(tmp_path / "served", tmp_path / "rclone.conf") as address, proxied(address) as web:
        web.behave = lambda request: "whole" if is_shard(request) else ""
        dataset = headrace.PackedDataset(f"{web.url}/pack", TRANSFORM, **arguments)
        sizes = local.source.extents.sizes.tolist()
        small = sizes.index(min(sizes))
        assert (folder / "shard-000000.tar").stat().st_size > 2 * sizes[small]
        with pytest.raises(RemoteError, match=r"after 1 try: .*ignores ranges"):
            dataset[small]
        # Both samples at once are most of it: what is asked for is cut out.
        loaders = [headrace.DataLoader(each, batch_size=2, seed=1) for each in (dataset, local)]
        for (images, labels), (expected, targets) in zip(*loaders, strict=True):
            assert torch.equal(images, expected)
            assert torch.equal(labels, targets)


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


def said(status: int, path: str = "shard-000000.tar", body: str = "", debug: str = "") -> StoreError:
    """As obstore words it."""
    text = f"Generic S3 error: Error performing GET http://host:8429/bucket/{path} in 503.1ms - "
    text += f"Server returned non-2xx status code: {status} Whatever: {body}\n\nDebug source:\n{debug}"
    return StoreError("GenericError", text)


def test_numbers_in_paths_and_times_are_no_statuses() -> None:
    assert not Failure.of(said(500, "shard-000503-429.tar")).busy
    assert Failure.of(said(503)).busy
    assert Failure.of(said(429)).busy
    waited = StoreError("GenericError", "Generic S3 error: HTTP error\n\nDebug source:\nkind: Timeout,\n")
    failure = Failure.of(waited)
    assert (failure.busy, failure.final) == (True, False)
    assert re.search("took too long. .*overloaded", str(failure))


@pytest.mark.parametrize("code", ["RequestTimeout", "Throttling"])
def test_temporary_errors_of_aws_with_status_400_are_retried(code: str) -> None:
    late = Failure.of(
        said(400, body=f"<ErrorResponse a='b'><Error><Code>{code}</Code></Error></ErrorResponse>")
    )
    assert (late.final, late.busy) == (False, False)
    assert late.cause.endswith(f"400 Whatever: {code}")
    assert Failure.of(said(400, body="<Error><Code>ExpiredToken</Code></Error>")).final


def test_missing_credentials_are_reported_and_not_at_the_first_try() -> None:
    asked = StoreError(
        "GenericError",
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1ms - "
        "Server returned non-2xx status code: 403 Forbidden: denied",
    )
    failure = Failure.of(asked)
    assert not failure.final
    assert "No credentials were found" in failure.advice


def test_an_unknown_host_is_reported_in_the_systems_words() -> None:
    debug = 'ConnectError(\n"dns error",\nerror: "failed to lookup address information: unknown",\n)'
    refused = StoreError("GenericError", f"Generic S3 error: error sending request\n\nDebug source:\n{debug}")
    assert str(Failure.of(refused)).endswith("unknown. Check the endpoint and the network")
