"""What is imported before a verb begins to work."""

from __future__ import annotations

import subprocess
import sys

# Each takes longer to import than a help text may take to appear.
HEAVY = ("torch", "torchvision", "pyarrow", "numpy", "PIL")
VERBS = ("", "index", "pack", "verify", "info", "tune", "top", "train", "doctor", "doctor data", "doctor run")

PROGRAM = f"""
import sys
import headrace.cli
for verb in {VERBS!r}:
    sys.argv = ["headrace", *verb.split(), "--help"]
    try:
        headrace.cli.main()
    except SystemExit as end:
        print("imported:", *(name for name in {HEAVY!r} if name in sys.modules), end.code)
"""


def test_the_help_of_every_verb_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.count("Usage:") == len(VERBS)
    ends = [line for line in done.stdout.splitlines() if line.startswith("imported:")]
    assert ends == ["imported: 0"] * len(VERBS)
