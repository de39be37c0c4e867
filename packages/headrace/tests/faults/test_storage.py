"""Storage that fails: the tests in cases_*.py, each in a process whose system calls can be made to fail."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to make the fault injector with")
    made = tmp_path_factory.mktemp("faults") / "faults.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", made, HERE / "faults.c", "-ldl"], check=True)
    return made


@pytest.mark.parametrize(
    "cases", ["cases_reading.py", pytest.param("cases_packing.py", marks=pytest.mark.long)]
)
def test_storage_that_fails(library: Path, tmp_path: Path, cases: str) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(library), "HEADRACE_FAULTS": str(tmp_path / "rules")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / cases)]
    done = subprocess.run(
        command, cwd=HERE.parent.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ passed in", done.stdout, re.MULTILINE), "all of them, and none skipped"
