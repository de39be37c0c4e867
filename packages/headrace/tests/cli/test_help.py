"""What all verbs have in common: what is imported before they work, colors, `--version` and `--json`."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import headrace
from support.command import run_command

# Each takes longer to import than a help text may take to appear.
HEAVY = ("torch", "torchvision", "pyarrow", "numpy", "PIL")
VERBS = ("", "index", "pack", "verify", "info", "tune", "top", "train", "doctor", "doctor data", "doctor run")

PROGRAM = f"""
import sys
import headrace.cli
for verb in {VERBS!r}:
    sys.argv = ["headrace", *verb.split(), "--help"]
    try:
        headrace.cli.main()
    except SystemExit as end:
        print("imported:", *(name for name in {HEAVY!r} if name in sys.modules), end.code)
"""


def test_the_help_of_every_verb_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.count("Usage:") == len(VERBS)
    ends = [line for line in done.stdout.splitlines() if line.startswith("imported:")]
    assert ends == ["imported: 0"] * len(VERBS)


def test_the_version_is_that_of_the_package_and_imports_nothing_heavy() -> None:
    program = PROGRAM.replace(repr(VERBS), repr(("--version",))).replace(', "--help"]', "]")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"headrace {metadata.version('headrace')}\nimported: 0\n"
    assert headrace.__version__ == metadata.version("headrace")
    quick = [sys.executable, "-m", "headrace", "--version"]
    assert subprocess.check_output(quick, text=True) == done.stdout.splitlines(keepends=True)[0]


def test_sources_that_are_not_installed_have_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.delattr(headrace, "__version__", raising=False)
    assert headrace.__version__ == "0+unknown"
    monkeypatch.delattr(headrace, "__version__")


COLORS = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|38;|4[0-7]|48;|9[0-7])[0-9;]*m")


def on_a_terminal(**environment: str) -> str:
    """What `headrace --help` writes to one."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    subprocess.run(
        [sys.executable, "-m", "headrace", "--help"],
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm-256color", **environment},
        check=True,
    )
    os.close(theirs)
    text = b""
    with suppress(OSError):  # the end
        while some := os.read(ours, 65536):
            text += some
    os.close(ours)
    return text.decode()


def test_colors_are_for_terminals_of_users_who_want_them() -> None:
    assert COLORS.search(on_a_terminal())
    plain = on_a_terminal(NO_COLOR="1")
    assert "Usage" in plain
    assert not COLORS.search(plain)
    piped = subprocess.run(
        [sys.executable, "-m", "headrace", "--help"], capture_output=True, text=True, check=True
    )
    assert "\x1b" not in piped.stdout + piped.stderr


@pytest.mark.parametrize(
    ("typed", "completed"), [("pa", "pack"), ("pack --ree", "--reencode"), ("doctor da", "data")]
)
def test_the_shell_completes_commands_and_options(typed: str, completed: str) -> None:
    words = f"headrace {typed}"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'headrace'; import headrace.cli; headrace.cli.main()",
        ],
        env={
            **os.environ,
            "_HEADRACE_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [completed]


def test_verbs_of_the_doctor_say_how_to_install_it() -> None:
    app = headrace.cli.command({})
    for verb in (["doctor", "run", "train.py", "--lr", "1"], ["tune", "--help"], ["top"]):
        done = CliRunner().invoke(app, verb)
        assert done.exit_code == 2
        assert done.stderr == f"headrace {verb[0]} needs the doctor: pip install headrace-doctor\n"


def test_verbs_with_results_have_the_same_json_option() -> None:
    for verb in ("verify", "info", "tune", "top", "doctor", "doctor data", "doctor run"):
        text = " ".join(run_command(*verb.split(), "--help").stdout.replace("│", "").split())
        assert (
            "--json FILE Write the result to this file as JSON; - prints it instead of the report." in text
        ), verb


def test_json_takes_the_place_of_the_report_on_standard_output(tmp_path: Path) -> None:
    (tmp_path / "images" / "cats").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "cats" / "a.jpg")
    assert run_command("pack", tmp_path / "images", tmp_path / "pack").exit_code == 0
    for verb in ("info", "verify"):
        report = run_command(verb, tmp_path / "pack").stdout
        done = run_command(verb, tmp_path / "pack", "--json", tmp_path / "out.json")
        assert done.stdout == report
        printed = run_command(verb, tmp_path / "pack", "--json", "-")
        assert printed.exit_code == 0
        assert json.loads(printed.stdout) == json.loads((tmp_path / "out.json").read_text())
        assert json.loads(printed.stdout)["samples"] == 1
    refused = run_command("info", tmp_path / "pack", "--json", tmp_path / "missing" / "out.json")
    assert refused.exit_code == 2
    assert "can't be written" in " ".join(refused.stderr.split())
