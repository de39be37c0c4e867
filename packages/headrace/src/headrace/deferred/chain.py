"""The record of an image: one crop of the file's, one resize, one window of the result, mirroring, and
any other steps after that.

The first part is arithmetic on rectangles. Native code then decodes only the pixels that the window needs,
bit for bit as Pillow would have done it step by step.
"""

from __future__ import annotations

import itertools
import threading
import zlib
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from headrace._native import deferred, render
from headrace.deferred.steps import (
    GRAY_ROWS,
    MAX_STEPS,
    PILLOW_ROWS,
    FillBoxes,
    FromHsv,
    OpencvContrast,
    OpencvSaturation,
    PillowPoint,
    Step,
    Store,
    ToHsv,
    allowed_decoders,
    native_form,
)
from headrace.errors import NativeError
from headrace.records import Draw
from headrace.transforms.chance import HorizontalFlip, VerticalFlip
from headrace.transforms.colors import ChannelPermutation, ColorJitter, Grayscale
from headrace.transforms.crops import RandomCrop
from headrace.transforms.op import ImageOp
from headrace.transforms.resize import Resize

Box = tuple[int, int, int, int]

# Of a resize, those that native code has; Pillow 13 has more.
FILTERS = frozenset(range(Image.Resampling.HAMMING + 1))
# Ops on pixels that keep the size, and that native code does with all numbers that are recorded.
ALWAYS_DONE = frozenset(
    (
        *(ChannelPermutation, ColorJitter, Grayscale, HorizontalFlip, VerticalFlip),
        *(FillBoxes, FromHsv, OpencvContrast, OpencvSaturation, PillowPoint, ToHsv),
    )
)


class Counter:
    """A count of what was done in this process."""

    count = 0


class _Views:
    """Predicts how many images are made of a file from the file before it: there may be several views."""

    def __init__(self) -> None:
        self._file = 0
        self._count = self._usual = 1

    def left(self, file: int) -> int:
        """The number of images of a file, given by its number, to be made, including the current one, or 0
        if it has had as many as expected. To be called for every image."""
        if file != self._file:
            self._file, self._usual, self._count = file, self._count, 0
        self._count += 1
        return max(0, self._usual - self._count + 1)


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(name + content)
    return len(content).to_bytes(4, "big") + name + content + checksum.to_bytes(4, "big")


_NUMBERS = _chunk(b"PLTE", bytes(level for level in range(256) for _ in range(3)))
_views = _Views()
_numbers = itertools.count(1)


class File:
    """An image file in memory, which is decoded as a whole if several images are made of it.

    Attributes:
        data: the whole file.
        place: its address, and its length.
        certain: whether it is known to decode, rather than that it is complete.
        gray: whether Pillow opens it in mode L.
        flags: as of `render.RenderJob`.
        size: (width, height) in pixels.
        lock: held while it is decoded.
    """

    held_nbytes = 0  # of all files in this process

    __slots__ = (
        *("_decoded", "_fits", "_number", "_refusal", "_work"),
        *("certain", "data", "flags", "gray", "lock", "place", "size"),
    )

    def __init__(
        self,
        data: render.File,
        size: tuple[int, int],
        flags: int = 0,
        *,
        certain: bool = True,
        gray: bool = False,
    ) -> None:
        self.data, self.flags, self.certain, self.gray = data, flags, certain, gray
        self.size, self.place = size, (deferred.address_of(data), len(data))
        self.lock = threading.RLock()
        self._number = next(_numbers)
        self._decoded: render.DecodedImage | None = None
        self._fits = True  # all pixels into memory, as far as is known
        self._refusal = ""  # why native code can't decode all of it, once that is known
        self._work = 0.0  # of decoding so far; all of the file is 1
        File.held_nbytes += len(data)

    def __del__(self) -> None:
        File.held_nbytes -= len(self.data)

    def decoded(self, crop: Box) -> render.DecodedImage | None:
        """All of the image, if it was decoded already or should be, or None if `crop` alone should be.

        Raises:
            NativeError: native code can't decode it, which is tried once.
        """
        with self.lock:
            left = _views.left(self._number)
            wanted = self._decoded is None and self._fits and not self._refusal
            if wanted and self._pays_off(crop, left):
                self._decode()
            if self._refusal:
                raise NativeError(self._refusal)
            return self._decoded

    def decode(self) -> None:
        """Decodes all of it now. Raises NativeError if native code can't, MemoryError if memory is short."""
        self._decoded = render.DecodedImage(self.data, self.size, allowed_decoders() | self.flags)

    @property
    def pixels(self) -> render.DecodedImage | None:
        """All of its pixels, if they were decoded."""
        return self._decoded

    def _decode(self) -> None:
        try:
            self.decode()
        except NativeError as error:
            self._refusal = str(error)
        except MemoryError:  # for 4 bytes per pixel; a crop may need far less
            self._fits = False

    def _pays_off(self, crop: Box, left: int) -> bool:
        """Returns whether decoding the whole file is less work than `left` crops one after another."""
        width, height = self.size
        # Half of the work is done for everything above the crop's lower edge, the other half for the crop.
        work = ((crop[1] + crop[3]) * width + crop[2] * crop[3]) / (2 * width * height)
        self._work += work
        return work * left > 1 or self._work > (2 if left else 1)


