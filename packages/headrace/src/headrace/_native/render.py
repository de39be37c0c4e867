"""Images made of one file in memory, as a chain of Pillow's steps would make them: native/src/render.h."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_uint64
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace._native import abi, ffi

File = bytes | npt.NDArray[np.uint8]


def _pointer(data: File) -> bytes | int:
    return data if isinstance(data, bytes) else data.ctypes.data


class RenderJob(NamedTuple):
    """One image of those that `render_file` makes of a file. Boxes are (x, y, width, height).

    Attributes:
        crop, size, filter: the part of the file's image that is used, (width, height) that it is resized to
            (its own for no resize), and how: a value of `PIL.Image.Resampling`, 0 to 5.
        window, flips: the part of the result that is kept, and whether it is mirrored across and down.
        pipeline, draws: what is done to it then, and how it is stored; float64 [ops, abi.DRAWS] for it.
        output: address of one sample of the pipeline.
        flags: `abi.INFLATED` if the file is what `inflated_png` gave, `abi.LUMA` if its luma is wanted, or 0.
    """

    crop: tuple[int, int, int, int]
    size: tuple[int, int]
    filter: int
    window: tuple[int, int, int, int]
    flips: tuple[bool, bool]
    pipeline: ffi.Pipeline
    draws: npt.NDArray[np.float64]
    output: int
    flags: int = 0


def render_file(data: File, jobs: Sequence[RenderJob]) -> list[bool]:
    """Makes images of a file as Pillow gives them. Returns whether native code made each of them. Raises
    NativeError if no allowed decoder takes the file, or a box leaves its image."""
    structs = (abi.RenderJob * len(jobs))(*[lowered(job) for job in jobs])
    ffi.check(ffi.library().hr_image_render(_pointer(data), len(data), structs, len(jobs)))
    return [struct.code == abi.OK for struct in structs]


def inflated_png(data: bytes) -> npt.NDArray[np.uint8]:
    """A PNG file with its image data inflated, which can be decoded for certain, by functions that get
    `abi.INFLATED` among the decoders. Raises NativeError if native code doesn't decode it."""
    size = c_uint64(0)
    code = ffi.library().hr_png_inflate(data, len(data), None, 0, byref(size))
    if code != abi.TOO_LARGE:
        ffi.check(code)
    out = np.empty(size.value, np.uint8)
    ffi.check(ffi.library().hr_png_inflate(data, len(data), out.ctypes.data, len(out), byref(size)))
    return out[: size.value]


class DecodedImage:
    """All pixels of an image file of `size` (width, height), of which images are made as `render_file` makes
    them of the file. Bit i of `decoders` allows decoder i; they have the flags of a `RenderJob`, too.

    Raises:
        NativeError: no allowed decoder takes the file, or it is of another size.
        MemoryError: there is none for 4 bytes per pixel.
    """

    def __init__(self, data: File, size: tuple[int, int], decoders: int) -> None:
        self.size = size
        self._pixels = np.empty(ffi.library().hr_pixels_size(*size), np.uint8)
        self.address = self._pixels.ctypes.data
        ffi.check(ffi.library().hr_pixels_decode(_pointer(data), len(data), decoders, self.address, *size))

    def render(self, jobs: Sequence[RenderJob]) -> list[bool]:
        """Makes an image for each job; returns whether it could. Several threads may call it at once.
        Raises NativeError if a box leaves the image; no image is made then."""
        structs = (abi.RenderJob * len(jobs))(*[lowered(job) for job in jobs])
        ffi.check(ffi.library().hr_pixels_render(self.address, *self.size, structs, len(jobs)))
        return [struct.code == abi.OK for struct in structs]


def lowered(job: RenderJob) -> abi.RenderJob:
    """A job as native code takes it."""
    pipeline = job.pipeline
    return abi.RenderJob(
        crop=job.crop,
        width=job.size[0],
        height=job.size[1],
        filter=job.filter,
        window=job.window,
        flip_x=job.flips[0],
        flip_y=job.flips[1],
        pillow_vertical_first=pipeline.struct.pillow_vertical_first,
        decoders=pipeline.struct.decoders | job.flags,
        code=abi.OK,
        pipeline=pipeline.pointer,
        draws=job.draws.ctypes.data if len(job.draws) else None,
        output=job.output,
    )
