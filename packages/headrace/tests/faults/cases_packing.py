"""What packing makes of storage that fails; run by test_storage.py, with faults.c preloaded."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.packs.index import build_entry_index, build_shard_index
from headrace.packs.verify import verify
from headrace.sources.entry_index import EntryIndex
from support.command import run_command
from support.faults import Faults
from support.jpegs import image_folder
from support.pack_folders import contents

COUNT = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("pictures") / "src", COUNT, side=60)


def run(folder: Path, dest: Path, **options: Any) -> dict[str, bytes]:
    return contents(Path(headrace.pack(folder, dest, **{"shard_size": 12_000, "workers": 2, **options}).path))


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    place = tmp_path_factory.mktemp("whole")
    return {form: run(folder, place / form, format=form) for form in ("tar", "lmdb")}


@pytest.mark.parametrize("form", ["tar", "lmdb"])
def test_a_disk_that_fills_up_leaves_nothing_that_looks_whole(
    folder: Path, whole: dict[str, dict[str, bytes]], faults: Faults, tmp_path: Path, form: str
) -> None:
    size = sum(map(len, whole[form].values()))
    for share in (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9):
        dest = tmp_path / f"{share}"
        faults(f"full {int(size * share)} {share}.partial")
        with pytest.raises(headrace.PackError, match=r"\.partial.* can't be written.*disk (is )?full"):
            run(folder, dest, format=form)
        assert not dest.exists()
        with pytest.raises(headrace.PackError, match="doesn't exist"):
            headrace.PackedDataset(dest)
        faults()
        assert run(folder, dest, format=form) == whole[form]


def test_the_command_says_so_and_ends_with_2(folder: Path, faults: Faults, tmp_path: Path) -> None:
    faults("full 20000 dest.partial")
    done = run_command("pack", folder, tmp_path / "dest")
    assert done.exit_code == 2
    assert "dest.partial" in done.stderr
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "dest").exists()


@pytest.mark.parametrize("form", ["tar", "lmdb"])
@pytest.mark.parametrize("rule", [f"sync {errno.EIO}", f"open {errno.EROFS}"])
def test_what_cannot_be_put_on_the_disk_is_not_called_whole(
    folder: Path, whole: dict[str, dict[str, bytes]], faults: Faults, tmp_path: Path, rule: str, form: str
) -> None:
    faults(f"{rule} dest.partial/")
    with pytest.raises(headrace.PackError, match=r"dest\.partial/.*can't be written"):
        run(folder, tmp_path / "dest", format=form)
    assert not (tmp_path / "dest").exists()
    faults()
    assert run(folder, tmp_path / "dest", format=form) == whole[form]


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_source_that_cannot_be_read_is_named(
    folder: Path, whole: dict[str, dict[str, bytes]], faults: Faults, tmp_path: Path, number: int
) -> None:
    path = sorted(folder.rglob("*.jpg"))[7]
    faults(f"read {number} {path}")
    with pytest.raises(headrace.PackError, match=os.strerror(number)) as caught:
        run(folder, tmp_path / "dest")
    assert str(path) in str(caught.value)
    assert not (tmp_path / "dest").exists()
    faults()
    assert run(folder, tmp_path / "dest") == whole["tar"]


def test_short_reads_lose_nothing(
    folder: Path, whole: dict[str, dict[str, bytes]], faults: Faults, tmp_path: Path
) -> None:
    faults(f"short 77 {folder}", f"short 77 {tmp_path / 'first'}")
    assert run(folder, tmp_path / "first") == whole["tar"]
    assert not verify(tmp_path / "first", against=folder).problems
    (tmp_path / "first" / "index.arrow").unlink()
    build_shard_index(tmp_path / "first")
    assert not verify(tmp_path / "first").problems
    run(tmp_path / "first", tmp_path / "second")
    assert not verify(tmp_path / "second").problems


@pytest.fixture
def shard(folder: Path, tmp_path: Path) -> Path:
    """The second of a pack's, which has lost its index."""
    pack = Path(headrace.pack(folder, tmp_path / "shards", shard_size=12_000).path)
    (pack / "index.arrow").unlink()
    return pack / "shard-000001.tar"


def test_shards_that_cannot_be_read_are_named(shard: Path, faults: Faults, tmp_path: Path) -> None:
    build_shard_index(shard.parent)
    faults(f"read {errno.EIO} {shard}")
    problems = verify(shard.parent).problems
    assert problems
    assert all(problem.shard == shard.name and "Input/output error" in problem.what for problem in problems)
    with pytest.raises(
        headrace.PackError, match=r"shard-000001\.tar can't be read: Input/output error"
    ) as caught:
        run(shard.parent, tmp_path / "dest")
    assert str(shard) in str(caught.value)
    (shard.parent / "index.arrow").unlink()
    with pytest.raises(OSError, match="Input/output error") as caught:  # type: ignore[assignment]
        build_shard_index(shard.parent)
    assert str(shard) in str(caught.value)
    faults()
    build_shard_index(shard.parent)
    assert not verify(shard.parent).problems


def test_an_index_of_entry_points_leaves_out_what_cannot_be_read(
    folder: Path, faults: Faults, tmp_path: Path
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(folder, root)
    faults(f"read {errno.EIO} {sorted(root.rglob('*.jpg'))[7]}")
    assert len(list(EntryIndex(build_entry_index(root).path).rows())) == COUNT - 1
    faults("full 100 .headrace-entry-points")
    with pytest.raises(OSError, match="No space left") as caught:
        build_entry_index(root)
    assert ".headrace-entry-points" in str(caught.value)
