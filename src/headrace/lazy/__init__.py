"""Images whose pixels are decoded when they are looked at, and then only those that are needed."""

from collections.abc import Callable

import torch

from headrace.lazy.image import (
    LazyImage,
    LazyJpegFile,
    LazyPngFile,
    LazyWebpFile,
    install,
    open,
    uninstall,
)

__all__ = ["LazyImage", "LazyJpegFile", "LazyPngFile", "LazyWebpFile", "install", "open", "uninstall"]


def start_worker(*, tensors: bool, memory: Callable[[int], torch.Tensor] | None = None) -> None:
    """For a worker process: images are opened lazily.

    Args:
        tensors: whether torchvision's functions record as well, and return pending tensors.
        memory: gives memory for batches of a number of bytes, uint8; the default is torch's.
    """
    install()
    if not tensors:
        return
    from headrace.lazy import pending, recording

    recording.start()
    if memory is not None:
        pending.use_memory(memory)
