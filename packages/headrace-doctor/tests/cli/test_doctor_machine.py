"""`headrace doctor` on this machine, run as a user runs it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import headrace
from headrace_doctor.machine import FileLimit
from support.command import run_command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """10 MB of files."""
    for i in range(100):
        (tmp_path / f"{i}.jpg").write_bytes(os.urandom(100_000))
    return tmp_path


def test_every_finding_is_printed_and_written(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_doctor.measure.storage.FIND", 60.0)  # seconds: all files are found
    out = tmp_path_factory.mktemp("out") / "machine.json"
    done = run_command("doctor", "--path", folder, "--json", out)
    assert done.exit_code in (0, 1), done.stderr
    checkup = json.loads(out.read_text())
    assert checkup["subject"] == "machine"
    sections = {heading: {one["name"]: one for one in findings} for heading, findings in checkup["sections"]}
    for heading, findings in sections.items():
        assert heading.split()[0] in done.stdout
        for name in findings:
            assert name in done.stdout
    storage = sections[str(folder)]
    assert (storage["files"]["details"]["files"], storage["files"]["details"]["bytes"]) == (100, 10_000_000)
    assert storage["random reads"]["details"]["rates"]["parallel"]["bytes"] > 0
    assert sections["decoding"]["Pillow"]["details"]["pillow_per_core"] > 0
    assert {"torch"} <= set(sections["torch and GPU"])
    # The exit code is for scripts: whether anything is bad.
    judgements = [one["judgement"] for findings in sections.values() for one in findings.values()]
    assert done.exit_code == ("bad" in judgements)


def test_something_bad_is_an_exit_code_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_doctor.machine.file_limit", lambda: FileLimit(150, 150))
    done = run_command("doctor")
    assert done.exit_code == 1, done.stderr
    assert "open files" in done.stdout
    assert "--ulimit nofile=65536" in done.stdout


def test_a_native_library_of_another_build_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_another_build(*arguments: object) -> None:
        raise headrace.NativeError("interface 1 and 2: reinstall headrace")

    monkeypatch.setattr(headrace, "decode_image", of_another_build)
    done = run_command("doctor")
    assert done.exit_code == 1, done.stderr
    assert "no usable native library" in done.stdout
    assert "interface 1 and 2: reinstall headrace" in " ".join(done.stdout.split())


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    done = run_command("doctor", "--path", tmp_path / "nowhere")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr == f"headrace doctor: {tmp_path / 'nowhere'}: No such file or directory\n"
