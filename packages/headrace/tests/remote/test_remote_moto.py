"""What a store that checks who asks answers: told at once, with its own words and what to do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import PackError, RemoteError, SampleError
from support.jpegs import image_folder
from support.moto_store import UNCHECKED, Moto, moto_server
from support.remote_setting import CACHE_BYTES, RETRY, TRANSFORM

COUNT = 24


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("moto")
    headrace.pack(str(image_folder(place / "images", COUNT)), str(place / "pack"), shard_size=100_000)
    return place / "pack"


@pytest.fixture(scope="module")
def server(pack: Path) -> Iterator[Moto]:
    pytest.importorskip("obstore", reason="obstore isn't installed (pip install 'headrace[remote]')")
    if find_spec("moto") is None or find_spec("flask") is None:
        pytest.skip("moto isn't installed (pip install 'moto[s3]' flask flask-cors)")
    with moto_server() as moto:
        moto.put("bucket")
        moto.upload(pack, "bucket/pack")
        yield moto


@pytest.fixture
def moto(server: Moto) -> Iterator[Moto]:
    """Accepts any credentials unless a test has it check them."""
    server.check_after(UNCHECKED)
    yield server
    server.check_after(UNCHECKED)


@pytest.fixture
def open_pack(moto: Moto, tmp_path: Path) -> Any:
    def make(url: str = "s3://bucket/pack", **options: Any) -> headrace.PackedDataset:
        given = {
            "endpoint": moto.url,
            "access_key_id": "any",
            "secret_access_key": "any",
            "region": "us-east-1",
            "retry_config": RETRY,
        }
        return headrace.PackedDataset(
            url,
            TRANSFORM,
            storage_options={**given, **options},
            cache_dir=tmp_path,
            cache_bytes=CACHE_BYTES,
        )

    return make


REFUSED = r"s3://bucket/pack/index\.arrow can't be read: .*40[03] .*{}.*storage_options"


def test_kinds_of_wrong_credentials_are_distinguished(open_pack: Any, moto: Moto) -> None:
    key, secret = moto.user("stranger")
    moto.check_after(0)
    with pytest.raises(PackError, match=REFUSED.format("InvalidAccessKeyId")):
        open_pack()
    with pytest.raises(PackError, match=REFUSED.format("SignatureDoesNotMatch")):
        open_pack(access_key_id=key)
    with pytest.raises(PackError, match=REFUSED.format("AccessDenied")):
        open_pack(access_key_id=key, secret_access_key=secret)
    with pytest.raises(PackError, match=REFUSED.format("InvalidToken")):
        open_pack(access_key_id=key, secret_access_key=secret, token="expired")
    with pytest.raises(PackError, match=r"403 Forbidden.*skip_signature"):
        open_pack(skip_signature=True)


def test_credentials_that_may_read_are_enough(open_pack: Any, moto: Moto) -> None:
    key, secret = moto.user("reader")
    moto.let_read("reader")
    moto.check_after(0)
    dataset = open_pack(access_key_id=key, secret_access_key=secret)
    assert dataset[COUNT - 1][1] == dataset.targets[COUNT - 1]


def test_credentials_that_are_withdrawn_in_an_epoch_end_it_once_and_can_be_given_back(
    open_pack: Any, moto: Moto
) -> None:
    dataset = open_pack()
    moto.check_after(3)
    loader = headrace.DataLoader(dataset, batch_size=1)
    with pytest.raises(SampleError, match=r"s3://bucket/pack/shard-.*.*403 Forbidden") as caught:
        list(loader)
    assert "InvalidAccessKeyId" in str(caught.value)
    moto.check_after(UNCHECKED)
    assert sum(len(labels) for _, labels in loader) == COUNT


def test_what_isnt_there_is_named(open_pack: Any, moto: Moto, pack: Path) -> None:
    with pytest.raises(PackError, match=r"s3://nobody/pack/index\.arrow .* 404 .*NoSuchBucket"):
        open_pack("s3://nobody/pack")
    with pytest.raises(PackError, match=r"s3://bucket/nothing/index\.arrow .* 404 .*NoSuchKey"):
        open_pack("s3://bucket/nothing")
    moto.put("bucket/half/index.arrow", (pack / "index.arrow").read_bytes())
    dataset = open_pack("s3://bucket/half")
    with pytest.raises(RemoteError, match=r"s3://bucket/half/shard-000000\.tar .* 404 .*NoSuchKey"):
        dataset[0]


def test_a_shard_that_was_cut_is_reported_at_once(
    open_pack: Any, moto: Moto, pack: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(pack, cut)
    dataset = headrace.PackedDataset(pack)
    last = max(i for i in range(COUNT) if dataset.source.shard(i).endswith("shard-000000.tar"))
    begin = int(dataset.source.extents.begins[last])
    moto.upload(cut, "bucket/cut")
    for size, words in (
        (begin, "416 .*InvalidRange"),
        (begin + 10, "10 bytes|can't be read"),
    ):
        moto.put("bucket/cut/shard-000000.tar", (pack / "shard-000000.tar").read_bytes()[:size])
        with pytest.raises(RemoteError, match=words) as caught:
            open_pack("s3://bucket/cut")[last]
        assert "s3://bucket/cut/shard-000000.tar" in str(caught.value)


def test_a_damaged_index_is_reported_with_its_url_and_fetched_again(
    open_pack: Any, moto: Moto, pack: Path
) -> None:
    moto.upload(pack, "bucket/odd")
    right = (pack / "index.arrow").read_bytes()
    for wrong in (b"", b"<html>Sign in to the hotel's network</html>", bytes(len(right))):
        moto.put("bucket/odd/index.arrow", wrong)
        with pytest.raises(
            PackError, match=r"s3://bucket/odd/index\.arrow, kept as .* can't be read as a pack's"
        ):
            open_pack("s3://bucket/odd")
    moto.put("bucket/odd/index.arrow", right)
    assert len(open_pack("s3://bucket/odd")) == COUNT
