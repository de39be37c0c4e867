"""Arrays and tensors on deferred memory, which is filled when something first touches it.

They are ordinary ones, of NumPy's and torch's own classes. As long as nobody has touched one, it is
recognized by its address, and so is a view of a rectangle of it (mirrored, or with channels in the other
order, if its strides say so): `recipe_of` then gives what it will hold, and a step on it may be recorded, by
another recipe's `array` or `tensor`, in place of being done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from headrace import _torch_compat
from headrace._native import deferred
from headrace.deferred import own_code
from headrace.deferred.chain import Chain, Counter, File
from headrace.deferred.steps import ITEM_NBYTES, Store, in_other_order

# By `Store.dtype`. NumPy has no bfloat16: there are no such arrays.
ARRAY_DTYPES = tuple(map(np.dtype, (np.uint8, np.float16, np.int16, np.float32, np.int64)))
TENSOR_DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.int64)
AXES = ("HW", "HWC", "CHW")
PATCHES = "P"  # in place of axes
MOST_UNUSED = 512  # arrays, more than a batch holds
# Bytes of files beyond which further arrays are filled at once: those that are kept hold theirs.
MOST_HELD_NBYTES = 256 << 20


class Layout(NamedTuple):
    """The places of an image's values in memory.

    Attributes:
        shape: the lengths of the axes.
        strides: bytes from a value to the next one along each axis.
        nbytes: bytes of all values.
        lengths: the height, width and number of channels.
        distances: bytes from a row, column and channel to the next one, the largest first; of a single
            channel, whose stride may be anything, those of rows and columns.
        names: the axis of each distance.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    nbytes: int
    lengths: dict[str, int]
    distances: dict[str, int]
    names: dict[int, str]

    @classmethod
    def of(cls, size: tuple[int, int], store: Store, axes: str) -> Layout:
        """The layout of an image of `size` (width, height)."""
        item, channels, (width, height) = ITEM_NBYTES[store.dtype], store.channels, size
        lengths = {"H": height, "W": width, "C": channels}
        if store.rows_of_pixels:
            distances = {"H": item * channels * width, "W": item * channels, "C": item}
        else:
            distances = {"H": item * width, "W": item, "C": item * width * height}
        shape, strides = (tuple([of[name] for name in axes]) for of in (lengths, distances))
        named = sorted(distances.items(), key=lambda item: item[1], reverse=True)
        distances = {name: distance for name, distance in named if name != "C" or channels > 1}
        names = {distance: name for name, distance in distances.items()}
        return cls(shape, strides, store.nbytes(size), lengths, distances, names)


_layout_of = lru_cache(maxsize=1024)(Layout.of)


