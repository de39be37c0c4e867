"""Copies of batches, to give them again and again where the training step alone is measured."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils import _pytree as pytree


def clone(batch: Any) -> Any:
    """A batch that the user may change without changing this one: pinned memory stays pinned.

    Containers that pytree knows (tuples, lists, dicts, named tuples) are walked through; other objects are
    deep-copied, and those that can't be are given as they are.
    """
    return pytree.tree_map(_clone_leaf, batch)


def nbytes(batch: Any) -> int:
    """Bytes of the tensors in it."""
    leaves = pytree.tree_leaves(batch)
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))


def batch_samples(batch: Any, batch_size: int | None) -> int:
    """Samples in it: the first length that a tensor or a list in it has; `batch_size` where none has."""
    for leaf in pytree.tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            return int(leaf.shape[0])
    if isinstance(batch, (list, tuple)) and batch and isinstance(batch[0], (list, tuple)):
        return len(batch[0])
    return batch_size or 1


def _clone_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        twin = leaf.detach().clone()
        return twin.pin_memory() if leaf.device.type == "cpu" and leaf.is_pinned() else twin
    try:
        return copy.deepcopy(leaf)
    except Exception:  # whatever a user's __deepcopy__ raises: the object itself is the next best
        return leaf
