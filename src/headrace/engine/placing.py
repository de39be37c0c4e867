"""Batches by torch's default collation, their large tensors copied to their rows as soon as they are made.

Stacking a batch when its last sample is there would copy all of it at once, in one thread, into fresh memory.
Here each worker thread copies its own sample, and the memory is a slot's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headrace import _torch_compat
from headrace.engine.slots import Slots

# Smaller tensors are stacked as quickly as they are copied one by one.
MIN_NBYTES = 16_384

# Where a tensor is in a sample: keys and positions, outermost first.
Path = tuple[Any, ...]


class SlotShelf:
    """The slots of one loader, by the tensor's place in a sample.

    Args:
        pinned, keep: see `Slots`.
    """

    def __init__(self, *, pinned: bool, keep: int) -> None:
        self.pinned = pinned
        self.keep = keep
        self._slots: dict[Path, Slots] = {}

    def take(self, path: Path, nbytes: int) -> torch.Tensor:
        """Memory for the tensor at `path` of a batch: uint8 [nbytes]."""
        slots = self._slots.get(path)
        if slots is None or slots.nbytes < nbytes:
            slots = self._slots[path] = Slots(nbytes, pinned=self.pinned, keep=self.keep)
        return slots.take()[:nbytes]

    @property
    def live_nbytes(self) -> int:
        """Bytes of batches that are being made or that the user holds."""
        return sum(slots.live * slots.nbytes for slots in list(self._slots.values()))


@dataclass(frozen=True, eq=False)
class _Rows:
    """One tensor of a batch: memory for a row a sample."""

    tensor: torch.Tensor  # [n, …]
    raw: np.ndarray[Any, np.dtype[np.uint8]]  # [n, bytes of a row]


@dataclass(frozen=True, eq=False)
class _Placed:
    """Stands in a sample for a tensor that is in its row already."""

    rows: _Rows
    position: int


class Placing:
    """One batch on its way. Samples may come in any order, from any thread.

    Args:
        samples: of the batch.
        shelf: where memory comes from.
    """

    def __init__(self, samples: int, shelf: SlotShelf) -> None:
        self._samples = samples
        self._shelf = shelf
        self._rows: dict[Path, _Rows] = {}
        self._lock = threading.Lock()

    def place(self, position: int, sample: Any, path: Path = ()) -> Any:
        """`sample` with its large tensors replaced by placeholders, their values copied."""
        kind = type(sample)
        if kind is torch.Tensor:
            return self._place_tensor(position, sample, path)
        if kind is np.ndarray and sample.dtype.kind in "biuf":
            return self._place_tensor(position, torch.as_tensor(sample), path)
        if kind is tuple or kind is list:
            return kind(self.place(position, item, (*path, i)) for i, item in enumerate(sample))
        if kind is dict:
            return {key: self.place(position, item, (*path, key)) for key, item in sample.items()}
        return sample

    def collate(self, samples: list[Any]) -> Any:
        """What torch's `default_collate` makes of `samples`, all of which went through `place`."""
        return _torch_compat.collate(samples, _COLLATE)

    def _place_tensor(self, position: int, tensor: torch.Tensor, path: Path) -> Any:
        nbytes = tensor.numel() * tensor.element_size()
        plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
        if nbytes < MIN_NBYTES or not plain or tensor.is_conj() or tensor.is_neg():
            return tensor
        rows = self._rows.get(path)
        if rows is None:
            with self._lock:
                rows = self._rows.get(path) or self._new_rows(tensor, nbytes, path)
        if tensor.dtype != rows.tensor.dtype or tensor.shape != rows.tensor.shape[1:]:
            return tensor  # collation says what is wrong with that
        if tensor.is_contiguous():
            # Not copy_: it would start threads of its own in each thread that calls it.
            np.copyto(rows.raw[position], tensor.detach().view(-1).view(torch.uint8).numpy())
        else:
            rows.tensor[position].copy_(tensor)
        return _Placed(rows, position)

    def _new_rows(self, tensor: torch.Tensor, nbytes: int, path: Path) -> _Rows:
        memory = self._shelf.take(path, self._samples * nbytes)
        rows = _Rows(
            memory.view(tensor.dtype).view(self._samples, *tensor.shape),
            memory.numpy().reshape(self._samples, nbytes),
        )
        self._rows[path] = rows
        return rows


def _collate_placed(batch: list[Any], *, collate_fn_map: Any) -> Any:
    if not all(type(item) is _Placed for item in batch):
        return _by_torch([_restored(item) for item in batch], collate_fn_map)
    rows, positions = batch[0].rows, [item.position for item in batch]
    whole = positions == list(range(len(rows.tensor)))
    return rows.tensor if whole else rows.tensor[positions]


def _collate_mixed(batch: list[Any], *, collate_fn_map: Any) -> Any:
    return _by_torch([_restored(item) for item in batch], collate_fn_map)


def _by_torch(batch: list[Any], functions: Any) -> Any:
    assert _collate_tensors is not None
    return _collate_tensors(batch, collate_fn_map=functions)


def _restored(item: Any) -> Any:
    return item.rows.tensor[item.position] if type(item) is _Placed else item


_FUNCTIONS = _torch_compat.default_collate_functions()
_collate_tensors: Callable[..., Any] | None = _FUNCTIONS.get(torch.Tensor)
# Whether samples can be placed: only by torch's own collation, with other functions for tensors.
AVAILABLE = _collate_tensors is not None
_COLLATE: dict[Any, Callable[..., Any]] = {
    **_FUNCTIONS,
    torch.Tensor: _collate_mixed,
    _Placed: _collate_placed,
}
