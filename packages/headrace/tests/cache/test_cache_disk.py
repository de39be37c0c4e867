"""Disks that are full, fail, or lost what was written last."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cache import Cache, Claim, Record
from headrace.cache.files import write
from headrace.errors import CacheError
from support.cache_records import BLOCK, bytes_on_disk, content, put, record, states


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("may not mount a disk")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path) -> Path:
    """To the last byte; the file that does it."""
    path = disk / "full"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * BLOCK)
        except OSError:
            return path


def test_a_disk_that_fills_up_keeps_what_it_can(disk: Path) -> None:
    """Whoever needs the others goes on without keeping them."""
    cache = Cache(disk / "cache", 2**30)
    kept = []
    for number in range(150):
        one = record(number, 60_000)
        (claim,) = cache.claim([one], [number])
        paths = cache.add([one], [content(number, 60_000)]) if claim.state == "mine" else [None]
        if paths[0] is not None:
            kept.append(number)
            assert Path(paths[0]).read_bytes() == content(number, 60_000)
            cache.release([one], [1000 + number])
    assert 20 < len(kept) < 139
    assert cache.stats().records == len(kept)
    assert cache.stats().not_kept > 0
    assert bytes_on_disk(disk / "cache") == cache.stats().bytes
    cache.close()


def test_an_index_that_cannot_be_written_is_made_up_for(disk: Path) -> None:
    """Its log has room for a few changes; then nothing is kept and nothing is lost."""
    cache = Cache(disk / "cache", 2**30)
    put(cache, list(range(60)))
    full = fill(disk)
    claims = [cache.claim([record(number)], [number])[0].state for number in range(100, 1000)]
    assert claims[-1] == "full"
    cache.give_up([record(number) for number in range(100, 1000)])
    for number in range(60):
        cache.release([record(number)], [None])
    assert cache.claim([record(500)], [500])[0].state in ("full", "mine")
    full.unlink()
    cache.give_up([record(500)])
    assert states(cache, list(range(60))) == ["ready"] * 60
    assert (cache.stats().records, cache.stats().bytes) == (60, 60 * BLOCK)
    cache.close()


def test_a_disk_without_room_for_an_index_is_an_error(disk: Path) -> None:
    (disk / "cache").mkdir()
    fill(disk)
    with pytest.raises(CacheError, match=r"The disk is full|No space left"):
        Cache(disk / "cache", 2**30)


def test_a_file_that_may_not_grow_so_large_is_not_kept(tmp_path: Path) -> None:
    """As under `ulimit -f`, or a quota."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        assert write(str(tmp_path / "small"), bytes(100_000))
        assert not write(str(tmp_path / "large"), bytes(100_001))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == ["small"]


def test_a_folder_that_vanished_is_an_error_that_names_it(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 8 * BLOCK)
    cache.claim([record(1), record(2)], [0, 0])
    folder = next(tmp_path.glob("headrace-*"))
    folder.rename(tmp_path / "elsewhere")
    folder.write_text("in the way")
    with pytest.raises(CacheError, match=r"can't write .*headrace-.*: Not a directory"):
        cache.add([record(1), record(2)], [content(1), content(2)])
    folder.unlink()
    assert all(cache.add([record(1), record(2)], [content(1), content(2)]))
    cache.close()


def test_files_that_the_index_lost_in_a_power_failure_go(tmp_path: Path, monkeypatch) -> None:
    """Which nothing would count otherwise. Others stay."""
    boot = tmp_path / "boot_id"
    boot.write_text("first")
    monkeypatch.setattr("headrace.cache.claiming.BOOT", boot)
    cache = Cache(tmp_path / "cache", 8 * BLOCK)
    (path,) = put(cache, [1])
    cache.close()
    assert path is not None
    stray = Path(path).parent.parent / "2a" / "12a"
    foreign = [stray.parent / "12b", stray.parent / "012a", stray.parent / "mine.txt", stray.parent / "-d6"]
    stray.parent.mkdir()
    for file in [stray, *foreign]:
        file.write_text("left")
    Cache(tmp_path / "cache", 8 * BLOCK).close()
    assert stray.exists()
    boot.write_text("second")
    cache = Cache(tmp_path / "cache", 8 * BLOCK)
    assert not stray.exists()
    assert all(file.read_text() == "left" for file in foreign)
    assert cache.claim([record(1)], [0]) == [Claim("ready", path)]
    cache.close()


def test_a_record_that_the_disk_cannot_hold_leaves_the_others(tmp_path: Path, monkeypatch) -> None:
    """One of a batch."""
    cache = Cache(tmp_path, 8 * BLOCK)
    monkeypatch.setattr(
        "headrace.cache.files.write", lambda path, data: len(data) == 3000 and write(path, data)
    )
    batch = [record(1), Record("other", 3001, None), record(2)]
    cache.claim(batch, [0, 0, 0])
    paths = cache.add(batch, [content(1), content(5, 3001), content(2)])
    assert [path is None for path in paths] == [False, True, False]
    assert (cache.stats().records, cache.stats().not_kept) == (2, 1)
    cache.release([record(1), record(2)], [None, None])
    cache.close()


def test_a_folder_deleted_in_use_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Whether or not another process has made it again meanwhile."""
    folder = tmp_path / "cache"
    for made_again in (False, True):
        cache = Cache(folder, 8 * BLOCK)
        put(cache, [1])
        shutil.rmtree(folder)
        other = Cache(folder, 8 * BLOCK) if made_again else None
        for use in (
            lambda cache=cache: cache.claim([record(2)], [0]),
            lambda cache=cache: cache.release([record(1)], [None]),
            cache.stats,
        ):
            with pytest.raises(CacheError, match=f"{folder}.* was deleted"):
                use()
        cache.close()
        if other is not None:
            put(other, [1])
            other.close()


def test_the_locks_of_the_clients_may_be_deleted_in_use(tmp_path: Path) -> None:
    """A client doesn't take itself for dead then."""
    cache = Cache(tmp_path, 4 * BLOCK)
    put(cache, [1, 2, 3, 4])
    shutil.rmtree(next(tmp_path.glob("headrace-*")) / "clients")
    for _ in range(3):
        assert cache.claim([record(5)], [9])[0].state == "full"
    cache.release([record(1)], [None])
    assert cache.claim([record(5)], [9])[0].state == "mine"
    cache.close()


def test_waiting_for_the_index_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped while it held the lock holds up no other for ever."""
    cache = Cache(tmp_path, 8 * BLOCK)
    monkeypatch.setattr("headrace.cache.index.BUSY_SECONDS", 0.05)
    with (tmp_path / "index.lock").open("wb") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(CacheError, match=r"index\.sqlite has been locked for 0\.05 s by another process"):
            cache.stats()
    assert cache.stats().records == 0
    cache.close()
