"""Disks that are full, fail, or lost what was written last."""

from __future__ import annotations

import fcntl
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.cache import Cache
from headrace.errors import CacheError
from support.cache_records import BLOCK, bytes_on_disk, content, put, record, states


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB, for 2,000 files."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=2000", "tmpfs", place],
        capture_output=True,
        check=False,
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
    """Whoever needs the others continues without keeping them."""
    cache = Cache(disk / "cache", 2**30)
    kept = []
    for number in range(150):
        one = record(number, 60_000)
        (claim,) = cache.claim([one])
        paths = cache.add([one], [content(number, 60_000)]) if claim.state == "mine" else [None]
        if paths[0] is not None:
            kept.append(number)
            assert Path(paths[0]).read_bytes() == content(number, 60_000)
    assert 20 < len(kept) < 139
    assert cache.stats().records == len(kept)
    assert cache.stats().not_kept > 0
    assert bytes_on_disk(disk / "cache") == cache.stats().bytes
    full = fill(disk)
    assert [claim.state for claim in cache.claim([record(n, 60_000) for n in kept])] == ["ready"] * len(kept)
    full.unlink()
    cache.close()


def test_a_disk_without_room_for_a_cache_is_an_error(disk: Path) -> None:
    (disk / "cache").mkdir()
    fill(disk)
    with pytest.raises(CacheError, match=r"The disk is full"):
        Cache(disk / "cache", 2**30)


def test_a_record_that_the_disk_cannot_hold_leaves_the_others(tmp_path: Path) -> None:
    """One of a batch, as under `ulimit -f` or a quota."""
    cache = Cache(tmp_path, 100 * BLOCK)
    batch = [record(1), record(2, 100_001), record(3)]
    cache.claim(batch)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        paths = cache.add(batch, [content(1), content(2, 100_001), content(3)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path is None for path in paths] == [False, True, False]
    assert (cache.stats().records, cache.stats().not_kept) == (2, 1)
    assert bytes_on_disk(tmp_path) == cache.stats().bytes == 2 * BLOCK
    cache.close()


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 8 * BLOCK)
    cache.claim([record(1), record(2)])
    (folder, *_) = tmp_path.glob("datasets/*")
    folder.rename(tmp_path / "elsewhere")
    folder.write_text("in the way")
    with pytest.raises(CacheError, match=r"can't be used: Not a directory \(.*datasets/"):
        cache.add([record(1), record(2)], [content(1), content(2)])
    folder.unlink()
    (tmp_path / "elsewhere").rename(folder)
    assert all(cache.add([record(1), record(2)], [content(1), content(2)]))
    cache.close()


def test_a_folder_deleted_in_use_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Whether or not another process has made it again meanwhile."""
    folder = tmp_path / "cache"
    for made_again in (False, True):
        cache = Cache(folder, 8 * BLOCK)
        put(cache, [1])
        shutil.rmtree(folder)
        other = Cache(folder, 8 * BLOCK) if made_again else None
        for use in (lambda cache=cache: cache.claim([record(1)]), cache.stats):
            with pytest.raises(CacheError, match=f"{folder}.* was deleted"):
                use()
        cache.close()
        if other is not None:
            put(other, [1])
            other.close()


def test_waiting_for_the_lock_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped while it held the lock holds up no other for ever."""
    cache = Cache(tmp_path, 8 * BLOCK)
    monkeypatch.setattr("headrace.sources.stores.cache.files.BUSY_SECONDS", 0.05)
    with (tmp_path / "lock").open("rb") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(CacheError, match=r"lock .* has been held for 0\.05 s by another process"):
            cache.stats()
    assert cache.stats().records == 0
    cache.close()


def test_a_dataset_that_the_full_disk_has_no_room_for_is_not_kept(disk: Path) -> None:
    cache = Cache(disk / "cache", 2**30)
    made: list[Path] = []
    with suppress(OSError):
        while True:
            (disk / f"{len(made)}").touch()
            made.append(disk / f"{len(made)}")
    assert states(cache, record(1)) == ["full"]
    for path in made:
        path.unlink()
    assert states(cache, record(1)) == ["mine"]
    cache.close()


def test_a_claim_that_fails_leaves_none_of_its_records_claimed(tmp_path: Path) -> None:
    """Others would wait for them as long as the process lives."""
    cache, other = (Cache(tmp_path, 8 * BLOCK) for _ in range(2))
    (path,) = put(cache, [2])
    assert path is not None
    Path(path).unlink()
    Path(path).mkdir()
    with pytest.raises(CacheError, match="Is a directory"):
        cache.claim([record(1), record(2)])
    assert states(other, record(1)) == ["mine"]
    cache.close()
    other.close()


def test_a_record_that_could_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 8 * BLOCK)
    (path,) = put(cache, [1])
    assert path is not None
    Path(path).unlink()
    assert states(cache, record(1)) == ["mine"]
    Path(path).mkdir()
    with pytest.raises(CacheError, match="Is a directory"):
        cache.add([record(1)], [content(1)])
    Path(path).rmdir()
    cache.give_up([record(1)])
    assert bytes_on_disk(tmp_path) == 0
    cache.close()


def test_a_process_that_may_open_no_more_files_removes_no_record(tmp_path: Path) -> None:
    writer = Cache(tmp_path, 8 * BLOCK)
    (path,) = put(writer, [1])
    reader = Cache(tmp_path, 8 * BLOCK)
    reader.claim([record(2)])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        with pytest.raises(CacheError, match="Too many open files"):
            reader.claim([record(1)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert path is not None
    assert Path(path).exists()
    assert states(reader, record(1)) == ["ready"]
    writer.close()
    reader.close()
