"""Memory for batches, reused: a slot comes back when the last tensor on it has died, never earlier.

On the CPU a slot is one NumPy buffer. Every batch gets a view of its own of it, and a tensor made of that
view; torch keeps the view alive as long as any tensor (a slice, a reshape, one that a user stored away) uses
the memory, so the view's end is the slot's return.

With pinned memory torch's own caching host allocator does the same and more: it knows of copies to the device
that are still running when the tensor dies, because torch records an event for each, and hands the block out
again only after them.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

# Bytes of a tensor from which on it is made in memory that is used again. The C library returns that of
# large arrays to the kernel when they are freed, or not, as they happen to lie: where it does, each page of
# the next batch is asked for and cleared again, which takes as long as copying to it.
LARGE_NBYTES = 1 << 19


class Slots:
    """Buffers of `nbytes` bytes, page-locked if `pinned`; so many as `keep` free ones are kept, and more are
    given back to the system."""

    def __init__(self, nbytes: int, *, pinned: bool, keep: int) -> None:
        self.nbytes = nbytes
        self.pinned = pinned
        self._free: deque[npt.NDArray[np.uint8]] = deque(maxlen=keep)
        # A set: finalizers run in any thread, and adding and discarding are atomic.
        self._live: set[int] = set()
        self._tokens = itertools.count()

    @property
    def live(self) -> int:
        """Slots that are in flight or that some tensor of the user's is on."""
        return len(self._live)

    def take(self, nbytes: int) -> torch.Tensor:
        """The first `nbytes` of a slot: uint8 [nbytes], contents undefined."""
        token = next(self._tokens)
        self._live.add(token)
        if self.pinned:
            tensor = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
            weakref.finalize(tensor.untyped_storage(), self._live.discard, token).atexit = False
            return tensor
        try:
            memory = self._free.pop()
        except IndexError:
            memory = np.empty(self.nbytes, np.uint8)
        view = memory[:nbytes]
        weakref.finalize(view, _give_back, memory, self._free, self._live, token).atexit = False
        return torch.from_numpy(view)


def _give_back(
    memory: npt.NDArray[np.uint8], free: deque[npt.NDArray[np.uint8]], live: set[int], token: int
) -> None:
    # Runs inside a garbage collection or a decref, in any thread: nothing here may take a lock.
    live.discard(token)
    free.append(memory)  # with maxlen reached, the oldest goes


def stacking(
    by_torch: Callable[..., Any],
    take: Callable[[int], torch.Tensor],
    *,
    smallest: int = 0,
    keep_strides: bool = False,
    alone: bool = True,
) -> Callable[..., Any]:
    """Makes a function that collates tensors as torch does, in other memory.

    Args:
        by_torch: torch's own function, for tensors that aren't alike, or are more than arrays in host memory.
        take: gives uint8 [nbytes].
        smallest: size of a batch in bytes below which it is left to torch's function.
        keep_strides: whether the batch has the strides that torch would give it in the calling process; else
            it is contiguous, as torch makes it in worker processes.
        alone: whether torch may use its own threads, as no other threads call this at the same time.
    """

    def stack(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        nbytes = len(batch) * first.numel() * first.element_size()
        if nbytes < smallest:
            if first.layout is torch.strided and not first.is_nested:
                return torch.stack(batch)  # as torch's function does after more questions
            return by_torch(batch, collate_fn_map=collate_fn_map)
        dtype, shape = first.dtype, first.shape
        alike = is_plain(first) and all(type(t) is torch.Tensor and t.dtype is dtype for t in batch)
        if not alike or (keep_strides and not all(tensor.is_contiguous() for tensor in batch)):
            return by_torch(batch, collate_fn_map=collate_fn_map)
        out = take(nbytes).view(dtype).view(len(batch), *shape)
        try:
            if alone:
                return torch.stack(batch, 0, out=out)
            np.stack([tensor.numpy() for tensor in batch], out=out.numpy())
            return out
        except (RuntimeError, TypeError, ValueError):
            # Another shape, layout or device, or a gradient: to ask each takes longer than to stack them.
            return by_torch(batch, collate_fn_map=collate_fn_map)

    return stack


class LargeTensors:
    """Memory of the large tensors of batches, used again for those of later batches; see `Slots`."""

    _batch = threading.local()  # several threads make batches at the same time

    def __init__(self, *, pinned: bool, keep: int) -> None:
        self._pinned = pinned
        self._keep = keep
        self._slots: dict[int, Slots] = {}  # by the number of the large tensor in its batch

    def begin_batch(self) -> None:
        """Starts another batch, which gets all that this thread takes from now on."""
        self._batch.taken = 0

    def take(self, nbytes: int) -> torch.Tensor:
        """Memory of the next large tensor of this thread's batch: uint8 [nbytes], contents undefined."""
        number = self._batch.taken
        self._batch.taken += 1
        slots = self._slots.get(number)
        if slots is None or slots.nbytes < nbytes:
            slots = self._slots[number] = Slots(nbytes, pinned=self._pinned, keep=self._keep)
        return slots.take(nbytes)

    @property
    def live_nbytes(self) -> int:
        """Bytes of batches that are being made or that the user holds."""
        return sum(slots.live * slots.nbytes for slots in list(self._slots.values()))


_thread = threading.local()  # its `take` gives memory that is sent, while a worker collates


def shares_batches(
    collate: Callable[[Any], Any], take: Callable[[int], npt.NDArray[np.uint8] | None]
) -> Callable[[Any], Any]:
    """Makes a function that does what `collate` does, in a worker, in memory of `take`, which gives uint8
    [nbytes], or None if there is none for so many bytes."""

    def collate_shared(samples: Any) -> Any:
        _thread.take = take
        try:
            return collate(samples)
        finally:
            del _thread.take

    return collate_shared


def batch_memory(nbytes: int) -> torch.Tensor:
    """Memory for a tensor: uint8 [nbytes]. While a worker collates, it is sent without a copy; elsewhere it
    is ordinary memory, as each part of a batch takes an open file."""
    take = getattr(_thread, "take", None)
    taken = None if take is None else take(nbytes)
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu") if taken is None else torch.from_numpy(taken)


def is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is nothing but an array in the host's memory."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_quantized)
        and not (tensor.is_conj() or tensor.is_neg())
    )
