"""Epochs from worker processes, without a loader around them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from headrace.engine.meter import Failures
from headrace.engine.processes import ProcessEpoch, Processes, ProcessProducer
from headrace.order.batches import IndexBatch


class Bench:
    """Epochs in batches of two, from processes that are kept."""

    def __init__(
        self, dataset: Dataset[Any], workers: int = 3, budget: int = 1 << 40, **options: Any
    ) -> None:
        self.processes = Processes()
        self.loader = DataLoader(dataset, batch_size=2, num_workers=workers, **options)
        self.budget = budget

    def begin(self, epoch: int = 0) -> ProcessProducer:
        size = len(self.loader.dataset)  # type: ignore[arg-type]
        pairs = np.arange(size).reshape(-1, 2)
        return self.processes.begin(
            self.loader,
            ProcessEpoch(self.loader.num_workers, "raise", size, self.budget),
            (4, epoch),
            (IndexBatch(pair, np.zeros(2, np.int64)) for pair in pairs),
            Failures(),
        )


def all_of(producer: ProcessProducer) -> Iterator[Any]:
    while True:
        try:
            yield next(producer)
        except StopIteration:
            return
