"""Deferred memory: bytes that native code makes when something first touches them (native/src/deferred)."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace._native import abi, ffi
from headrace.errors import NativeError

UNTOUCHED, WANTED, FILLED = 1, 2, 3  # states of memory; 0: it isn't deferred


class DeferredCounts(NamedTuple):
    """What this process did with deferred memory.

    Attributes:
        live: pieces that are in use.
        faults: touches that had to wait.
        fills: pieces that were filled.
        filled_nbytes: bytes of all that were.
    """

    live: int
    faults: int
    fills: int
    filled_nbytes: int


@cache
def problem() -> str | None:
    """Why there is no deferred memory in this process, or None if there is. Installs a handler of SIGSEGV."""
    try:
        ffi.check(ffi.library().hr_deferred_start())
    except NativeError as error:
        return str(error)
    return None


def _give_back(memory: Any) -> None:
    ffi.library().hr_deferred_give_back(memory.address)


@cache
def _memory_of(power: int) -> Any:
    """The class of buffers of 2 ** `power` bytes, which are given back with the last array or image on them.
    ctypes needs one for each size."""
    members = {"__del__": _give_back, "__slots__": ("address", "keep")}
    return type("DeferredMemory", (ctypes.c_uint8 * (1 << power),), members)


def take(nbytes: int, fill: int, context: int, keep: Any) -> Any:
    """A buffer of at least `nbytes` bytes, of which only those may be touched, or None if there is none.

    Args:
        fill: address of a native function, an ``hr_fill``.
        context: address that it is called with.
        keep: an object that the context needs, held as long as the buffer.
    """
    address = ffi.library().hr_deferred_take(nbytes, fill, context)
    if address is None:
        return None
    memory = _memory_of((nbytes - 1).bit_length()).from_address(address)
    memory.address, memory.keep = address, keep
    return memory


def state(address: int) -> int:
    """`UNTOUCHED`, `WANTED` or `FILLED`, or 0 if the memory at `address` isn't deferred."""
    result: int = ffi.library().hr_deferred_state(address)
    return result


@cache
def copying() -> int:
    """The address of a fill that copies memory, whose address is its context."""
    address = ctypes.cast(ffi.library().hr_fill_copy, ctypes.c_void_p).value
    assert address is not None
    return address


def copied(source: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8] | None:
    """An array of which each byte is copied from `source` when one of them is touched, or None if there is no
    deferred memory left. `source` must be contiguous, and not be changed meanwhile."""
    memory = take(source.nbytes, copying(), source.ctypes.data, source)
    if memory is None:
        return None
    return np.frombuffer(memory, np.uint8, source.nbytes).reshape(source.shape)


def counts() -> DeferredCounts:
    """Totals of this process."""
    raw = abi.DeferredCounts()
    ffi.library().hr_deferred_count(ctypes.byref(raw))
    return DeferredCounts(raw.live, raw.faults, raw.fills, raw.filled_nbytes)
