"""Deferred memory: bytes that native code makes when something first touches them (native/src/deferred)."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace._native import abi, ffi, render
from headrace.errors import NativeError

MOST_NBYTES = (64 << 20) - 128  # of one image in deferred memory
MOST_STACKED_NBYTES = (512 << 20) - 128  # of a stack of several
UNTOUCHED, WANTED, FILLED = 1, 2, 3  # states of memory; 0: it isn't deferred


class DeferredCounts(NamedTuple):
    """Counts of what this process did with deferred memory."""

    live: int  # pieces that are in use
    faults: int  # touches that had to wait
    fills: int  # pieces that were filled
    filled_nbytes: int  # bytes of all that were


@cache
def problem() -> str | None:
    """Why there is no deferred memory in this process, or None if there is. Installs a handler of SIGSEGV."""
    try:
        ffi.check(ffi.library().hr_deferred_start())
    except NativeError as error:
        return str(error)
    return None


def stay_in_front() -> None:
    """To be called after another handler of SIGSEGV was installed, such as `faulthandler`'s."""
    ffi.library().hr_deferred_start()


@cache
def _calls() -> tuple[Any, Any, Any, Any]:
    library = ffi.library()
    names = ("take", "give_back", "state", "context")
    return tuple(getattr(library, f"hr_deferred_{name}") for name in names)


def _give_back(memory: Any) -> None:
    if _pieces.get(memory.context) is memory.keep:
        _pieces.pop(memory.context, None)
    _calls()[1](memory.address)


_MEMBERS = {"__del__": _give_back, "__slots__": ("address", "context", "keep")}
# The classes of buffers of 2 ** n bytes, as ctypes needs one for each size. They are given back with the last
# array or image on them.
_KINDS: Any = [type("DeferredMemory", (ctypes.c_uint8 * (1 << n),), _MEMBERS) for n in range(33)]


def take(nbytes: int, fill: int, context: int, keep: Any) -> Any:
    """A buffer of at least `nbytes` bytes, of which only those may be touched, or None if there is none.

    Args:
        fill: address of a native function, an ``hr_fill``.
        context: address that it is called with.
        keep: an object that the context needs, held as long as the buffer.

    Returns:
        An object with the buffer's `address`.
    """
    address = _calls()[0](nbytes, fill, context)
    if address is None:
        return None
    memory = _KINDS[nbytes.bit_length()].from_address(address)
    memory.address, memory.context, memory.keep = address, context, keep
    return memory


def state(address: int) -> int:
    """`UNTOUCHED`, `WANTED` or `FILLED`, or 0 if the memory at `address` isn't deferred."""
    result: int = _calls()[2](address)
    return result


def touch(address: int) -> None:
    """Has the bytes of deferred memory made, if they weren't."""
    _ = ctypes.c_uint8.from_address(address).value


# hr_image_fill, and the hr_pipeline that it points to: to pack their fields takes a fifth of the time that
# ctypes' structs take, and each image of Pillow's that is made by a recorded step needs them.
_PIPELINE = struct.Struct("=Q11i4xqQ")
_LAYOUT = struct.Struct("=3Q24i3Q" + _PIPELINE.format[1:])
_PIPELINE_AT = ctypes.sizeof(abi.ImageFill)
_NO_PIXELS = (0, 0, 0)
_BLOCK: Any = ctypes.c_char * _LAYOUT.size


class Form(NamedTuple):
    """The work on the window of an image, and how the result is stored.

    Attributes:
        pipeline: the fields of hr_pipeline; the size is the image's own.
        draws: address of the draws, or 0.
        keep: what the addresses are valid with.
    """

    pipeline: tuple[int, ...]
    draws: int
    keep: Any

    @classmethod
    def of(cls, pipeline: ffi.Pipeline, draws: npt.NDArray[np.float64]) -> Form:
        """The form of a pipeline, as for `render.RenderJob`."""
        address = draws.ctypes.data if len(draws) else 0
        return cls(_PIPELINE.unpack(pipeline.struct), address, (pipeline, draws))


