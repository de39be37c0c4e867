"""It learns: handwritten digits, as JPEGs, to 97 % of those held out."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headrace.recipes import Recipe, train

LEARNING_SETS = Path(__file__).parents[4] / "benchmarks" / "learning_sets.py"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1500)  # three minutes of one core's time, on a machine that may be busy
def test_digits_are_learned(tmp_path: Path) -> None:
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("scikit-learn isn't installed")
    data = tmp_path / "digits"
    subprocess.run([sys.executable, str(LEARNING_SETS), "digits", str(data)], check=True, timeout=200)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        outcome = train(
            Recipe(
                data=data,
                out=tmp_path / "out",
                arch="shufflenet_v2_x0_5",
                epochs=60,
                batch_size=64,
                optimizer="adamw",
                lr=4e-3,
                warmup_epochs=4,
                ema=0.98,
                size=64,
                val_resize=64,
                device="cpu",
            )
        )
    finally:
        torch.set_num_threads(threads)
    assert outcome.top1 is not None
    assert outcome.top1 >= 0.97
