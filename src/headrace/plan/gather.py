"""Datasets that are tensors already: a batch is one gather of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, eq=False)
class GatherPlan:
    """What a batch is made of.

    Attributes:
        what: the dataset in words.
        tensors: each [n, …]; a batch is a list of rows of each.
        rows: int64 [m]; the rows that a `Subset` is made of; None: all.
    """

    what: str
    tensors: tuple[torch.Tensor, ...]
    rows: torch.Tensor | None = None


def plan_gather(dataset: Any) -> GatherPlan | None:
    """How to gather batches of `dataset`; None where its samples must be asked for one by one.

    Only `TensorDataset` itself and a `Subset` of it: a subclass may do anything to a sample.
    """
    if type(dataset) is TensorDataset:
        tensors = dataset.tensors
        plain = all(type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in tensors)
        return GatherPlan(f"TensorDataset(n={len(dataset)})", tensors) if tensors and plain else None
    if type(dataset) is not Subset:
        return None
    inner = plan_gather(dataset.dataset)
    if inner is None:
        return None
    try:
        rows = torch.as_tensor(dataset.indices)
    except (TypeError, ValueError, RuntimeError):
        return None  # whatever they are, the dataset itself understands them
    if rows.ndim != 1 or (len(rows) and rows.dtype not in INDEX_DTYPES):
        return None
    rows = rows.to(torch.int64)
    rows = rows if inner.rows is None else inner.rows[rows]
    return GatherPlan(f"Subset(n={len(rows)}) of {inner.what}", inner.tensors, rows)
