"""The wnids of ImageNet's classes, where something beside the data tells them."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from headrace.packs.inputs.ilsvrc import DEVKIT, validation_wnids

# What torchvision's ImageNet makes of the devkit: (names by wnid, wnid of each validation picture).
META = "meta.bin"


def known_wnids(folder: str) -> tuple[str, ...]:
    """All classes' wnids, sorted, from the devkit or torchvision's meta.bin in `folder` or the one above it;
    empty where there is neither, or it can't be read."""
    for place in (Path(folder), Path(os.path.abspath(folder)).parent):
        try:
            if (place / META).is_file():
                return tuple(sorted(torch.load(place / META, weights_only=True)[0]))
            if (place / DEVKIT).is_file():
                return tuple(sorted(set(validation_wnids(place / DEVKIT))))
        except Exception:  # whatever torch raises for a damaged file
            continue  # only names are lost that way; counts and form are still checked
    return ()
