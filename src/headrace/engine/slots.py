"""Memory for batches, reused: a slot comes back when the last tensor on it has died, never earlier.

On the CPU a slot is one NumPy buffer. Every batch gets a view of its own of it, and a tensor made of that
view; torch keeps the view alive as long as any tensor (a slice, a reshape, one that a user stored away) uses
the memory, so the view's end is the slot's return.

With pinned memory torch's own caching host allocator does the same and more: it knows of copies to the device
that are still running when the tensor dies, because torch records an event for each, and hands the block out
again only after them.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import numpy.typing as npt
import torch


class Slots:
    """Buffers of one size.

    Args:
        nbytes: of one slot.
        pinned: page-locked memory, for copies to an accelerator.
        keep: free slots beyond these are given back to the system.
    """

    def __init__(self, nbytes: int, *, pinned: bool, keep: int) -> None:
        self.nbytes = nbytes
        self.pinned = pinned
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=keep)
        self._live = _Count()

    @property
    def live(self) -> int:
        """Slots that are in flight or that some tensor of the user's is on."""
        return self._live.value

    def take(self) -> torch.Tensor:
        """A slot: uint8 [nbytes], contents undefined."""
        if self.pinned:
            tensor = torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=True)
            self._live.value += 1
            weakref.finalize(tensor.untyped_storage(), self._live.decrease).atexit = False
            return tensor
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(self.nbytes, np.uint8)
        view = memory[:]
        self._live.value += 1
        weakref.finalize(view, _give_back, memory, self._free, self._live).atexit = False
        return torch.from_numpy(view)


class _Count:
    """A number that finalizers change, in whatever thread drops the last tensor."""

    def __init__(self) -> None:
        self.value = 0

    def decrease(self) -> None:
        self.value -= 1


def _give_back(memory: npt.NDArray[np.uint8], free: deque[npt.NDArray[np.uint8]], live: _Count) -> None:
    # Runs inside a garbage collection or a decref, in any thread: nothing here may take a lock. With maxlen
    # reached, the oldest goes.
    live.decrease()
    free.append(memory)
