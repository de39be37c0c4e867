"""Compares batches and what comes in their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def outcomes(batches: Iterator[Any], most: int = 100) -> list[Any]:
    """Returns up to `most` batches of an epoch, with the message of a ValueError in place of its batch."""
    found: list[Any] = []
    while len(found) < most:
        try:
            found.append(next(batches))
        except StopIteration:
            break
        except ValueError as error:
            found.append(str(error).splitlines()[-1].removeprefix("ValueError: "))
    return found


def same(ours: Any, theirs: Any) -> bool:
    """Equal in type, shape, dtype and value, all the way down."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and ours.stride() == theirs.stride() and torch.equal(ours, theirs)
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, np.ndarray):
        return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    return bool(ours == theirs)