def with_numbers(data: bytes) -> bytes:
    """A PNG file with a palette, whose entries are replaced by their numbers: decoded as gray, it gives the
    pixels themselves."""
    parts, at = [data[:8]], 8
    while data[at + 4 : at + 8] != b"IDAT":
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == b"PLTE":
            parts.append(_NUMBERS)
        elif data[at + 4 : at + 8] != b"tRNS":
            parts.append(data[at:end])
        at = end
    return b"".join((*parts, data[at:]))


@lru_cache(maxsize=32)
def _plain_form(store: Store, gray: bool) -> deferred.Form:
    return deferred.Form.of(*native_form((), (1, 1), store, gray=gray))


class Chain(NamedTuple):
    """The steps from a file to an image. Boxes are (left, top, width, height) in pixels.

    Attributes:
        file: the image file.
        mode: "RGB" or "L", as Pillow's ``convert(mode)`` decodes the file, or "P" for the numbers of
            a PNG's palette entries.
        crop: the part of the file's image that is used.
        size: (width, height) that the crop is resized to; the crop's own if nothing is resized.
        filter: of that resize, a value of `PIL.Image.Resampling`.
        window: the part of the resized crop that is left.
        flip_x: whether the window is mirrored left to right.
        flip_y: whether it is mirrored top to bottom.
        steps: what is done to the window after that.
        certain: whether native code is known to do these.
    """

    file: File
    mode: str
    crop: Box
    size: tuple[int, int]
    filter: int
    window: Box
    flip_x: bool = False
    flip_y: bool = False
    steps: tuple[Step, ...] = ()
    certain: bool = True

    @classmethod
    def whole(cls, file: File, mode: str) -> Chain:
        """The whole image of a file."""
        box = (0, 0, *file.size)
        return cls(file, mode, box, file.size, Image.Resampling.NEAREST.value, box)

    @property
    def shown(self) -> tuple[int, int]:
        """(width, height) of the result."""
        return self.steps[-1].size if self.steps else self.window[2:]

    @property
    def shown_mode(self) -> str:
        """Mode of the result."""
        return self.steps[-1].mode if self.steps else self.mode

    def after(self, op: ImageOp, draw: Draw) -> Chain | None:
        """The same with a further step, or None if they are too many."""
        if len(self.steps) == MAX_STEPS:
            return None
        done, (width, height) = type(op) in ALWAYS_DONE, self.shown
        if not done:
            height, width = op.output_size(height, width, draw)
        mode = "L" if op.channels(1 if self.shown_mode == "L" else 3) == 1 else "RGB"
        steps = (*self.steps, Step(op, draw, (width, height), mode))
        return self._replace(steps=steps, certain=self.certain and done)

    def converted(self, mode: str) -> Chain | None:
        """The same, converted to a mode."""
        if mode == self.shown_mode:
            return self
        if mode == "RGB" and self.file.gray and not self.steps:
            return self._replace(mode=mode)  # all three channels are made in the same way
        if mode == "L" and not self.steps and self.size == self.crop[2:]:
            return self._replace(mode=mode)  # luma doesn't look at places
        return self.after(Grayscale(1 if mode == "L" else 3), ())

    def cropped(self, left: int, top: int, right: int, bottom: int) -> Chain | None:
        """The same without what lies outside of a box that is inside the result and not empty."""
        width, height = right - left, bottom - top
        if self.steps:
            return self.after(RandomCrop(height, width), (top, left))
        x = self.shown[0] - right if self.flip_x else left
        y = self.shown[1] - bottom if self.flip_y else top
        if self.size != self.crop[2:]:
            return self._replace(window=(self.window[0] + x, self.window[1] + y, width, height))
        inner = (self.crop[0] + x, self.crop[1] + y, width, height)
        return self._replace(crop=inner, size=(width, height), window=(0, 0, width, height))

    def resized(self, size: tuple[int, int], filter: int) -> Chain | None:
        """The same, resized to (width, height)."""
        if self.steps or self.size != self.crop[2:] or self.flip_x or self.flip_y:
            return self.after(Resize(size[1], size[0], filter), ())
        return self._replace(size=size, filter=filter, window=(0, 0, *size))

    def flipped(self, *, x: bool = False, y: bool = False) -> Chain | None:
        """The same, mirrored left to right (`x`) or top to bottom (`y`)."""
        if self.steps:
            return self.after(HorizontalFlip(1.0) if x else VerticalFlip(1.0), (1.0,))
        return self._replace(flip_x=self.flip_x ^ x, flip_y=self.flip_y ^ y)

    def colored(self, mode: str, levels: bytes) -> Chain | None:
        """The same of a palette's entries, converted to a mode by a table of their colors."""
        if len(self.steps) == MAX_STEPS:
            return None
        return self._replace(steps=(*self.steps, Step(PillowPoint(levels), (), self.shown, mode)))

    def write(self, store: Store, address: int) -> bool:
        """Writes the pixels to memory. Returns whether native code could."""
        job = self._job(store, address)
        try:
            decoded = self.file.decoded(self.crop)
            made = render.render_file(self.file.data, [job]) if decoded is None else decoded.render([job])
            return made[0]
        except NativeError:
            return False  # the data are damaged; the caller leaves them to Pillow

    def checked(self, fill: deferred.ImageFill | None = None) -> Chain | None:
        """The same, or None if native code can't make the pixels when they are asked for. `fill` is one that
        was made of it, if there is any."""
        store = self._pillows_store()
        if store.nbytes(self.shown) > deferred.MOST_NBYTES:
            return None
        if self.certain:
            return self
        try:
            (fill or self.fill(store)).check()
        except NativeError:
            return None
        return self._replace(certain=True)

    def memory(self, *, late: bool) -> tuple[Any, int]:
        """A buffer of the pixels, as Pillow keeps them, and its address if it is deferred, else 0.

        Args:
            late: whether it is deferred if there is deferred memory left.

        Raises:
            NativeError: the file is damaged.
            MemoryError: there is no memory at all.
        """
        store = self._pillows_store()
        nbytes = store.nbytes(self.shown)
        if not self.file.certain and self.file.pixels is None:
            if not late:
                pixels = np.empty(nbytes, np.uint8)
                if not self.write(store, pixels.ctypes.data):
                    raise NativeError("the file is damaged")
                return pixels, 0
            self.file.decode()
        fill = self.fill(store)
        memory = deferred.take(nbytes, deferred.filling_image(), fill.address, fill) if late else None
        return (fill.filled(nbytes), 0) if memory is None else (memory, memory.address)

    def _pillows_store(self) -> Store:
        return PILLOW_ROWS if self.shown_mode == "RGB" else GRAY_ROWS

    def fill(
        self, store: Store, frame: tuple[int, int] = (0, 0), patches: tuple[int, int, int] = (0, 0, 0)
    ) -> deferred.ImageFill:
        """The native form of all this, which makes the pixels when they are asked for. `frame` and `patches`
        are as of `deferred.ImageFill`."""
        gray = self.mode != "RGB"
        if self.steps:
            form = deferred.Form.of(*native_form(self.steps, self.shown, store, gray=gray))
        else:
            form = _plain_form(store, gray)
        geometry = (*self.crop, *self.size, self.filter, *self.window, self.flip_x, self.flip_y)
        file = self.file
        end = file, file.flags, frame, patches
        return deferred.ImageFill(file.place, file.pixels, geometry, form, self.shown, *end)

    def _job(self, store: Store, address: int) -> render.RenderJob:
        pipeline, draws = native_form(self.steps, self.shown, store, gray=self.mode != "RGB")
        geometry = (self.crop, self.size, self.filter, self.window, (self.flip_x, self.flip_y))
        return render.RenderJob(*geometry, pipeline, draws, address, self.file.flags)
