"""Support for tests of remote packs."""

from __future__ import annotations

from datetime import timedelta

from torchvision.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, ToTensor

TRANSFORM = Compose([RandomResizedCrop(40), RandomHorizontalFlip(), ToTensor()])
COUNT = 48
CACHE_BYTES = 64 << 20
# Tests don't wait for a store that is meant to fail.
RETRY = {
    "max_retries": 5,
    "backoff": {"init_backoff": timedelta(seconds=0.01), "max_backoff": timedelta(seconds=0.05), "base": 2},
}
