"""`Subset` and `ConcatDataset` of known datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset

from headrace.sources.folder import ImageSource, concatenate
from headrace.sources.kinds.kind import InTensors, Kind, Reading, Recognized, Refusal, as_integers
from headrace.sources.kinds.lookup import read_dataset

REPLACES_WITHIN = "what replaces an unreadable file need not be among these samples: runs as written"


class Subsets(Kind):
    """The samples of another dataset at `indices`."""

    classes = (Subset,)

    @classmethod
    def read(cls, dataset: Subset[Any]) -> Reading:
        inner = read_dataset(dataset.dataset)
        what = f"Subset(n={len(dataset.indices)}) of {inner.what}"
        if isinstance(inner, Refusal):
            return Refusal(f"Subset of {inner.what}", inner.reason)
        order = as_integers(dataset.indices)
        if order is None:
            return Refusal(what, "its indices aren't ints")
        if isinstance(inner, Recognized) and inner.read is not None:
            return Refusal(f"Subset of {inner.what}", REPLACES_WITHIN)
        try:
            if isinstance(inner, InTensors):
                return InTensors(what, inner.rows.take(torch.from_numpy(order)))
            return replace(inner, what=what, source=inner.source.take(order))
        except IndexError as error:
            return Refusal(what, str(error))


class Concatenations(Kind):
    """The samples of `datasets`, one after another."""

    classes = (ConcatDataset,)

    @classmethod
    def read(cls, dataset: ConcatDataset[Any]) -> Recognized | Refusal:
        """See `Kind`: of datasets of image files that read and transform them alike."""
        parts = [read_dataset(each) for each in dataset.datasets]
        for part in parts:
            if isinstance(part, Refusal):
                return Refusal(f"ConcatDataset of {part.what}", part.reason)
        others = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
        what = f"ConcatDataset(n={len(dataset)}) of {parts[0].what}{others}"
        images = [part for part in parts if isinstance(part, Recognized)]
        sources = [part.source for part in images if type(part.source) is ImageSource]
        if len(sources) < len(parts):
            return Refusal(what, "only data sets of image files are read natively one after another")
        if np.cumsum([len(source) for source in sources]).tolist() != dataset.cumulative_sizes:
            return Refusal(what, "a data set in it has another length than when they were concatenated")
        reason = _difference(images)
        if reason is not None:
            return Refusal(what, reason)
        return replace(images[0], what=what, source=concatenate(sources), note="", root=None)


def _difference(parts: Sequence[Recognized]) -> str | None:
    """Returns what native code would do differently in some of `parts`, or None if there is nothing."""
    first = parts[0]
    if any(part.read is not None for part in parts):
        return REPLACES_WITHIN
    for name in ("transform", "target_transform"):
        if any(getattr(part, name) is not getattr(first, name) for part in parts):
            return f"its data sets have several {name}s: native code needs the same object in all"
    if any(part.decode is not first.decode for part in parts):
        return "its data sets read files in several ways, as tensors or as images"
    if any(part.mode != first.mode for part in parts):
        return "some of its data sets convert images to RGB, others to L"
    return None
