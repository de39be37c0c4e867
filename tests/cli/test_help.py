"""What is imported before a verb begins to work."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each takes longer to import than a help text may take to appear.
HEAVY = ("torch", "torchvision", "pyarrow", "numpy", "PIL")

CODE = """
import sys
import headrace.cli
try:
    headrace.cli.main()
finally:
    print("imported:", *(name for name in sys.argv[0].split() if name in sys.modules))
"""


@pytest.mark.parametrize(
    "verb",
    [
        (),
        ("index",),
        ("pack",),
        ("verify",),
        ("info",),
        ("tune",),
        ("top",),
        ("train",),
        ("doctor",),
    ],
)
def test_help_imports_nothing_heavy(verb: tuple[str, ...]) -> None:
    code = f"import sys; sys.argv[0] = {' '.join(HEAVY)!r}\n{CODE}"
    done = subprocess.run(
        [sys.executable, "-c", code, *verb, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Usage:" in done.stdout
    assert done.stdout.splitlines()[-1] == "imported:"
