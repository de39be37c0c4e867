"""What `headrace top` is told of one loader: counters, so that rates are differences of two looks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headrace.loader.asked import Asked
from headrace.records import EpochStats, LoaderStats


def figures(loader: Asked[Any], stats: LoaderStats) -> dict[str, Any]:
    """A dict of JSON types. For any thread; asks nothing of the user's own objects.

    What it counts is named as in `LoaderStats` and `EpochStats`. Beside these:

    dataset: its class.
    waiting_seconds: for how long the loop has been in next() now; 0: it isn't.
    epoch: the one begun last, None before; its `length` is in batches (None: not known), `skipped` how many
        of them lie before the state that it went on from. `ready` is the latest mean of batches ready,
        `depth` how many may be in flight (0: not known).
    remote: as in `RemoteStats`; None: the dataset is on this machine.
    """
    latest = loader._runtime.latest
    front = latest() if latest is not None else None
    failures = stats.failures
    return {
        "dataset": type(loader.dataset).__name__,
        "batch_size": loader.batch_size,
        "batches": stats.batches,
        "samples": stats.samples,
        "startup_seconds": stats.startup_seconds,
        "stall_seconds": stats.stall_seconds,
        "waiting_seconds": 0.0 if front is None else front.waiting_seconds,
        "epochs_begun": stats.epochs_begun,
        "epoch": {
            **_epoch(stats.epochs[-1]),
            "length": None if front is None else front.length,
            "skipped": 0 if front is None else front.skipped,
        }
        if stats.epochs
        else None,
        "stages": [
            {
                "name": stage.name,
                "samples": stage.samples,
                "seconds": stage.seconds,
                "bytes": stage.bytes,
                "threads": stage.threads,
            }
            for stage in stats.stages
        ],
        "skipped": sum(failure.action == "skipped" for failure in failures),
        "replaced": sum(failure.action == "replaced" for failure in failures),
        "memory_used": stats.memory_used,
        "memory_allowed": stats.memory_allowed,
        "in_flight": stats.in_flight,
        "decode_threads": stats.decode_threads,
        "read_threads": stats.read_threads,
        "remote": None if stats.remote is None else asdict(stats.remote),
    }


def _epoch(epoch: EpochStats) -> dict[str, Any]:
    queue = epoch.queue
    return {
        "number": epoch.number,
        "state": epoch.state,
        "batches": epoch.batches,
        "samples": epoch.samples,
        "seconds": epoch.seconds,
        "startup_seconds": epoch.startup_seconds,
        "stall_seconds": epoch.stall_seconds,
        "stall_share": epoch.stall_share,
        "samples_per_second": epoch.samples_per_second,
        "depth": queue.depth,
        "ready": queue.ready[-1] if queue.ready else 0.0,
    }
