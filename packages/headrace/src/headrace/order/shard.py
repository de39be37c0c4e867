"""Shares the positions of an epoch among ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import torch.distributed

Remainder = Literal["pad", "drop", "exact"]


@dataclass(frozen=True)
class Shard:
    """One rank's share. Global batch k of an epoch is its positions k * g to (k + 1) * g - 1, where g is
    batch_size * world_size; a rank has every world_size-th of them, as in torch's `DistributedSampler`.

    Attributes:
        rank: from 0 to world_size - 1.
        world_size: 1 or more.
        batch_size: samples in a batch of this rank.
        drop_last: leave the last global batch out if it isn't whole.
        remainder: what is done with samples at the end that don't divide by world_size. "pad": continue from
            the order's begin until they do; "drop": leave them out; "exact": every sample once, so that some
            ranks get one sample fewer, and may get one batch fewer.
    """

    rank: int = 0
    world_size: int = 1
    batch_size: int = 1
    drop_last: bool = False
    remainder: Remainder = "pad"

    @property
    def global_batch(self) -> int:
        """Positions in one batch of all ranks."""
        return self.batch_size * self.world_size

    def total(self, size: int, start: int = 0) -> int:
        """Positions from `start` on that all ranks get together in an epoch of `size` positions."""
        rest = max(0, size - start)
        if self.drop_last:
            return rest // self.global_batch * self.global_batch
        if self.remainder == "pad":
            return -(-rest // self.world_size) * self.world_size
        return rest // self.world_size * self.world_size if self.remainder == "drop" else rest

    def samples(self, size: int, start: int = 0) -> int:
        """Counts those of `total` that are this rank's."""
        return max(0, -(-(self.total(size, start) - self.rank) // self.world_size))

    def batches(self, size: int, start: int = 0) -> int:
        """Batches of this rank in the positions from `start` on."""
        return -(-self.samples(size, start) // self.batch_size)

    def positions(self, size: int | None, start: int, first: int, count: int) -> range:
        """Positions of this rank's samples number `first` to first + count - 1 after `start`, as many of them
        as there are in an epoch of `size` positions, or without end if that is None; with remainder "pad" the
        last ones may be `size` or more."""
        stop = first + count
        if size is not None:
            stop = min(stop, self.samples(size, start))
        begin, step = start + self.rank, self.world_size
        return range(begin + step * first, begin + step * stop, step)

    def after(self, size: int | None, start: int, batches: int) -> int:
        """The position to resume from after `batches` batches of every rank."""
        reached = start + batches * self.global_batch
        return reached if size is None else min(reached, max(size, start))


def detect_rank() -> tuple[int, int]:
    """(rank, world_size) of torch.distributed, else of torchrun's environment, else (0, 1)."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank = os.environ.get("RANK")
    world_size = None if rank is None else os.environ.get("WORLD_SIZE")
    return (0, 1) if rank is None or world_size is None else (int(rank), int(world_size))
