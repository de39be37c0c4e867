"""Support for tests of remote packs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torchvision.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, ToTensor

TRANSFORM = Compose([RandomResizedCrop(40), RandomHorizontalFlip(), ToTensor()])
COUNT = 48
CACHE_BYTES = 64 << 20
# Tests don't wait for a store that is meant to fail.
RETRY = {
    "max_retries": 5,
    "backoff": {"init_backoff": timedelta(seconds=0.01), "max_backoff": timedelta(seconds=0.05), "base": 2},
}


def same(ours: Any, theirs: Any) -> int:
    """Returns how many samples two loaders give, all of which must be equal."""
    count = 0
    for (images, labels), (expected, targets) in zip(ours, theirs, strict=True):
        assert torch.equal(images, expected)
        assert torch.equal(labels, targets)
        count += len(labels)
    return count
