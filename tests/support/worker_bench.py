"""Epochs from worker processes, without a loader around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import Dataset

import headrace
from headrace.config import LoaderConfig
from headrace.engine.error_policy import ErrorPolicyDataset
from headrace.engine.meter import Failures, Meter
from headrace.engine.seeding import Seeding
from headrace.engine.workers.stream import WorkerPools, WorkerStream
from headrace.order.batches import IndexBatch


class Bench:
    """Epochs in batches of two."""

    def __init__(
        self, dataset: Dataset[Any], workers: int = 3, budget: int = 1 << 40, **options: Any
    ) -> None:
        self.pools = WorkerPools()
        self.loader = headrace.DataLoader(
            dataset, batch_size=2, num_workers=workers, memory_budget=budget, deferred=False, **options
        )

    def begin(self, epoch: int = 0, **changed: Any) -> WorkerStream:
        pairs = np.arange(len(self.loader.dataset)).reshape(-1, 2)  # type: ignore[arg-type]
        config = replace(LoaderConfig.of(self.loader), **changed)
        batches = (IndexBatch(pair, np.zeros(2, np.int64)) for pair in pairs)
        seeding = Seeding((4, epoch), base=4 + epoch, by_sample=True)
        guard = partial(ErrorPolicyDataset, on_error=config.on_error)
        return self.pools.start_epoch(config, guard, seeding, batches, Failures(), Meter())


def all_of(stream: WorkerStream) -> Iterator[Any]:
    while True:
        try:
            yield next(stream)
        except StopIteration:
            return
