"""Short forms of `make chaos` and `make soak`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def report_of(script: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.long
def test_epochs_that_are_left_leave_nothing_behind() -> None:
    report = report_of("leaving.py", "--loops", "5", "--seed", "3")
    assert report["loops"] == 5
    assert report["faults"] == []


@pytest.mark.long
def test_epochs_under_faults_lose_nothing_and_nothing_grows() -> None:
    report = report_of("soak.py", "--seconds", "4")
    assert report["faults"] == []
    assert report["kills"] > 0
    assert report["samples"] > 0
