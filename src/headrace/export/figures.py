"""What `headrace top` shows of one loader: counters, so that rates are differences of two snapshots."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headrace.records import EpochStats, LoaderStats


def figures(
    stats: LoaderStats,
    *,
    dataset: str,
    batch_size: int | None,
    waiting_seconds: float,
    length: int | None,
    skipped: int,
) -> dict[str, Any]:
    """A dict of JSON types. What it counts is named as in `LoaderStats` and `EpochStats`; in its "epoch", the
    one that was started last, `ready` is the latest mean of batches ready, and `depth` the number of batches
    that may be in flight, 0 where it isn't known. "remote" is as in `RemoteStats`, None for local data.

    Args:
        stats: what the loader has counted.
        dataset: name of the dataset's class.
        batch_size: samples per batch; None where samples aren't batched.
        waiting_seconds: time that the training loop has been in next() now; 0 where it isn't.
        length: batches of the epoch; None where it isn't known.
        skipped: batches of the epoch before the state that it resumed from.
    """
    failures = stats.failures
    return {
        "dataset": dataset,
        "batch_size": batch_size,
        "batches": stats.batches,
        "samples": stats.samples,
        "startup_seconds": stats.startup_seconds,
        "stall_seconds": stats.stall_seconds,
        "waiting_seconds": waiting_seconds,
        "epochs_begun": stats.epochs_begun,
        "epoch": {
            **_epoch(stats.epochs[-1]),
            "length": length,
            "skipped": skipped,
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
