"""The C library's allocator, which a worker process sets to keep the memory of a batch for the next one."""

from __future__ import annotations

import ctypes

# Parameters of glibc's mallopt(), by their numbers in malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
LARGEST_MMAP_THRESHOLD = 32 << 20  # glibc refuses more


def keep_freed_memory(nbytes: int) -> bool:
    """Keeps up to `nbytes` of freed memory with this process, for its next allocations.

    By default glibc returns the memory of large arrays to the kernel when they are freed. The tensors of a
    batch are all freed at once, so that each page of the next ones has to be asked for, and cleared, again:
    for an image of 224 × 224 float32 that takes as long as decoding half of it.

    Returns:
        Whether the C library follows that: only glibc does.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD) and mallopt(_TRIM_THRESHOLD, nbytes))
