"""Datasets that are in memory already: a batch is one gather of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

from headrace.plan.arrays import read_arrays
from headrace.plan.pointwise import PointwiseTable
from headrace.plan.suffix import Suffix
from headrace.plan.transform import StepNote

INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, eq=False)
class GatherPlan:
    """What a batch is made of.

    Attributes:
        what: the dataset in words.
        tensors: each [n, …]; a batch is a list of rows of each.
        rows: int64 [m]; the rows that a `Subset` is made of; None: all.
        values: what the levels of `tensors[0]` become, where that is images of 8 bits; None: it isn't.
        suffix: what is done to a batch of images; None: nothing.
        notes: the user's transforms in words.
    """

    what: str
    tensors: tuple[torch.Tensor, ...]
    rows: torch.Tensor | None = None
    values: PointwiseTable | None = None
    suffix: Suffix | None = None
    notes: tuple[StepNote, ...] = ()

    @property
    def samples(self) -> int:
        """Of the dataset."""
        return len(self.tensors[0]) if self.rows is None else len(self.rows)

    @property
    def nbytes(self) -> int:
        """Memory of all rows, in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


def plan_gather(dataset: Any) -> GatherPlan | None:
    """How to gather batches of `dataset`; None where its samples must be asked for one by one.

    Only `TensorDataset` itself, those of `headrace.plan.arrays`, and a `Subset` of them: a subclass may do
    anything to a sample.
    """
    if type(dataset) is TensorDataset:
        tensors = dataset.tensors
        plain = all(type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in tensors)
        return GatherPlan(f"TensorDataset(n={len(dataset)})", tensors) if tensors and plain else None
    if type(dataset) is not Subset:
        found = read_arrays(dataset)
        if found is None:
            return None
        what = f"{type(dataset).__name__}(n={len(found.labels)})"
        tensors = (found.images, found.labels)
        return GatherPlan(what, tensors, values=found.values, notes=found.notes)
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
    return replace(inner, what=f"Subset(n={len(rows)}) of {inner.what}", rows=rows)
