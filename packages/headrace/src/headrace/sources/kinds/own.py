"""Headrace's own datasets, of image files and of packs, on this machine or in an object store."""

from __future__ import annotations

from typing import Any

from headrace.sources.image import ImageDataset
from headrace.sources.kinds.kind import Kind, Recognized
from headrace.sources.packed import PackedDataset


class Own(Kind):
    """The dataset has a source already."""

    classes = (ImageDataset, PackedDataset)

    @classmethod
    def read(cls, dataset: Any) -> Recognized:
        what = f"{type(dataset).__name__}(n={len(dataset)})"
        return Recognized(what, dataset.source, dataset.transform, dataset.target_transform)
