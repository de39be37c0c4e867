"""`headrace index`, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import headrace.cli; headrace.cli.main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_index_says_what_it_wrote(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg")
    done = run("index", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "1 of 1 files have entry points (0 reused)" in done.stdout
    assert (tmp_path / ".headrace-entry-points.arrow").is_file()


def test_a_missing_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    done = run("index", str(tmp_path / "nowhere"))
    assert done.returncode == 2
    assert "nowhere isn't a folder" in done.stderr.replace("\n", "")
