"""The `headrace` command inside the test's process: a process of its own takes seconds to import torch."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

import headrace.cli


def run_command(*arguments: str | Path, columns: int = 200) -> Result:
    """Runs `headrace ARGUMENTS` on a terminal that is so many columns wide."""
    runner = CliRunner(env={"COLUMNS": str(columns)})
    return runner.invoke(headrace.cli.app, [str(one) for one in arguments], catch_exceptions=False)
