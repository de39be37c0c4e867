"""What benchmarks measure on the simulated accelerator says so."""

from __future__ import annotations

import json
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
