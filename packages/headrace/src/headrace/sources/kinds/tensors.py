"""`TensorDataset`: a batch is rows of its tensors."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset

from headrace.sources.kinds.kind import InTensors, Kind, Refusal
from headrace.sources.source import TensorRows


class Tensors(Kind):
    """A sample is one row of each of `tensors`."""

    classes = (TensorDataset,)

    @classmethod
    def read(cls, dataset: TensorDataset) -> InTensors | Refusal:
        """See `Kind`: of dense tensors without a class of their own."""
        tensors = dataset.tensors
        plain = all(type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in tensors)
        what = f"TensorDataset(n={len(dataset)})"
        if not tensors or not plain:
            return Refusal(what, "its tensors aren't dense ones of torch's own class: runs as written")
        return InTensors(what, TensorRows(tensors))
