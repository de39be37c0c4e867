"""Files are whole or not there, for one writer or several."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from headrace._files import whole_file


def test_a_file_has_its_name_only_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("contended", [False, True])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, contended: bool) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def write_half() -> None:
        with whole_file(path, contended=contended) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_several_writers_at_a_time_do_not_mix_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with whole_file(path, contended=True) as first, whole_file(path, contended=True) as second:
        for _ in range(100):
            first.write(b"1" * 1000)
            second.write(b"2" * 1000)
    assert path.read_bytes() == b"1" * 100_000, "the first was the last to be complete"


def test_a_killed_writers_temporary_file_is_reused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    child = os.fork()
    if child == 0:
        with whole_file(path) as file:
            file.write(b"half" * 10_000)
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert not path.exists()
    with whole_file(path) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["x"]
