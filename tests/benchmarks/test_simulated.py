"""Measurements on the simulated accelerator say so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import accelerator
from support.experiment import BENCHMARKS
from support.python import run_python


@pytest.fixture(autouse=True)
def built() -> None:
    try:
        accelerator.build()
    except accelerator.CannotBuildError as error:
        pytest.skip(str(error))


def test_overlap_says_that_it_is_simulated(tmp_path: Path) -> None:
    out = tmp_path / "overlap.json"
    options = ["--steps", "3", "--rounds", "1", "--scale", "0.05", "--json", out]
    done = run_python(BENCHMARKS / "simulated_overlap.py", *options, check=True)
    assert "No figure of a GPU" in done.stdout
    facts = json.loads(out.read_text())
    assert facts["simulated"]
    assert {row["card"] for row in facts["rows"]} >= {"A100", "H100"}


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_all_parts_for_a_gpu_run(tmp_path: Path) -> None:
    env = os.environ | {"HEADRACE_ACCELERATOR": "simulated"}
    run_python(BENCHMARKS / "gpu.py", "--quick", "--out", tmp_path, env=env, timeout=1500, check=True)
    parts = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    names = ["tests", "copies", "overlap", "supply", "training", "starved", "script"]
    names += ["diagnosed", "precisions", "cores"]
    assert list(parts) == names
    assert all(part["rows"] for part in parts.values())
    text = (tmp_path / "gpu.md").read_text()
    assert "the measurements mean nothing" in text
    assert "every part ran" in text
