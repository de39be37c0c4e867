"""The doctor where Headrace isn't installed: torch's DataLoader is examined and tuned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Python imports it as it starts, in child processes, too.
NO_HEADRACE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "headrace":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
SCRIPT = """
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.zeros(64)


model = torch.nn.Linear(64, 8)
for batch in DataLoader(Slow(), batch_size=4):
    model(batch).sum().backward()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(NO_HEADRACE)
    (tmp_path / "train.py").write_text(SCRIPT)
    places = [str(tmp_path / "without"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def doctor(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace_doctor", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_headrace_is_absent(environment: dict[str, str]) -> None:
    code = [sys.executable, "-c", "import headrace_doctor, headrace_doctor.cli.top, headrace"]
    done = subprocess.run(code, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'headrace'\n")


@pytest.mark.slow
@pytest.mark.long
def test_a_script_with_torchs_loader_gets_a_verdict(environment: dict[str, str], tmp_path: Path) -> None:
    done = doctor(environment, "run", "--json", tmp_path / "out.json", tmp_path / "train.py")
    assert done.returncode == 0, done.stderr
    diagnosis = json.loads((tmp_path / "out.json").read_text())
    # On a busy machine it may be undecided between them.
    assert {cause["kind"] for cause in diagnosis["causes"]} & {"workers", "dataset"}
    assert not any("headrace" in advice["settings"] for advice in diagnosis["advice"])


def test_torchs_loader_is_tuned(environment: dict[str, str], tmp_path: Path) -> None:
    done = doctor(environment, "tune", "--seconds", 0.1, "--json", "-", tmp_path / "train.py")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {trial["loader"] for trial in report["trials"]} == {"torch"}
    assert max(trial["arguments"]["num_workers"] for trial in report["trials"]) > 0
    assert report["best"]["torch"] in report["trials"]


def test_top_sees_a_process_from_outside(environment: dict[str, str]) -> None:
    done = doctor(environment, "top", "--once", "--json", "-", os.getpid())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pid"] == os.getpid()
