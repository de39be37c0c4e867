"""A pack that was interrupted, at any moment and by anything, becomes the one that wasn't."""

from __future__ import annotations

import dataclasses
import fcntl
import multiprocessing
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from support.jpegs import image_folder
from support.pack_folders import FORMATS, contents

SHARD_SIZE = 40_000


class Killed(BaseException):
    """Stands for kill -9 where no process is to die."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("data") / "src", 40)


def make_whole(folder: Path, dest: Path, **options: Any) -> dict[str, bytes]:
    """The pack that nobody interrupted."""
    assert run(folder, dest, **options).shards > 4
    return contents(dest)


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return make_whole(folder, tmp_path_factory.mktemp("whole") / "dest")


def run(folder: Path, dest: Path, **options: Any) -> headrace.packs.build.PackSummary:
    return headrace.pack(folder, dest, **{"shard_size": SHARD_SIZE, "workers": 2, **options})


def killer(patch: pytest.MonkeyPatch, after: int) -> None:
    """Kills at the `after`th change that is made to the disk's names or waited for."""
    calls = iter(range(after))

    def lethal(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls, None) is None:
                raise Killed
            return real(*args, **kwargs)

        return call

    for name in ("replace", "rename", "fsync", "unlink", "rmdir", "mkdir"):
        patch.setattr(os, name, lethal(getattr(os, name)))


@pytest.mark.parametrize("format_", FORMATS)
def test_killed_at_every_step_and_run_again(folder: Path, tmp_path: Path, format_: str) -> None:
    whole = make_whole(folder, tmp_path / "whole", format=format_)
    for after in range(1000):
        dest = tmp_path / f"{after}"
        with pytest.MonkeyPatch.context() as patch:
            killer(patch, after)
            try:
                run(folder, dest, format=format_)
            except Killed:
                assert not dest.exists() or contents(dest) == whole
            else:
                break
        if not dest.exists():
            run(folder, dest, format=format_)
        assert contents(dest) == whole
        assert not (tmp_path / f"{after}.partial").exists()
        shutil.rmtree(dest)
    assert after > 20


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
def test_killed_for_good_at_random_moments(folder: Path, tmp_path: Path, kills: int, format_: str) -> None:
    whole = make_whole(folder, tmp_path / "whole", format=format_)
    dest, draw = tmp_path / "dest", random.Random(5)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["headrace"])
    for _ in range(kills):
        process = context.Process(target=run, args=(folder, dest), kwargs={"format": format_})
        process.start()
        while process.is_alive() and not (tmp_path / "dest.partial").exists() and not dest.exists():
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.15))
        process.kill()
        process.join()
        if dest.exists():
            assert contents(dest) == whole
            shutil.rmtree(dest)
    run(folder, dest, format=format_)
    assert contents(dest) == whole


def test_finished_shards_are_not_made_again(folder: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    def stop_in_the_middle(done: int, total: int) -> None:
        seen.append((done, total))
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "dest", progress=stop_in_the_middle)
    kept = len(list((tmp_path / "dest.partial" / "parts").glob("*.arrow")))
    assert kept >= 2
    later: list[int] = []
    summary = run(folder, tmp_path / "dest", progress=lambda done, _: later.append(done))
    assert summary.reused == kept
    assert later == sorted(later)
    assert later[0] > kept
    assert later[-1] == summary.samples == seen[0][1]
    assert contents(tmp_path / "dest") == whole


def test_half_a_shard_is_never_taken_for_a_whole_one(
    folder: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        killer(patch, 14)
        with pytest.raises(Killed):
            run(folder, tmp_path / "dest")
    shard = tmp_path / "dest.partial" / "shard-000000.tar"
    shard.write_bytes(shard.read_bytes()[:-100])
    run(folder, tmp_path / "dest")
    assert contents(tmp_path / "dest") == whole


@pytest.fixture
def interrupted(folder: Path, tmp_path: Path) -> Path:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder, tmp_path / "dest", progress=stop)
    return tmp_path / "dest"


