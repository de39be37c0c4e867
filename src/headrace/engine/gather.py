"""Batches of tensors that are in memory: rows gathered in the caller's thread, when it asks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from headrace.engine.producer import Made
from headrace.order.batches import IndexBatch
from headrace.plan.gather import GatherPlan


class GatherProducer:
    """For each batch what torch's collation makes of its samples: a list of new tensors [n, …].

    An index outside the dataset raises IndexError; the batches after it can still be asked for, as in torch.
    """

    def __init__(self, plan: GatherPlan, batches: Iterator[IndexBatch], *, pinned: bool) -> None:
        self._plan = plan
        self._batches = batches
        self._pinned = pinned
        self._taken = 0

    def __next__(self) -> Made:
        batch = next(self._batches)
        self._taken += 1
        plan = self._plan
        rows = torch.as_tensor(batch.indices, dtype=torch.int64)
        if plan.rows is not None:
            rows = plan.rows[rows]
        # Not tensor[rows]: on a busy machine its threads wait for each other, a hundred times as long.
        rows = torch.where(rows < 0, rows + len(plan.tensors[0]), rows)
        gathered = [tensor.index_select(0, rows.to(tensor.device)) for tensor in plan.tensors]
        if self._pinned:
            gathered = pin_memory(gathered)  # type: ignore[no-untyped-call]
        return Made(gathered, len(rows), self._taken)

    def ready(self) -> bool:
        """Always: a batch is a copy of rows."""
        return True

    @property
    def depth(self) -> int:
        """None: batches are made when they are asked for."""
        return 0

    @property
    def in_flight(self) -> int:
        """None."""
        return 0

    def close(self) -> None:
        """Nothing is in flight."""
