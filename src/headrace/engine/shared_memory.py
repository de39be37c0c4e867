"""/dev/shm, through which worker processes hand their batches over: how much of it is free."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

PLACE = "/dev/shm"


class NoRoomError(Exception):
    """A batch doesn't fit in /dev/shm now. Never leaves the worker that raised it.

    Attributes:
        needed: bytes.
    """

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


class Room:
    """A worker's claim on /dev/shm. Memory there is allocated when it is written to, and whoever writes more
    than there is gets killed by a bus error (by newer versions of torch, an exception): so it is asked
    before. Where it is tight, only one worker at a time asks and writes.

    Args:
        lock: shared by the workers.
        workers: how many they are.
    """

    def __init__(self, lock: Any, workers: int) -> None:
        self._lock = lock
        self._workers = workers
        self._locked = False
        self._largest: int | None = None

    def ample(self) -> bool:
        """Whether nobody needs to ask, as batches have been small beside what is free."""
        return self._largest is not None and 4 * self._workers * self._largest < free_bytes()

    def used(self, nbytes: int) -> None:
        """A batch of that size was written."""
        self._largest = max(nbytes, self._largest or 0)

    def take(self, nbytes: int) -> None:
        """To be called before `nbytes` are written there, and `release` after.

        Raises:
            NoRoomError: they don't fit.
        """
        if 2 * nbytes * self._workers > free_bytes() and not self._locked:
            self._lock.acquire()
            self._locked = True
        if nbytes > free_bytes():
            raise NoRoomError(nbytes)

    def release(self) -> None:
        """What was asked for has been written."""
        if self._locked:
            self._locked = False
            self._lock.release()


def free_bytes() -> int:
    """Bytes that can still be written there."""
    place = os.statvfs(PLACE)
    return place.f_bavail * place.f_frsize


def too_small(needed: int) -> str:
    """The message where a batch of `needed` bytes can't be handed over."""
    place = os.statvfs(PLACE)
    free, size = place.f_bavail * place.f_frsize, place.f_blocks * place.f_frsize
    return (
        f"{PLACE} is too small: a batch of {_mb(needed)} must fit into it on its way from a worker process,"
        f" but {_mb(free)} of {_mb(size)} are free. Make it larger (docker run --shm-size=8g, or --ipc=host;"
        " in Kubernetes an emptyDir with medium: Memory on /dev/shm), make the batches smaller, hold fewer of"
        " them, or use worker_kind='thread', which needs none of it."
    )


def tensor_bytes(value: Any, *, arrays: bool) -> int:
    """Bytes of the tensors in `value`, as far as dicts, lists and tuples tell.

    Args:
        value: anything.
        arrays: whether NumPy's arrays count, too.
    """
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.layout is torch.strided else 0
    if isinstance(value, np.ndarray):
        return int(value.nbytes) if arrays else 0
    if isinstance(value, Mapping):
        return sum(tensor_bytes(item, arrays=arrays) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(tensor_bytes(item, arrays=arrays) for item in value)
    return 0


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"