def test_other_options_are_refused_by_name(folder: Path, interrupted: Path) -> None:
    with pytest.raises(headrace.PackError, match=r"was started with shuffle=None \(now 3\)\. Run the same"):
        run(folder, interrupted, shuffle=3)
    with pytest.raises(headrace.PackError, match=r"shard_size=40000 \(now 50000\)"):
        run(folder, interrupted, shard_size=50_000)


def test_another_source_is_refused(folder: Path, interrupted: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    run(copy, tmp_path / "unharmed")
    file = copy / "class0" / "00000.jpg"
    os.utime(file, ns=(0, 0))
    with pytest.raises(headrace.PackError, match="started with other files"):
        run(copy, interrupted)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_finished_pack_is_up_to_date(folder: Path, tmp_path: Path, format_: str) -> None:
    (tmp_path / "dest").mkdir()
    first = run(folder, tmp_path / "dest", format=format_)
    before = contents(tmp_path / "dest")
    again = run(folder, tmp_path / "dest", format=format_)
    assert again == dataclasses.replace(first, reused=first.shards, up_to_date=True)
    assert contents(tmp_path / "dest") == before
    assert not (tmp_path / "dest.partial").exists()


def test_another_pack_of_a_changed_source_or_other_options_is_left_alone(
    folder: Path, tmp_path: Path
) -> None:
    source, dest = shutil.copytree(folder, tmp_path / "copy"), tmp_path / "dest"
    run(source, dest)
    before = contents(dest)
    file = source / "class0" / "00000.jpg"
    for change, options, reason in (
        (lambda: None, {"shuffle": 3}, r"made with shuffle=None \(now 3\): remove it, or choose"),
        (lambda: os.utime(file), {}, "made with files that have changed since"),
        (lambda: file.rename(file.with_name("renamed.jpg")), {}, r"made with other files"),
    ):
        change()
        with pytest.raises(headrace.PackError, match=f"dest exists already and was {reason}"):
            run(source, dest, **options)
    assert contents(dest) == before


def test_a_destination_that_is_no_finished_pack_is_left_alone(folder: Path, tmp_path: Path) -> None:
    run(folder, tmp_path / "dest")
    shard = tmp_path / "dest" / "shard-000000.tar"
    shard.write_bytes(shard.read_bytes()[:-1])
    before = contents(tmp_path / "dest")
    with pytest.raises(headrace.PackError, match="dest exists already: remove it"):
        run(folder, tmp_path / "dest")
    assert contents(tmp_path / "dest") == before


def test_two_runs_at_a_time_are_refused(folder: Path, interrupted: Path) -> None:
    partial = interrupted.with_name("dest.partial")
    handle = os.open(partial, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(headrace.PackError, match=r"is being written by another headrace pack"):
        run(folder, interrupted)
    os.close(handle)
    run(folder, interrupted)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """1 MB, where this user may mount."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"mount isn't permitted: {done.stderr.decode()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_too_small_is_reported_before_it_is_full(
    folder: Path, small_disk: Path, tmp_path: Path
) -> None:
    big = image_folder(tmp_path / "big", 40, side=300)
    with pytest.raises(headrace.PackError, match=r"dest\.partial may need .* MB, and its disk has"):
        headrace.pack(big, small_disk / "dest")


def test_a_full_disk_is_named_and_the_work_kept(
    folder: Path, whole: dict[str, bytes], small_disk: Path
) -> None:
    ballast = small_disk / "ballast"

    def fill(done: int, total: int) -> None:
        if not ballast.exists() and done > total // 2:
            free = shutil.disk_usage(small_disk).free
            ballast.write_bytes(bytes(max(0, free - 40_000)))

    with pytest.raises(headrace.PackError, match=r"dest\.partial/.* can't be written: the disk is full"):
        run(folder, small_disk / "dest", progress=fill)
    ballast.unlink()
    assert run(folder, small_disk / "dest").reused > 0
    assert contents(small_disk / "dest") == whole
