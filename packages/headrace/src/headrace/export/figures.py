"""Figures of one loader for `headrace top`: counters, so that rates are differences of two snapshots."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from headrace.records import EpochStats, LoaderStats


def figures(loader: Any, iterator: Any) -> dict[str, Any]:
    """A dict of JSON types. What it counts is named as in `LoaderStats` and `EpochStats`; in its "epoch", the
    one that was started last, `ready` is the latest mean of batches ready, `depth` the number of batches that
    may be in flight, 0 if it isn't known, and `length` and `skipped` are those of `iterator`. "remote" is as
    in `RemoteStats`, None for local data; "waiting_seconds" the time that the training loop has been in
    next() now, 0 if it isn't. `iterator` is the latest one of `loader`, a `headrace.DataLoader`, or None if
    that is gone.
    """
    stats: LoaderStats = loader.stats()
    failures, epoch = stats.failures, stats.epochs[-1] if stats.epochs else None
    counted = asdict(replace(stats, epochs=(), failures=()))
    return {
        **{name: value for name, value in counted.items() if name not in ("waits", "epochs", "failures")},
        "dataset": type(loader.dataset).__name__,
        "batch_size": loader.batch_size,
        "waiting_seconds": 0.0 if iterator is None else iterator.waiting_seconds,
        "epoch": None if epoch is None else _epoch(epoch, iterator),
        "skipped": sum(failure.action == "skipped" for failure in failures),
        "replaced": sum(failure.action == "replaced" for failure in failures),
    }


def _epoch(epoch: EpochStats, iterator: Any) -> dict[str, Any]:
    queue, plain = epoch.queue, asdict(replace(epoch, stages=()))
    del plain["stages"], plain["queue"]
    return {
        **plain,
        "stall_share": epoch.stall_share,
        "samples_per_second": epoch.samples_per_second,
        "depth": queue.depth,
        "ready": queue.ready,
        "length": None if iterator is None else iterator.length,
        "skipped": 0 if iterator is None else iterator.skipped,
    }
