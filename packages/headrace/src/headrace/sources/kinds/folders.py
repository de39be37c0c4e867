"""torchvision's datasets of image files: ImageFolder and its kin."""

from __future__ import annotations

import os
from typing import Any

import torchvision
from torchvision.datasets import DatasetFolder, ImageFolder, ImageNet
from torchvision.datasets.folder import default_loader, pil_loader

from headrace.decoding import by_torchvision, decodes_as_pillow
from headrace.records import Mode
from headrace.sources.folder import ImageSource
from headrace.sources.kinds.kind import Kind, Recognized, Refusal, patched_reason
from headrace.sources.source import EXTENSIONS
from headrace.transforms.origin import located
from headrace.transforms.own_code import decoder_of, reading_mode_of


class Folders(Kind):
    """`samples` are (path, label) pairs; `loader` reads a path."""

    classes = (ImageFolder, DatasetFolder, ImageNet)

    @classmethod
    def read(cls, dataset: Any) -> Recognized | Refusal:
        """See `Kind`: any loader that does what Pillow or `decode_image` does."""
        what = f"{type(dataset).__name__}(n={len(dataset.samples)})"
        decode = decoder_of(dataset.loader)
        mode, problem = ("RGB", "") if decode else _mode_of(dataset.loader)
        reason = patched_reason(dataset, DatasetFolder) or problem
        if reason:
            return Refusal(what, reason)
        upright = decode is not None and decode is not by_torchvision
        files = read_files(what, dataset, dataset, mode=mode, decode=decode, upright=upright)
        problem = _tensors_problem(files) if isinstance(files, Recognized) else ""
        return Refusal(what, problem) if problem else files


def read_files(what: str, dataset: Any, listing: Any, **more: Any) -> Recognized | Refusal:
    """The files of `listing.samples`, below `listing.root`, with the transforms of `dataset` and `more`
    fields."""
    try:
        source = ImageSource.from_samples(listing.samples)
    except (TypeError, ValueError) as error:
        return Refusal(what, str(error))
    root = getattr(listing, "root", None)
    root = os.fspath(root) if isinstance(root, (str, os.PathLike)) else None
    return Recognized(what, source, dataset.transform, dataset.target_transform, root=root, **more)


def _mode_of(loader: Any) -> tuple[Mode | None, str]:
    """The mode that `loader` converts what it reads with Pillow to, or None and why native code can't do what
    it does."""
    backend = torchvision.get_image_backend()
    if loader is default_loader and backend != "PIL":
        return None, f"torchvision's image backend is {backend}, not PIL"
    mode: Mode | None = "RGB" if loader is default_loader or loader is pil_loader else reading_mode_of(loader)
    return mode, "" if mode else f"has a loader of its own, {located(loader)}, which native code can't call"


def _tensors_problem(files: Recognized) -> str:
    """Why files that decode_image reads can't be read natively; empty if they can, or are read as images."""
    if files.decode is None:
        return ""
    if not decodes_as_pillow(files.decode, upright=files.upright):
        return "decode_image gives other pixels than native code in the version that is installed"
    others = len(files.source) - files.source.count_extensions(EXTENSIONS["JPEG"])
    return f"decode_image may give any tensors for {others:,} files that aren't JPEGs" if others else ""
