"""torch's `default_collate` for batches that this process makes, in less time."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from headrace import _torch_compat
from headrace.engine.slots import LARGE_NBYTES, LargeTensors, stacking

Collate = Callable[..., Any]

# NumPy's types of the arrays and numbers that are copied straight to a tensor, each with torch's.
DTYPES = {
    torch.empty(0, dtype=each, device="cpu").numpy().dtype: each
    for each in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
    )
}


def numbers(kind: type, dtype: torch.dtype, by_torch: Collate) -> Collate:
    """Makes a function that collates Python's numbers of type `kind` as torch's function `by_torch` does."""

    def collate_numbers(batch: Any, *, collate_fn_map: Any = None) -> Any:
        if set(map(type, batch)) == {kind}:
            try:
                out = torch.empty(len(batch), dtype=dtype)
                out.numpy()[:] = batch
                return out
            except (OverflowError, RuntimeError, TypeError):  # too large; or the default device isn't the CPU
                pass
        return by_torch(batch, collate_fn_map=collate_fn_map)

    return collate_numbers


def arrays(by_torch: Collate, smallest: int) -> Collate:
    """Makes a function that collates NumPy's arrays as torch's function `by_torch` does, to which batches of
    `smallest` bytes and more are left."""

    def collate_arrays(batch: Any, *, collate_fn_map: Any = None) -> Any:
        dtype, shape = batch[0].dtype, batch[0].shape
        if dtype in DTYPES and len(batch) * batch[0].nbytes < smallest:
            # Of others torch keeps the strides, or refuses or warns of them.
            alike = all(
                type(a) is np.ndarray and a.dtype is dtype and a.shape == shape and a.flags.carray
                for a in batch
            )
            out = torch.empty((len(batch), *shape), dtype=DTYPES[dtype]) if alike else None
            if out is not None and out.device.type == "cpu":
                out.numpy()[...] = batch
                return out
        return by_torch(batch, collate_fn_map=collate_fn_map)

    return collate_arrays


@lru_cache(maxsize=8)  # the same ones for all loaders
def _of_numbers(of_int: Collate, of_float: Collate, of_array: Collate) -> dict[type, Collate]:
    return {
        bool: numbers(bool, torch.bool, of_int),
        int: numbers(int, torch.int64, of_int),
        float: numbers(float, torch.float64, of_float),
        np.ndarray: arrays(of_array, LARGE_NBYTES),
    }


_NONE: dict[Any, Collate] = {}


class ReusingCollate:
    """torch's `default_collate`: numbers and small arrays in less time, large tensors in memory that is used
    again; see `Slots` and `stacking`."""

    def __init__(self, *, pinned: bool, keep: int, alone: bool) -> None:
        self.options = pinned, keep, alone
        self._memory = LargeTensors(pinned=pinned, keep=keep)
        self._functions = self._made_of = _NONE

    def __call__(self, samples: list[Any]) -> Any:
        """Returns what torch's function makes of `samples`. For any thread."""
        by_torch = _torch_compat.default_collate_functions()
        if by_torch != self._made_of:  # the user may add types at any time
            self._functions = self._made_of = dict(by_torch)
            if not _torch_compat.default_collation_changed():
                alone, take = self.options[2], self._memory.take
                stack = stacking(
                    by_torch[torch.Tensor], take, smallest=LARGE_NBYTES, keep_strides=alone, alone=alone
                )
                own = _of_numbers(by_torch[int], by_torch[float], by_torch[np.ndarray])
                self._functions = {**by_torch, **own, torch.Tensor: stack}
        self._memory.begin_batch()
        functions = self._functions
        function = functions.get(type(samples[0]))
        if function is not None:  # as torch does first, after more questions
            return function(samples, collate_fn_map=functions)
        return _torch_compat.collate(samples, functions)

    @property
    def live_nbytes(self) -> int:
        """Bytes of batches that are being made or that the user holds."""
        return self._memory.live_nbytes
