"""Reading the user's own files to learn how fast their storage is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace_doctor.measure import storage
from headrace_doctor.measure.storage import RANDOM_READ, measure_storage


@pytest.fixture(autouse=True)
def in_no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What must be complete gets all the time it needs, what only has to happen gets little."""
    monkeypatch.setattr(storage, "FIND", 60.0)
    for name in ("RANDOM", "PARALLEL"):
        monkeypatch.setattr(storage, name, 0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """20 files of 4 to 194 KiB in three folders, and what doesn't count."""
    root = tmp_path / "data"
    for i in range(20):
        path = root / ("." if i == 0 else f"class_{i % 2}") / f"{i:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(4200 + i * 10_000))
    (root / "small.txt").write_text("too small")
    (root / "broken").symlink_to(root / "nowhere")
    (root / "class_0" / "up").symlink_to(root)
    os.mkfifo(root / "pipe")
    return root


def test_all_files_are_found_once(folder: Path) -> None:
    found = measure_storage(folder)
    assert found.complete
    assert found.path == folder
    assert found.files == 20
    assert found.bytes == 20 * 4200 + 190 * 10_000
    assert found.mount is not None
    assert found.mount.point in (folder, *folder.resolve().parents)


def test_a_search_that_is_cut_short_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MOST_FILES", 5)
    found = measure_storage(folder)
    assert (found.files, found.complete) == (5, False)


def test_a_search_ends_among_folders_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.setattr(storage, "FIND", -1.0)
    found = measure_storage(tmp_path)
    assert (found.files, found.complete) == (0, False)


@pytest.mark.parametrize("direct", [True, False])
def test_every_way_of_reading_reads(folder: Path, direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not direct:
        monkeypatch.setattr(storage, "_is_direct", lambda _: False)
    found = measure_storage(folder)
    assert found.rates is not None
    if not direct:
        assert not found.rates.direct
    assert found.rates.failures == ()
    for reads in (found.rates.random, found.rates.parallel):
        assert reads.reads > 0
        assert 4200 * reads.reads <= reads.bytes <= RANDOM_READ * reads.reads
        assert reads.bytes_per_second == pytest.approx(reads.bytes / reads.seconds)


def test_each_thread_reads_once_if_it_starts_too_late(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANDOM", "PARALLEL"):
        monkeypatch.setattr(storage, name, -1.0)
    found = measure_storage(folder)
    assert found.rates is not None
    assert (found.rates.random.reads, found.rates.parallel.reads) == (1, 32)


def test_one_file(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(bytes(1 << 20))
    found = measure_storage(tmp_path / "a.tar")
    assert (found.files, found.bytes, found.complete) == (1, 1 << 20, True)
    assert found.rates is not None


def test_nothing_to_read(tmp_path: Path) -> None:
    found = measure_storage(tmp_path)
    assert (found.files, found.rates) == (0, None)
    with pytest.raises(FileNotFoundError):
        measure_storage(tmp_path / "nowhere")


def test_files_that_fail_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = storage._File(str(folder / "gone.jpg"), 5000)
    kept = storage._File(str(folder / "00.jpg"), 4200)
    monkeypatch.setattr(storage, "_find", lambda _: ([gone, kept], True))
    found = measure_storage(folder)
    assert found.rates is not None
    assert found.rates.failures == (f"{gone.path}: No such file or directory",)
    assert found.rates.parallel.bytes > 0


def test_nothing_is_written(folder: Path) -> None:
    def state() -> list[tuple[str, int, int, int]]:
        paths = (folder, *sorted(folder.rglob("*")))
        return [(str(p), s.st_size, s.st_mtime_ns, s.st_ctime_ns) for p in paths for s in (p.lstat(),)]

    before = state()
    measure_storage(folder)
    assert state() == before
