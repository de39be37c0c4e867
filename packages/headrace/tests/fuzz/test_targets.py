"""The targets on the same few inputs every time; `make fuzz` runs them for longer."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from support.container import ROOT
from support.fuzz_targets import TARGETS
from support.mutations import mutated

COUNTS = {"pack_index": 60, "entry_index": 60, "train_checkpoint": 60}
CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_input_is_refused_or_used(name: str, tmp_path: Path) -> None:
    target = TARGETS[name](tmp_path)
    kept = [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]
    for data in [*target.seeds, *kept, b""]:
        target.run(data)
    rng = random.Random(1)
    for _ in range(COUNTS.get(name, 400)):
        target.run(mutated(rng.choice(target.seeds), target.seeds, rng))


@pytest.mark.slow
def test_the_program_runs_a_target_for_a_while(tmp_path: Path) -> None:
    names = [*TARGETS][:2]
    command = [sys.executable, str(ROOT / "tools" / "fuzz.py"), "--seconds", "1", "--keep", str(tmp_path)]
    command += ["--only", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines() if "no report" in line] == names
