"""Other libraries' training loops run on Headrace's batches, and not on a loader that they made of it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.jpegs import image_folder

EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"
# Library, whether its worker shares the pictures with another.
NEEDED = {
    "accelerate_loop": ("accelerate", 1),
    "hugging_face_trainer": ("transformers", 1),
    "lightning_fit": ("lightning", 1),
    "ray_train": ("ray", 2),
    "timm_loop": ("timm", 1),
}


def test_every_example_is_tested() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(NEEDED)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)  # Ray starts six processes, each of which imports torch
@pytest.mark.parametrize("name", sorted(NEEDED))
def test_the_example_trains_on_headraces_batches(name: str, tmp_path: Path) -> None:
    """Two epochs of 24 pictures in batches of 8."""
    library, ranks = NEEDED[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
    pictures, home = tmp_path / "pictures", tmp_path / "home"
    home.mkdir()
    image_folder(pictures, 24, side=64)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HOME": str(home),  # Ray keeps its results there
        "RAY_TRAIN_V2_ENABLED": "1",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "100000000",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), str(pictures)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    said = re.search(r"(\d+) samples by Headrace.*?, (\d+) steps", done.stdout)
    assert said, done.stdout
    samples, steps = int(said[1]), int(said[2])
    # With two ranks each has 12 of the 24: a batch of 8 and one of 4.
    assert (samples, steps) == ((48, 6) if ranks == 1 else (24, 4))