class Recipe(NamedTuple):
    """The contents of an array or tensor.

    Attributes:
        chain: the steps from a file to its pixels.
        store: how they lie in memory, and what each level becomes.
        axes: the order of its axes, one of `AXES`; "HW" only for one channel. `PATCHES`: [1, patches, values]
            of an image that is cut into squares.
        frame: (height, width) if the image is the upper left corner of zeros, else (0, 0).
        patches: how it is cut, as of `deferred.ImageFill`.
    """

    chain: Chain
    store: Store
    axes: str
    frame: tuple[int, int] = (0, 0)
    patches: tuple[int, int, int] = (0, 0, 0)

    @property
    def layout(self) -> Layout:
        """The places of the values in memory."""
        size = self.frame[::-1] if self.frame[0] else self.chain.shown
        if self.axes != PATCHES:
            return _layout_of(size, self.store, self.axes)
        item, (edge, _, repeats) = ITEM_NBYTES[self.store.dtype], self.patches
        nbytes, values = self.store.nbytes(size) * repeats, self.store.channels * repeats * edge**2
        row = values * item
        return Layout((1, nbytes // row, values), (nbytes, row, item), nbytes, {}, {}, {})

    @property
    def is_image(self) -> bool:
        """True if the values are those of an image and nothing else."""
        return self.frame == (0, 0) and self.axes != PATCHES

    def fill(self) -> deferred.ImageFill:
        """The maker of the values."""
        return self.chain.fill(self.store, self.frame, self.patches)

    def array(self, unused: Counter | None = None, *, writable: bool = True) -> npt.NDArray[Any] | None:
        """A new array, or None if it can't be made like that.

        Args:
            unused: the arrays that the same function made, since one of them was part of something recorded.
                After many of them it is filled at once: a touch costs a twentieth of the time that an image
                takes, and moves pages.
            writable: whether it may be written.
        """
        layout = self.layout
        memory = self._memory(layout, unused)
        if memory is None:
            return None
        if not writable:
            memory = np.frombuffer(memoryview(memory).toreadonly(), np.uint8)
        return np.ndarray(layout.shape, ARRAY_DTYPES[self.store.dtype], memory, 0, layout.strides)

    def tensor(self) -> torch.Tensor | None:
        """A new tensor, whose strides tell how its values lie in memory, or None if it can't be made like
        that. Its storage can't be made larger."""
        layout = self.layout
        memory = self._memory(layout)
        dtype = TENSOR_DTYPES[self.store.dtype]
        return None if memory is None else tensor_on(memory, dtype, layout.shape, layout.strides)

    def _memory(self, layout: Layout, unused: Counter | None = None) -> Any:
        """A buffer with the pixels, or None if native code can't make them. It is filled now after many that
        are `unused`, if there is no deferred memory left, if too much is held already or if the file isn't
        certain to decode."""
        late = self.chain.file.certain and File.held_nbytes <= MOST_HELD_NBYTES
        if unused is not None:
            late = late and unused.count < MOST_UNUSED
            unused.count += 1
        fill = self.fill() if late and layout.nbytes <= deferred.MOST_NBYTES else None
        # Of images of one row or column, strides don't tell the axes.
        chain = None if min(self.chain.shown) < 2 else self.chain.checked(fill)
        if chain is None:
            return None
        if fill is not None:
            recipe = self if chain is self.chain else self._replace(chain=chain)
            memory = ArrayPiece(recipe, fill, layout, unused).take()
            if memory is not None:
                return memory
        if not self.is_image:
            return None
        buffer = np.empty(layout.nbytes, np.uint8)
        return buffer if chain.write(self.store, buffer.ctypes.data) else None


class ArrayPiece(deferred.Piece):
    """The memory of one array.

    Attributes:
        recipe: what it will hold.
        shape, strides: of the array that it was taken for.
        used: whether a step on it was recorded.
        stacked: whether it is part of another one.
        unused: the count that it belongs to, as of `Recipe.array`, or None.
        reader: the place in that code that was noted to read it, or None.
    """

    __slots__ = ("reader", "recipe", "shape", "stacked", "strides", "unused", "used")

    def __init__(
        self, recipe: Recipe, fill: deferred.ImageFill, layout: Layout, unused: Counter | None
    ) -> None:
        super().__init__((fill,), layout.nbytes)
        self.recipe, self.shape, self.strides = recipe, layout.shape, layout.strides
        self.used = self.stacked = False
        self.unused = unused
        self.reader: str | None = None

    def note_use(self) -> None:
        """To be called if it is part of something that was recorded."""
        if self.unused is not None:
            self.unused.count = 0
        if self.reader is not None:
            own_code.forget_pixels(self.reader)
            self.reader = None


def tensor_on(memory: Any, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """A tensor on a buffer; strides in bytes."""
    array = np.ndarray(shape, ARRAY_DTYPES[TENSOR_DTYPES.index(dtype)], memory, 0, strides)
    tensor = torch.from_numpy(array)
    if dtype is not torch.bfloat16:
        return tensor
    empty = torch.empty(0, dtype=dtype, device="cpu")
    return empty.set_(tensor.untyped_storage(), 0, tensor.shape, tensor.stride())


def write_array(original: Any, file: Any, array: Any, *args: Any, **kwargs: Any) -> Any:
    """Does what `numpy.lib.format.write_array` does, which passes memory to the system: the system doesn't
    wait until it is filled."""
    address = array.__array_interface__["data"][0]
    if deferred.state(address) == deferred.UNTOUCHED:
        deferred.touch(address)
    return original(file, array, *args, **kwargs)


def recipe_of(x: Any) -> Recipe | None:
    """The recipe of an untouched array or tensor of an image, or of a rectangle of one, else None.

    To be called once for each array that is made of it: what takes long is done in its memory before the
    second one, rather than for each of them.
    """
    found = find(x)
    return found and claim(*found)


def claim(piece: ArrayPiece, recipe: Recipe) -> Recipe | None:
    """The recipe that `recipe_of` gives for an array or tensor that `find` has found."""
    if not recipe.is_image:
        return None
    if piece.used and recipe.chain.steps:
        deferred.touch(piece.address)
        return None
    piece.used = True
    piece.note_use()
    return recipe


def unclaim(x: Any) -> None:
    """To be called if no array was made of what `recipe_of` gave."""
    found = find(x)
    if found is not None:
        found[0].used = False


def note_reader(array: npt.NDArray[Any], reader: str | None) -> None:
    """Has the note that the user's code reads a new array be forgotten if a step on the array is recorded."""
    found = None if reader is None else find(array)
    if found is not None:
        found[0].reader = reader


@lru_cache(maxsize=16)
def with_dtype(store: Store, dtype: Any) -> Store | None:
    """The store of the same levels in another dtype, or None if `dtype` is none or isn't made natively."""
    if dtype not in (np.float16, np.float32, np.int64):
        return None
    levels = np.tile(np.arange(256, dtype=dtype), (3, 1))
    number = ARRAY_DTYPES.index(np.dtype(dtype))
    return replace(store, values=levels.ctypes.data, dtype=number, keep=levels)


def find(x: Any) -> tuple[ArrayPiece, Recipe] | None:
    """The deferred memory that `x` lies in, and what `x` will hold, or None."""
    kind = type(x)
    dtypes: Any
    if kind is np.ndarray:
        address, dtypes = x.__array_interface__["data"][0], ARRAY_DTYPES
    elif kind is torch.Tensor and is_near(x):
        address, dtypes = address_of(x), TENSOR_DTYPES
    else:
        return None
    piece = deferred.piece_at(address) if address else None
    if not isinstance(piece, ArrayPiece) or x.dtype != dtypes[piece.recipe.store.dtype]:
        return None
    item = x.itemsize
    strides = x.strides if kind is np.ndarray else tuple([stride * item for stride in x.stride()])
    shape, offset = tuple(x.shape), address - piece.address
    if offset == 0 and shape == piece.shape and strides == piece.strides:
        return piece, piece.recipe
    seen = _view(piece.recipe, offset, shape, strides)
    return None if seen is None else (piece, seen)


def is_near(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor may be found: a quick test, which most others fail."""
    try:
        return deferred.Piece.lowest <= tensor.data_ptr() <= deferred.Piece.highest
    except RuntimeError:  # it has no memory
        return False


def address_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's first value, or 0 if its values aren't those in its memory, or somebody asks
    how they were computed."""
    if tensor.layout is not torch.strided or tensor.requires_grad or tensor.is_neg():
        return 0
    if _torch_compat.is_followed():
        return 0
    try:
        return tensor.data_ptr()
    except RuntimeError:  # within torch.func's transforms a tensor has no memory
        return 0


def _view(recipe: Recipe, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Recipe | None:
    """The recipe of a view whose first value lies `offset` bytes behind the memory's first one, with
    `strides` in bytes, or None if it is no rectangle."""
    layout = recipe.layout
    if recipe.axes == PATCHES:
        whole = offset == 0 and shape == layout.shape[1:] and strides == layout.strides[1:]
        return recipe if whole else None
    store, chain = recipe.store, recipe.chain
    axes = _axes_of(layout, shape, strides, store.channels) if recipe.is_image else None
    if axes is None:
        return None
    lengths, distances = layout.lengths, layout.distances
    counts = dict(zip(axes, shape, strict=True))
    mirrored = [name for name, stride in zip(axes, strides, strict=True) if stride < 0 and counts[name] > 1]
    for name in mirrored:
        offset -= (counts[name] - 1) * distances[name]
    begins = {"C": 0}
    for name, distance in distances.items():
        begins[name], offset = divmod(offset, distance)
    left, top = begins["W"], begins["H"]
    right, bottom = left + counts["W"], top + counts["H"]
    inside = left >= 0 and top >= 0 and right <= lengths["W"] and bottom <= lengths["H"]
    if not inside or begins["C"] or min(counts["H"], counts["W"]) < 2 or counts.get("C", 1) != lengths["C"]:
        return None
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


def _axes_of(layout: Layout, shape: Sequence[int], strides: Sequence[int], channels: int) -> str | None:
    """The axes of a view by its strides, one of `AXES`, or None if they are others."""
    axes, names, single = "", layout.names, channels == 1
    for length, stride in zip(shape, strides, strict=True):
        axes += "C" if length == 1 and single else names.get(abs(stride), "?")
    return axes if axes in AXES and (single or "C" in axes) else None
