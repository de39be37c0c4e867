"""Arrays and tensors on deferred memory, which is filled when something first touches it.

They are ordinary ones, of NumPy's and torch's own classes. As long as nobody has touched one, it is
recognized by its address, and so is a view of a rectangle of it (mirrored, or with channels in the other
order, if its strides say so): `recipe_of` then gives what it will hold, and a step on it may be recorded, by
another recipe's `array` or `tensor`, in place of being done.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace._native import deferred
from headrace.deferred.chain import Chain, File
from headrace.deferred.steps import ITEM_NBYTES, Store, in_other_order
from headrace.errors import NativeError

# By `Store.dtype`. NumPy has no bfloat16.
ARRAY_DTYPES: tuple[Any, ...] = (np.dtype(np.uint8), np.dtype(np.float16), None, np.dtype(np.float32))
TENSOR_DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
AXES = ("HW", "HWC", "CHW")
# Bytes of files beyond which further arrays are filled at once: those that are kept hold theirs.
MOST_HELD_NBYTES = 256 << 20


class Recipe(NamedTuple):
    """The contents of an array or tensor.

    Attributes:
        chain: the steps from a file to its pixels.
        store: how they lie in memory, and what each level becomes.
        axes: the order of its axes, one of `AXES`; "HW" only for one channel.
    """

    chain: Chain
    store: Store
    axes: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes."""
        return tuple(map(self.lengths.__getitem__, self.axes))

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from a value to the next one along each axis."""
        return tuple(map(self.distances.__getitem__, self.axes))

    @property
    def lengths(self) -> dict[str, int]:
        """The height, width and number of channels."""
        width, height = self.chain.shown
        return {"H": height, "W": width, "C": self.store.channels}

    @property
    def distances(self) -> dict[str, int]:
        """Bytes from a row, column and channel to the next one."""
        item, channels, (width, height) = ITEM_NBYTES[self.store.dtype], self.store.channels, self.chain.shown
        if self.store.rows_of_pixels:
            return {"H": item * channels * width, "W": item * channels, "C": item}
        return {"H": item * width, "W": item, "C": item * width * height}

    def array(self) -> npt.NDArray[Any] | None:
        """A new array, which may be written, or None if it can't be made like that."""
        dtype = ARRAY_DTYPES[self.store.dtype]
        return None if dtype is None else self._array(dtype)

    def tensor(self) -> torch.Tensor | None:
        """A new tensor, whose strides tell how its values lie in memory, or None if it can't be made like
        that. Its storage can't be made larger."""
        dtype = TENSOR_DTYPES[self.store.dtype]
        if dtype is not torch.bfloat16:
            array = self.array()
            return None if array is None else torch.from_numpy(array)
        values = self._array(np.dtype(np.int16))
        if values is None:
            return None
        storage = torch.from_numpy(values).untyped_storage()
        empty = torch.empty(0, dtype=dtype, device="cpu")
        return empty.set_(storage, 0, values.shape, [stride // 2 for stride in values.strides])

    def _array(self, dtype: Any) -> npt.NDArray[Any] | None:
        # Of images of one row or column, strides don't tell the axes.
        if min(self.chain.shown) < 2:
            return None
        memory = self._memory()
        if memory is None:
            return None
        return np.ndarray(self.shape, dtype, memory, 0, self.strides)

    def _memory(self) -> Any:
        """A buffer with the pixels: deferred, or filled if there is no deferred memory left, if too much is
        held already or if the file isn't certain to decode. None: native code can't make them."""
        chain, store = self.chain, self.store
        nbytes, file = store.nbytes(chain.shown), chain.file
        late = file.certain and nbytes <= deferred.MOST_NBYTES and File.held_nbytes <= MOST_HELD_NBYTES
        if late:
            try:
                fill = chain.fill(store)
                if chain.steps:
                    fill.check()
            except NativeError:
                return None
            entry = _Entry(self, fill)
            memory = deferred.take(nbytes, deferred.filling_image(), fill.address, entry)
            if memory is not None:
                entry.address = memory.address
                _entries[fill.address] = entry
                return memory
        buffer = np.empty(nbytes, np.uint8)
        return buffer if chain.write(store, buffer.ctypes.data) else None


class _Entry:
    """The known facts of a piece of deferred memory, which holds them.

    Attributes:
        recipe: what it will hold.
        layout: shape and strides of the array that it was made for.
        fill: what makes that.
        address: its first byte.
        used: whether something else was made of it.
    """

    __slots__ = ("__weakref__", "address", "fill", "layout", "recipe", "used")

    def __init__(self, recipe: Recipe, fill: deferred.ImageFill) -> None:
        self.recipe, self.fill = recipe, fill
        self.layout = recipe.shape, recipe.strides
        self.address, self.used = 0, False


# By the address of the fill. An entry goes when its memory does.
_entries: weakref.WeakValueDictionary[int, _Entry] = weakref.WeakValueDictionary()


def recipe_of(x: Any) -> Recipe | None:
    """The recipe of an array or tensor that nobody has touched, or of a rectangle of one, else None.

    To be called once for each array that is made of it: what takes long is done in its memory before the
    second one, rather than for each of them.
    """
    found = _find(x)
    if found is None:
        return None
    entry, recipe = found
    if entry.used and recipe.chain.steps:
        deferred.touch(entry.address)
        return None
    entry.used = True
    return recipe


def _find(x: Any) -> tuple[_Entry, Recipe] | None:
    """The deferred memory that `x` lies in, and what it will hold, or None."""
    kind = type(x)
    if kind is np.ndarray:
        address, dtypes = x.__array_interface__["data"][0], ARRAY_DTYPES
    elif kind is torch.Tensor:
        address, dtypes = _address_of(x), TENSOR_DTYPES
    else:
        return None
    context = deferred.context(address) if address else None
    entry = None if context is None else _entries.get(context)
    if entry is None or x.dtype != dtypes[entry.recipe.store.dtype]:
        return None
    item = x.itemsize
    strides = x.strides if kind is np.ndarray else tuple(stride * item for stride in x.stride())
    shape, offset = tuple(x.shape), address - entry.address
    if offset == 0 and (shape, strides) == entry.layout:
        return entry, entry.recipe
    seen = _view(entry.recipe, offset, shape, strides)
    return None if seen is None else (entry, seen)


def _address_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's first value, or 0 if its values aren't those in its memory, or somebody asks
    how they were computed."""
    if tensor.layout is not torch.strided or tensor.requires_grad or tensor.is_neg():
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:  # within torch.func's transforms a tensor has no memory
        return 0


def _view(recipe: Recipe, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Recipe | None:
    """The recipe of a view whose first value lies `offset` bytes behind the memory's first one, with
    `strides` in bytes, or None if it is no rectangle."""
    axes = _axes_of(recipe, shape, strides)
    if axes is None:
        return None
    lengths, distances = recipe.lengths, recipe.distances
    counts = dict(zip(axes, shape, strict=True))
    mirrored = {name for name, stride in zip(axes, strides, strict=True) if stride < 0 and counts[name] > 1}
    offset -= sum((counts[name] - 1) * distances[name] for name in mirrored)
    begins = {}
    for name in sorted(distances, key=distances.__getitem__, reverse=True):
        begins[name], offset = divmod(offset, distances[name])
    left, top = begins["W"], begins["H"]
    right, bottom = left + counts["W"], top + counts["H"]
    inside = left >= 0 and top >= 0 and right <= lengths["W"] and bottom <= lengths["H"]
    if not inside or begins["C"] or min(counts["H"], counts["W"]) < 2 or counts.get("C", 1) != lengths["C"]:
        return None
    store, chain = recipe.store, recipe.chain
    if "C" in mirrored:
        if store.values is not None:
            return None
        store = in_other_order(store)
    cut = (counts["W"], counts["H"]) != chain.shown
    seen = chain.cropped(left, top, right, bottom) if cut else chain
    for name, axis in (("W", "x"), ("H", "y")):
        if seen is not None and name in mirrored:
            seen = seen.flipped(**{axis: True})
    return None if seen is None else Recipe(seen, store, axes)


def _axes_of(recipe: Recipe, shape: Sequence[int], strides: Sequence[int]) -> str | None:
    """The axes of a view by its strides, one of `AXES`, or None if they are others."""
    single = recipe.store.channels == 1
    names = {distance: name for name, distance in recipe.distances.items() if name != "C" or not single}
    axes = ""
    for length, stride in zip(shape, strides, strict=True):
        # The stride of a single channel may be anything.
        axes += "C" if length == 1 and single else names.get(abs(stride), "?")
    return axes if axes in AXES and (single or "C" in axes) else None
