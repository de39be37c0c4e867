"""The tests' own tools."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from support.python import run_python, start_python


def test_a_program_has_its_arguments_environment_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "import os, sys; print(sys.argv[1:], dict(os.environ), os.getcwd(), __name__)"
    done = run_python(text, 1, "two", env={"A": "b"}, check=True)
    assert (done.stdout, done.stderr) == (f"['1', 'two'] {{'A': 'b'}} {tmp_path} __main__\n", "")


def test_a_script_is_found_by_the_processes_that_it_spawns(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        """
import multiprocessing, sys

def double(number):
    return 2 * number

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]))
"""
    )
    assert run_python(script, check=True).stdout == "[2, 4]\n"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no')", 1, "no"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("raise ValueError('wrong')", 1, "ValueError: wrong"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
        ("import atexit, sys; atexit.register(sys.stderr.write, 'the end')", 0, "the end"),
    ],
)
def test_how_a_program_ended_is_seen(text: str, code: int, said: str) -> None:
    done = run_python(text)
    assert (done.returncode, done.stderr.strip().split("\n")[-1]) == (code, said)


def test_a_program_is_talked_to_and_killed() -> None:
    program = "print(input(), flush=True); input()"
    process = start_python(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("a line\n")
    assert process.stdout.readline() == "a line\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    process.close()
    assert process.wait() == -signal.SIGKILL
