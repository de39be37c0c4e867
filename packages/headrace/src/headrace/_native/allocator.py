"""The C library's allocator, which a worker process sets to keep the memory of a batch for the next one."""

from __future__ import annotations

import ctypes

# Parameters of glibc's mallopt(), by their numbers in malloc.h, and the most that it takes for the second.
TRIM_THRESHOLD, MMAP_THRESHOLD, MOST_THRESHOLD = -1, -3, 32 << 20


def keep_freed_memory(nbytes: int) -> None:
    """Keeps up to `nbytes` of freed memory with this process, for its next allocations, if the C library is
    glibc.

    By default glibc returns the memory of large arrays to the kernel when they are freed. The tensors of a
    batch are all freed at once, so that each page of the next ones has to be asked for, and cleared, again:
    for an image of 224 × 224 float32 that takes as long as decoding half of it.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and mallopt(MMAP_THRESHOLD, MOST_THRESHOLD):
        mallopt(TRIM_THRESHOLD, nbytes)
