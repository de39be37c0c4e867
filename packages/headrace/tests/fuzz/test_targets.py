"""The targets on the same few inputs every time; `make fuzz` runs them for longer."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

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
