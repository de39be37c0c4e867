"""Batches of tensors that are in memory: rows gathered in the caller's thread, when it asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from headrace.order.batches import IndexBatch
from headrace.plan.gather import GatherPlan


def gather_batches(
    plan: GatherPlan, batches: Iterable[IndexBatch], *, pinned: bool
) -> Iterator[list[torch.Tensor]]:
    """For each batch what torch's collation makes of its samples: a list of new tensors [n, …].

    Raises:
        IndexError: an index is outside the dataset.
    """
    for batch in batches:
        rows = torch.as_tensor(batch.indices, dtype=torch.int64)
        if plan.rows is not None:
            rows = plan.rows[rows]
        # Not tensor[rows]: on a busy machine its threads wait for each other, a hundred times as long.
        rows = torch.where(rows < 0, rows + len(plan.tensors[0]), rows)
        gathered: Any = [tensor.index_select(0, rows.to(tensor.device)) for tensor in plan.tensors]
        yield pin_memory(gathered) if pinned else gathered  # type: ignore[no-untyped-call]
