"""Sampling of the worker processes of torch's DataLoader."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data._utils import worker

from headrace.measure.fetch_times import leave_fetchers, time_fetchers
from headrace.measure.sampler import INTERVAL_SECONDS, Sampler

PHASE_FILE = "phase"

_worker_loop: Callable[..., None] = worker._worker_loop


def install_in_workers(folder: Path, interval_seconds: float = INTERVAL_SECONDS) -> None:
    """From now on, workers of torch's loaders are sampled, into worker-PID.jsonl in `folder`.

    However they are started: by fork, forkserver or spawn. Those of Headrace's own loader aren't. Fetchers in
    this process (num_workers=0) are timed too, while a `Sampler` runs here.

    Args:
        folder: that exists.
        interval_seconds: as `Sampler` takes it.
    """
    worker._worker_loop = partial(sampled_worker_loop, str(folder), interval_seconds)
    time_fetchers()


def uninstall_in_workers() -> None:
    """Workers that are started from now on aren't sampled; those that run are until they end."""
    worker._worker_loop = _worker_loop
    leave_fetchers()


def announce_phase(folder: Path, name: str) -> None:
    """Tells the workers the name of the phase that begins now; they follow at their next look."""
    new = folder / f"{PHASE_FILE}.{os.getpid()}.{threading.get_ident()}"
    new.write_text(name)
    new.replace(folder / PHASE_FILE)


def sampled_worker_loop(folder: str, interval_seconds: float, *args: Any) -> None:
    """What a worker process runs in place of torch's own loop: the same, with a sampler beside it.

    Args:
        folder, interval_seconds: as `install_in_workers` takes them.
        args: of torch's loop; the second is the dataset, in newer versions a list of it alone.
    """
    held = type(args[1]) is list and len(args[1]) == 1
    if type(args[1][0] if held else args[1]).__module__.startswith("headrace."):
        _worker_loop(*args)
        return
    time_fetchers()
    path = Path(folder)
    sampler = Sampler(path / f"worker-{os.getpid()}.jsonl", "worker", interval_seconds, path / PHASE_FILE)
    sampler.start()
    try:
        _worker_loop(*args)
    finally:
        sampler.stop()
