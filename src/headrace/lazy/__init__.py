"""Images whose pixels are decoded when they are looked at, and then only those that are needed."""

from collections.abc import Callable

import torch

from headrace.lazy.image import LazyImage, LazyJpegFile, install, open, uninstall

__all__ = ["LazyImage", "LazyJpegFile", "install", "open", "uninstall"]


def start_worker(memory: Callable[[int], torch.Tensor] | None = None) -> None:
    """For a worker process: images are opened lazily, and torchvision's functions record.

    Args:
        memory: gives memory for batches of a number of bytes, uint8; the default is torch's.
    """
    from headrace.lazy import pending, recording

    install()
    recording.start()
    if memory is not None:
        pending.use_memory(memory)
