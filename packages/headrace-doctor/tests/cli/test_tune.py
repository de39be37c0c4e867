"""`headrace tune`: how it ends where the script is at fault, or the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import run_command

RAISES = "def work():\n    raise ValueError('no such column')\n\nwork()\n"


@pytest.mark.parametrize("target", ["{}", "{}:loader"])
def test_an_error_of_the_script_is_shown_as_python_shows_it(target: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(RAISES)
    done = run_command("tune", target.format(script))
    lines = done.stderr.splitlines()
    assert done.exit_code == 1
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{script}", line 4, in <module>'
    assert lines[-1] == "ValueError: no such column"
    assert "headrace/cli" not in done.stderr


def test_a_loader_that_does_not_exist_is_wrong_usage(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("loader = None\n")
    for target, message in (
        (tmp_path / "missing.py", "isn't a file"),
        (f"{script}:absent", "has no absent"),
        (script, "ended without iterating over 1 DataLoader(s)"),
    ):
        done = run_command("tune", target)
        assert done.exit_code == 2
        assert message in " ".join(done.stderr.replace("│", " ").split())
        assert "Traceback" not in done.stderr


def test_options_behind_the_script_are_its_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nraise ValueError(sys.argv[1:])\n")
    done = run_command("tune", "--seconds", "1", script, "--seconds", "2", "-x")
    assert done.stderr.splitlines()[-1] == "ValueError: ['--seconds', '2', '-x']"


def test_ctrl_c_ends_with_the_code_that_shells_use(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise KeyboardInterrupt\n")
    done = run_command("tune", script)
    assert (done.exit_code, done.stderr) == (130, "")
