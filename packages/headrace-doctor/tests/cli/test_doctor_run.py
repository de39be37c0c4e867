"""headrace doctor run on scripts in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console
from typer.testing import Result

from headrace_doctor.cli.doctor_run import with_attempt
from headrace_doctor.doctor.diagnosis import diagnose
from headrace_doctor.examine import Job
from headrace_doctor.measure.observed import Observation
from support.command import run_command
from support.observations import too_few_workers

STARVED = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        time.sleep(0.05)  # long enough for more workers to help on a busy machine, too
        return torch.tensor([float(index)])

def main():
    assert sys.argv[1:] == ["--epochs", "3"], sys.argv
    assert __name__ == "__main__"
    for epoch in range(3):
        for batch in DataLoader(Rows(), 4, num_workers=1):
            time.sleep(0.05)  # a quarter of what loading takes: sleeping needs no core
    raise SystemExit("it went on to its end")

if __name__ == "__main__":
    main()
"""

IN_A_THREAD = STARVED.replace(
    "        for batch in DataLoader(Rows(), 4, num_workers=1):\n"
    "            time.sleep(0.05)  # a quarter of what loading takes: sleeping needs no core\n",
    """        import threading, queue
        batches = queue.Queue(2)
        def fill():
            for batch in DataLoader(Rows(), 4):
                batches.put(batch)
        threading.Thread(target=fill, daemon=True).start()
        while True:
            batches.get()
            time.sleep(0.005)
""",
)


def doctor(*arguments: str) -> Result:
    return run_command("doctor", "run", *arguments, columns=100)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, in which the scripts are."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.long
def test_a_starved_script_is_diagnosed_and_the_advice_tried(folder: Path) -> None:
    (folder / "train.py").write_text(STARVED)
    outputs = ("--json", "out.json", "--html", "out.html")
    ran = doctor("--steps", "20", "--try", *outputs, "train.py", "--epochs", "3")
    assert ran.exit_code == 0, ran.stderr
    assert "The dataset's own code: each sample waits" in ran.stdout
    found = json.loads((folder / "out.json").read_text())
    assert found["command"] == ["train.py", "--epochs", "3"]
    assert found["where"] == "train.py:17 in main"
    # A sample that waits is the cause, and more workers, which wait at the same time, answer it.
    assert found["causes"][0]["kind"] == "dataset"
    first = found["advice"][0]
    assert re.fullmatch(r"num_workers=1 → \d+", first["summary"])
    assert first["predicted"] > 1.5
    assert first["measured"] > 1.5
    assert [rate["name"] for rate in found["rates"][:3]] == ["supply", "demand", "actual"]
    assert {usage["phase"] for usage in found["usage"]} >= {"actual", "demand", "supply"}
    assert (folder / "out.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_a_loader_in_another_thread_ends_the_script_too(folder: Path, handler: Any) -> None:
    (folder / "train.py").write_text(IN_A_THREAD)
    before = signal.signal(signal.SIGINT, handler)  # ignored in the background of a shell script
    try:
        ran = doctor("--quiet", "--steps", "10", "train.py", "--epochs", "3")
    finally:
        signal.signal(signal.SIGINT, before)
    assert ran.exit_code == 0, ran.stderr
    assert "How it was measured" in ran.stdout


def test_a_module_is_run_by_its_name_and_what_goes_wrong_in_it_is_reported(folder: Path) -> None:
    (folder / "training").mkdir()
    (folder / "training" / "__main__.py").write_text(
        "import sys; raise ValueError(f'I am {__name__}, {sys.argv[1:]}')"
    )
    ran = doctor("--quiet", "-m", "training", "--lr", "1")
    assert ran.exit_code == 1
    text = " ".join(ran.stdout.split())
    error = "ValueError: I am __main__, ['--lr', '1']"
    assert text.count(error) >= 2
    assert f"failed before enough was measured: {error}" in text


@pytest.mark.parametrize(("ended", "status"), [("examined", 0), ("script ended", 130)])
def test_ctrl_c_leaves_what_was_examined_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ended: str, status: int
) -> None:
    class Interrupted:
        pid = os.getpid()
        waits = 0

        def __init__(self, command: list[str], **_: object) -> None:
            observation = too_few_workers()
            observation.ended = ended
            observation.save(Path(command[-1]))

        def wait(self, *_: object) -> int:
            self.waits += 1
            if self.waits == 1:
                raise KeyboardInterrupt
            return -2

    monkeypatch.setattr("headrace_doctor.examine.subprocess.Popen", Interrupted)
    (folder / "train.py").write_text("")
    ran = doctor("train.py")
    assert ran.exit_code == status
    assert ("num_workers=2 → 6" in ran.stdout) == (ended == "examined")


def test_sigterm_ends_the_script_too(folder: Path) -> None:
    (folder / "train.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n")
    command = [sys.executable, "-m", "headrace", "doctor", "run", "train.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        script = psutil.Process(int(process.stdout.readline()))
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    gone, _ = psutil.wait_procs([script], timeout=60)
    assert gone


def test_what_cannot_be_is_said_at_once(folder: Path) -> None:
    (folder / "train.py").write_text("raise SystemExit('it was run')\n")
    for arguments in (["missing.py"], ["--json", "no/out.json", "train.py"]):
        ran = doctor(*arguments)
        assert ran.exit_code == 2
        assert "it was run" not in ran.stdout + ran.stderr


def test_an_attempt_that_changed_nothing_reports_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    left = "the loader at train.py:9 was left as it is: Doubled has an __iter__ of its own"
    again = replace(too_few_workers(), refused=True, notes=[left])
    monkeypatch.setattr(Job, "run", lambda self, **_: (0, again, ""))
    found = with_attempt(diagnose(too_few_workers()), Job(["train.py"]), True, Console())
    assert found.notes[-1] == left
    assert all(one.measured is None for one in found.advice)


@pytest.mark.parametrize("verbose", [True, False])
def test_what_is_being_measured_is_printed_only_where_it_was_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, verbose: bool
) -> None:
    def run(job: Job, *, quiet: bool, progress: Callable[[str], None]) -> tuple[int, Observation, str]:
        for phase in ("profile", "actual", "supply num_workers=6", "unknown"):
            progress(phase)
        return 0, too_few_workers(), ""

    monkeypatch.setattr(Job, "run", run)
    (folder / "train.py").write_text("")
    ran = doctor(*(["-v"] if verbose else []), "train.py")
    assert ran.exit_code == 0
    lines = [line for line in ran.stderr.splitlines() if line.startswith("measuring")]
    assert (
        lines
        == [
            "measuring the device during the step",
            "measuring the script as it is",
            "measuring the loader with num_workers=6",
        ]
        * verbose
    )
