"""Figures of one loader for `headrace top`: counters, so that rates are differences of two snapshots."""

from __future__ import annotations

from dataclasses import asdict, replace
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
    that may be in flight, 0 if it isn't known. "remote" is as in `RemoteStats`, None for local data.

    Args:
        stats: what the loader has counted.
        dataset: name of the dataset's class.
        batch_size: samples per batch, or None if samples aren't batched.
        waiting_seconds: time that the training loop has been in next() now; 0 if it isn't.
        length: batches of the epoch, or None if it isn't known.
        skipped: batches of the epoch before the state that it resumed from.
    """
    failures, epoch = stats.failures, stats.epochs[-1] if stats.epochs else None
    counted = asdict(replace(stats, epochs=(), failures=()))
    return {
        **{name: value for name, value in counted.items() if name not in ("waits", "epochs", "failures")},
        "dataset": dataset,
        "batch_size": batch_size,
        "waiting_seconds": waiting_seconds,
        "epoch": None if epoch is None else {**_epoch(epoch), "length": length, "skipped": skipped},
        "skipped": sum(failure.action == "skipped" for failure in failures),
        "replaced": sum(failure.action == "replaced" for failure in failures),
    }


def _epoch(epoch: EpochStats) -> dict[str, Any]:
    queue, plain = epoch.queue, asdict(replace(epoch, stages=()))
    del plain["stages"], plain["queue"]
    return {
        **plain,
        "stall_share": epoch.stall_share,
        "samples_per_second": epoch.samples_per_second,
        "depth": queue.depth,
        "ready": queue.ready,
    }
