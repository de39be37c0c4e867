"""The figures of docs/scale.md are those that the script gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import headrace

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_scripts_table() -> None:
    table = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "scale.py"],
        env={**os.environ, "PYTHONPATH": str(Path(headrace.__file__).parent.parent)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "| data | 80.27 TB |" in table
    assert table in (ROOT / "docs" / "scale.md").read_text()
