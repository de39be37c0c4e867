"""timm's dataset of image folders, which gives another image for a file that can't be read."""

from __future__ import annotations

import copy
from typing import Any

from headrace.sources.kinds.folders import read_files
from headrace.sources.kinds.kind import Kind, Recognized, Refusal, patched_reason
from headrace.transforms.lookup import is_class
from headrace.transforms.origin import located

READER = "timm.data.readers.reader_image_folder.ReaderImageFolder"


class TimmFolders(Kind):
    """`reader.samples` are (path, label) pairs. What native code can't read is read as timm does."""

    imported = ("timm.data.dataset.ImageDataset",)

    @classmethod
    def read(cls, dataset: Any) -> Recognized | Refusal:
        """See `Kind`: with a reader of folders, for an image and a label per sample."""
        reader: Any = getattr(dataset, "reader", None)
        if not is_class(type(reader), READER):
            why = f"its reader, {located(reader)}, isn't that of folders: runs as written"
            return Refusal("timm's ImageDataset", why)
        what, mode = f"timm's ImageDataset(n={len(reader.samples)})", getattr(dataset, "input_img_mode", None)
        has_more = dataset.load_bytes or getattr(dataset, "additional_features", None) is not None
        if mode not in ("RGB", "L") or has_more:
            return Refusal(what, "its samples aren't an RGB or L image and a label each")
        reason = patched_reason(dataset, type(dataset)) or patched_reason(reader, type(reader))
        if reason is not None:
            return Refusal(what, reason)
        plain = copy.copy(dataset)
        plain.transform = plain.target_transform = None
        return read_files(what, dataset, reader, mode=mode, read=plain.__getitem__)
