"""A script, examined in a process of its own; see `headrace.examine`, which runs there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from headrace.measure.observed import Observation
from headrace.measure.outside import Outside
from headrace.measure.sampler import read_counts

# Libraries read these when they start their threads, which is before the script's own code.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def run_examined(folder: Path, settings: dict[str, Any], *, quiet: bool) -> tuple[int, Observation | None]:
    """Runs the job in the folder until all is measured.

    Args:
        folder: with a job; see `headrace.examine.Job`.
        settings: of the job.
        quiet: the script's own output goes to FOLDER/output.txt.

    Returns:
        (exit status, what was observed; None: it ended before it could say).
    """
    environment = {**os.environ}
    if "threads" in settings:
        environment |= {name: str(settings["threads"]) for name in THREAD_VARIABLES}
    command = [sys.executable, "-m", "headrace.examine", str(folder)]
    with open(folder / "output.txt", "wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=output if quiet else None,
            stderr=subprocess.STDOUT if quiet else None,
        )
        outside = Outside(process.pid, folder)
        try:
            status = process.wait()
        finally:
            if process.poll() is None:  # Ctrl-C reaches the script as well
                process.wait()
            outside.stop()
    observation = Observation.load(folder)
    if observation is not None:
        observation.usage = outside.usage(observation.began)
        observation.memory = dict(outside.memory())
        observation.looks = read_counts(sorted(folder.glob("*.jsonl")))
    return status, observation