class ImageFill:
    """An image of a file, as it is made when its memory is first touched: hr_image_fill.

    Args:
        data: address of the file, which `ffi.image_decodes` approves, and its length.
        decoded: all of its pixels, or None if they are decoded at the touch.
        geometry: crop, width, height and filter of the resize, window, and 1 for each flip, in the order of
            hr_render_job.
        form: what is done then.
        size: (width, height) of the result.
        keep: what the data's address is valid with.
        flags: as of a `render.RenderJob`.
        frame: (height, width) of larger memory, whose upper left corner the image is; the rest becomes 0.
        patches: the edge of the squares that it is cut into, the number of them along the edge of a block,
            and how often each plane is repeated.
    """

    __slots__ = ("_keep", "address")

    def __init__(  # noqa: PLR0913  (the fields of a struct)
        self,
        data: tuple[int, int],
        decoded: render.DecodedImage | None,
        geometry: Sequence[int],
        form: Form,
        size: tuple[int, int],
        keep: Any,
        flags: int,
        frame: tuple[int, int] = (0, 0),
        patches: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        block = _BLOCK()
        self.address = address = ctypes.addressof(block)
        self._keep = block, decoded, form, keep
        pixels = _NO_PIXELS if decoded is None else (decoded.address, *decoded.size)
        fields, draws, _ = form
        rules = fields[6], fields[7] | flags  # the order of Pillow's passes, and allowed decoders
        values = *data, *pixels, *geometry, *rules, abi.OK, *frame, *patches, 0
        pipeline = *fields[:2], size[1], size[0], *fields[4:]
        _LAYOUT.pack_into(block, 0, *values, address + _PIPELINE_AT, draws, 0, *pipeline)

    def check(self) -> None:
        """Raises NativeError if it can't be made."""
        ffi.check(ffi.library().hr_image_fill_check(self.address))

    def write(self, address: int, nbytes: int) -> None:
        """Makes it now, in `nbytes` bytes of memory. Raises MemoryError if there is none for that."""
        if ffi.library().hr_fill_image(self.address, address, nbytes) != abi.OK:
            raise MemoryError

    def filled(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Ordinary memory of `nbytes` bytes with the image in it. Raises MemoryError if there is none."""
        memory = np.empty(nbytes, np.uint8)
        self.write(memory.ctypes.data, nbytes)
        return memory


class CopyFill:
    """A copy of values, as part of a `Piece`."""

    __slots__ = ("_keep", "address")

    def __init__(self, values: npt.NDArray[np.uint8]) -> None:
        block = abi.ImageFill(data=values.ctypes.data, size=values.nbytes)
        self.address = ctypes.addressof(block)
        self._keep = block, values


def address_of(data: render.File) -> int:
    """The address of the bytes."""
    if isinstance(data, np.ndarray):
        return data.ctypes.data
    return ctypes.c_void_p.from_buffer(ctypes.c_char_p(data)).value or 0


@cache
def filling_image() -> int:
    """The address of a fill whose context is that of an `ImageFill`."""
    return ctypes.cast(ffi.library().hr_fill_image, ctypes.c_void_p).value or 0


@cache
def _filling_images() -> int:
    return ctypes.cast(ffi.library().hr_fill_images, ctypes.c_void_p).value or 0


class Piece:
    """A piece of deferred memory for images, one after another. Its memory holds it.

    Args:
        fills: what makes each of them.
        nbytes: of all of them.
        layout: how each is stored, as in hr_pipeline, or None for what its fill says.
        offsets: where each begins, in bytes, or None if all have the same size.

    Attributes:
        address: of the first byte, once `take` was called.
        lowest, highest: addresses between which all pieces of this process were.
    """

    lowest, highest = 1 << 64, 0
    __slots__ = ("_list", "address", "fills", "layout", "nbytes", "offsets")

    def __init__(
        self,
        fills: Sequence[ImageFill | CopyFill],
        nbytes: int,
        layout: int | None = None,
        offsets: Sequence[int] | None = None,
    ) -> None:
        self.fills, self.nbytes, self.layout = fills, nbytes, -1 if layout is None else layout
        self.offsets = range(0, nbytes, nbytes // len(fills)) if offsets is None else offsets
        self.address = 0

    def take(self) -> Any:
        """Memory for it, as of `take`, or None if there is none left."""
        if len(self.fills) == 1 and self.layout < 0:
            self._list: Any = None
            fill, context = filling_image(), self.fills[0].address
        else:
            images = np.array([[fill.address for fill in self.fills], self.offsets], np.uint64)
            places = images.ctypes.data, images.ctypes.data + images.strides[0]
            self._list = abi.ImageList(*places, len(self.fills), self.layout), images
            fill, context = _filling_images(), ctypes.addressof(self._list[0])
        memory = take(self.nbytes, fill, context, self)
        if memory is not None:
            self.address = memory.address
            Piece.lowest = min(Piece.lowest, self.address)
            Piece.highest = max(Piece.highest, self.address + self.nbytes)
            _pieces[context] = self
        return memory


class ZerosPiece(Piece):
    """A piece of zeros for `count` images of `nbytes` each, in each of which an image may be put."""

    __slots__ = ("_zeros", "each_nbytes")
    fills: list[ImageFill | CopyFill]

    def __init__(self, count: int, nbytes: int) -> None:
        self._zeros = CopyFill(np.zeros(nbytes, np.uint8))  # a thread may read them while images are put
        super().__init__([self._zeros] * count, count * nbytes, layout=0)
        self.each_nbytes = nbytes

    def put(self, number: int, fill: ImageFill) -> bool:
        """Has an image made of a fill, once for each; returns whether it will be: not if another thread has
        touched the piece meanwhile. To be called after `take`."""
        self.fills[number] = fill
        self._list[1][0, number] = fill.address
        return state(self.address) == UNTOUCHED


# By the address of what fills them; without those whose memory was given back.
_pieces: dict[int, Piece] = {}


def piece_at(address: int) -> Piece | None:
    """The untouched piece of which `address` is any byte, or None if there is none."""
    context = _calls()[3](address)
    return None if context is None else _pieces.get(context)


def render_pieces(pieces: Sequence[Piece], addresses: Sequence[int]) -> None:
    """Makes the images of pieces elsewhere, at the addresses of ordinary memory, which leaves them untouched;
    those of one file together. Raises MemoryError if there is no memory for that."""
    images: list[int] = []
    outputs: list[int] = []
    orders: list[int] = []
    for piece, address in zip(pieces, addresses, strict=True):
        images += [fill.address for fill in piece.fills]
        outputs += [address + offset for offset in piece.offsets]
        orders += [piece.layout] * len(piece.fills)
    places, layouts = np.array([images, outputs], np.uint64), np.array(orders, np.int32)
    code = ffi.library().hr_images_render(
        places.ctypes.data,
        places.ctypes.data + places.strides[0],
        layouts.ctypes.data,
        len(images),
    )
    if code != abi.OK:
        raise MemoryError


def counts() -> DeferredCounts:
    """Totals of this process."""
    raw = abi.DeferredCounts()
    ffi.library().hr_deferred_count(ctypes.byref(raw))
    return DeferredCounts(raw.live, raw.faults, raw.fills, raw.filled_nbytes)
