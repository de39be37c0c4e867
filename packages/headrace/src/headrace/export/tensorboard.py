"""A loader's figures as TensorBoard scalars."""

from __future__ import annotations

from typing import Any

from headrace.records import LoaderStats

# Attributes of `EpochStats` that are scalars of the same names.
OF_EPOCH = (
    *("stall_share", "stall_seconds", "stall_median_seconds", "stall_p95_seconds", "stall_max_seconds"),
    *("startup_seconds", "samples_per_second", "batches_per_second"),
)


def to_tensorboard(stats: LoaderStats, writer: Any, step: int, *, tag: str = "headrace") -> None:
    """Writes the figures of the epoch started last; nothing before the first.

    Args:
        stats: what `loader.stats()` gave.
        writer: `torch.utils.tensorboard.SummaryWriter` (``pip install 'headrace[tensorboard]'``), or what has
            its `add_scalar`.
        step: of the training, for the horizontal axis.
        tag: begins the names; give each loader its own: "headrace/train", "headrace/val".
    """
    if not stats.epochs:
        return
    epoch = stats.epochs[-1]
    scalars: dict[str, float] = {name: getattr(epoch, name) for name in OF_EPOCH}
    scalars |= {"memory_used_bytes": stats.memory_used, "memory_allowed_bytes": stats.memory_allowed}
    if epoch.queue.depth:
        scalars["queue_ready"] = epoch.queue.ready
    for stage in epoch.stages:
        if stage.seconds > 0:
            scalars[f"supply/{stage.name}_samples_per_second"] = stage.supply
        if stage.bytes > 0:
            scalars[f"supply/{stage.name}_bytes_per_second"] = stage.bytes_per_second
    for name, value in scalars.items():
        writer.add_scalar(f"{tag}/{name}", value, step)
