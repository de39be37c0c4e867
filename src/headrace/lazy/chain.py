"""What was recorded of an image: one crop of a JPEG, one resize, one window of the result, and mirroring.

All of it is arithmetic on rectangles. Native code then decodes only the pixels that the window needs, bit for
bit as Pillow would have done it step by step.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from functools import cache

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from headrace._native import ffi
from headrace._native.decoders import decoder_bits, pillow_resizes_vertically_first
from headrace.errors import NativeError

Box = tuple[int, int, int, int]

FILTERS = frozenset(
    {
        Image.Resampling.NEAREST,
        Image.Resampling.LANCZOS,
        Image.Resampling.BILINEAR,
        Image.Resampling.BICUBIC,
        Image.Resampling.BOX,
        Image.Resampling.HAMMING,
    }
)


@dataclass(frozen=True, slots=True)
class Chain:
    """The steps from a JPEG file to an image. Boxes are (left, top, width, height) in pixels.

    Attributes:
        data: the whole JPEG file.
        mode: "RGB", or "L" for a grayscale file that has not been converted.
        crop: the part of the file's image that is used.
        size: (width, height) that the crop is resized to; the crop's own where nothing is resized.
        filter: of that resize, a value of `PIL.Image.Resampling`.
        window: the part of the resized crop that is left.
        flip_x: whether the window is mirrored left to right.
        flip_y: whether it is mirrored top to bottom.
    """

    data: bytes
    mode: str
    crop: Box
    size: tuple[int, int]
    filter: int
    window: Box
    flip_x: bool = False
    flip_y: bool = False

    @classmethod
    def whole(cls, data: bytes, mode: str, size: tuple[int, int]) -> Chain:
        """The whole image of a file, `size` being its (width, height)."""
        box = (0, 0, *size)
        return cls(data, mode, box, size, Image.Resampling.NEAREST, box)

    @property
    def shown(self) -> tuple[int, int]:
        """(width, height) of the result."""
        return self.window[2:]

    def cropped(self, left: int, top: int, right: int, bottom: int) -> Chain:
        """The same without what lies outside of a box that is inside the result and not empty."""
        width, height = right - left, bottom - top
        x = self.shown[0] - right if self.flip_x else left
        y = self.shown[1] - bottom if self.flip_y else top
        if self.size != self.crop[2:]:
            return replace(self, window=(self.window[0] + x, self.window[1] + y, width, height))
        inner = (self.crop[0] + x, self.crop[1] + y, width, height)
        return replace(self, crop=inner, size=(width, height), window=(0, 0, width, height))

    def resized(self, size: tuple[int, int], filter: int) -> Chain | None:
        """The same, resized; None where that has to be done to pixels: after another resize or mirroring."""
        if self.size != self.crop[2:] or self.flip_x or self.flip_y:
            return None
        return replace(self, size=size, filter=filter, window=(0, 0, *size))

    def flipped(self, *, x: bool = False, y: bool = False) -> Chain:
        """The same, mirrored left to right (`x`) or top to bottom (`y`)."""
        return replace(self, flip_x=self.flip_x ^ x, flip_y=self.flip_y ^ y)

    def pixels(self) -> bytes | None:
        """uint8 [height, width, 3] in rows without gaps; None where Pillow has to decode the file."""
        if self.mode != "RGB":
            return None
        try:
            return ffi.jpeg_render(
                self.data,
                self.crop,
                self.size,
                self.filter,
                self.window,
                flips=(self.flip_x, self.flip_y),
                vertical_first=pillow_resizes_vertically_first(),
                decoders=_decoders(),
            )
        except NativeError:
            return None  # whatever is wrong with the file, Pillow's result or error is the one that counts

    def image(self) -> Image.Image:
        """The result as an ordinary image.

        Raises:
            OSError: Pillow cannot decode the file.
        """
        pixels = self.pixels()
        if pixels is not None:
            return Image.frombuffer("RGB", self.shown, pixels, "raw", "RGB", 0, 1)
        return self._by_pillow()

    def _by_pillow(self) -> Image.Image:
        with JpegImageFile(io.BytesIO(self.data)) as file:
            image: Image.Image = file.convert(self.mode)
        left, top, width, height = self.crop
        image = image.crop((left, top, left + width, top + height))
        if self.size != self.crop[2:]:
            image = image.resize(self.size, Image.Resampling(self.filter))
        left, top, width, height = self.window
        image = image.crop((left, top, left + width, top + height))
        if self.flip_x:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM) if self.flip_y else image


@cache
def _decoders() -> int:
    return decoder_bits("auto")
