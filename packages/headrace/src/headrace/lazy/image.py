"""Pillow images that postpone decoding.

`Image.open` gives a `LazyJpegFile` for a JPEG once `install` was called, and a `LazyPngFile` or a
`LazyWebpFile` where native code decodes such files. It reads the header as Pillow does, and the file's bytes
when Pillow would decode them. `convert` to RGB and L, `crop`, `resize`, `transpose`, `rotate`, `transform`
with an affine or perspective matrix, `filter(GaussianBlur)`, `point` with a table and `copy` are recorded;
whatever else is done to the image, the recorded chain is run first, and Pillow then works on ordinary pixels.
Results, exceptions and warnings are Pillow's, and come when Pillow's would come: a file that is not certain
to decode without an error is decoded at once.
"""

from __future__ import annotations

import os
import weakref
from os import PathLike
from typing import IO, Any, cast

from PIL import Image, ImageFile, JpegImagePlugin, features
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from headrace._native import ffi
from headrace._native.decoders import native_formats
from headrace.lazy import own_code
from headrace.lazy.chain import FILTERS, Chain, Counter, File
from headrace.lazy.steps import StandsFor, blur_of, is_size, point_of, warp_of
from headrace.records import Draw
from headrace.transforms.op import ImageOp
from headrace.transforms.patches import IMAGES, find_patched, stopped_by
from headrace.transforms.warps import RandomRotation

# Modes that Pillow gives files, from which native code makes what convert("RGB") would.
FILE_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")

MIRRORED = {Image.Transpose.FLIP_LEFT_RIGHT: {"x": True}, Image.Transpose.FLIP_TOP_BOTTOM: {"y": True}}
# Quarter turns, counter-clockwise, that make the image as large as they must.
TURNED = {Image.Transpose[f"ROTATE_{angle}"]: float(angle) for angle in (90, 180, 270)}
# Attributes that Pillow sets on an image without a look at its pixels, which change what these mean.
BESIDE_PIXELS = frozenset({"palette", "_mode", "_size", "tile"})
TURN = RandomRotation((0.0, 360.0), Image.Resampling.NEAREST, True, None, (0, 0, 0))


opened = Counter()  # files that weren't decoded at once


class PendingPixels:
    """What `load()` returns for an image that has not been decoded: the pixels it has then, by (x, y)."""

    def __init__(self, image: Recorded) -> None:
        self._image = image
        self.readonly = image.readonly
        self.pixels: Any = None  # set when the image is decoded

    def __getitem__(self, xy: tuple[int, int]) -> Any:
        return self._decoded()[xy]

    def __setitem__(self, xy: tuple[int, int], color: Any) -> None:
        self._decoded()[xy] = color

    def _decoded(self) -> Any:
        if self.pixels is None:
            _ = self._image.im
        return self.pixels


class _StandsForImage(StandsFor, type(JpegImageFile)):  # type: ignore[misc]
    # ABCMeta remembers classes that it was asked about, and would take an equal one for the same.
    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


class Recorded(Image.Image, metaclass=_StandsForImage):
    """An image with a recorded chain of steps in place of pixels, until those are asked for."""

    _chain: Chain | None = None
    _used = False  # whether another image was made of it
    _read = False  # whether an array was
    _noted = False  # whether what read its pixels was noted
    _colors: bytes | None = None  # of the palette that the pixels have, "RGB" after "RGB"
    _access: Any = staticmethod(lambda: None)  # what load() gave, if in use
    stands_for: type[Image.Image] = Image.Image

    def __setattr__(self, name: str, value: Any) -> None:
        # The chain says what the pixels are; Pillow combines those that there are with what is set.
        if name in BESIDE_PIXELS and self._chain is not None:
            self._decode()
        super().__setattr__(name, value)

    @property
    def im(self) -> Any:
        """Pillow's pixels; decoded now if they have not been."""
        if self._chain is not None:
            self._note_reader()
            self._decode()
        return super().im

    @im.setter
    def im(self, core: Any) -> None:
        self._leave_pixels()
        Image.Image.im.fset(self, core)  # type: ignore[attr-defined]

    def _leave_pixels(self) -> None:
        """Forgets the pixels, which what `load()` gave keeps."""
        if self._access() is not None:
            self._decode()
        self._chain = None

    def _note_reader(self) -> None:
        if not self._noted:
            self._noted = True
            own_code.note_pixels()

    def _decode(self) -> None:
        chain = self._chain
        if chain is None:
            return
        with chain.file.lock:
            if self._chain is None:  # another thread has decoded it
                return
            image = chain.image()
            if self._colors is not None:
                image.putpalette(self._colors)
                image.load()  # puts them in
            access = self._access()
            if access is not None:
                access.pixels = image.im.pixel_access(access.readonly)
            # In this order: other threads look at the chain first.
            Image.Image.im.fset(self, image.im)  # type: ignore[attr-defined]
            self._chain = None

    def _current(self) -> Chain | None:
        """The chain, or None if there are pixels, or are to be, as the palette was changed in place."""
        if self._chain is not None and self.palette is not None and self.palette.dirty:
            self._decode()  # Pillow then puts the palette in
        return self._chain

    def load(self) -> Any:
        """Pillow's pixel access; for an image that is not decoded, one that decodes it at first use."""
        chain = self._current()
        if chain is not None:
            with chain.file.lock:
                if self._chain is not None:  # still, if there are several threads
                    access = self._access() or PendingPixels(self)
                    self._access = weakref.ref(access)
                    return access
        return super().load()

    def close(self) -> None:
        """As Pillow's: pixels are gone, and asking for them is an error."""
        self._leave_pixels()
        super().close()

    def copy(self) -> Image.Image:
        """A copy, not decoded either."""
        chain = self._movable()
        return super().copy() if chain is None else self._view(chain)

    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Image.Image:
        """Pillow's convert(); "RGB" and "L" are recorded."""
        if mode in ("RGB", "L") and not args and not kwargs and "transparency" not in self.info:
            chain = self._recorded(FILE_MODES)
            if chain is not None and isinstance(self, LazyFile):
                return self._view(Chain.whole(chain.file, mode))
            chain = chain and (None if self.mode == "P" else chain.converted(mode))
            if chain is not None:
                return self._view(chain)
        return super().convert(mode, *args, **kwargs)

    def crop(self, box: tuple[float, float, float, float] | None = None) -> Image.Image:
        """Pillow's crop(); recorded where the box lies inside the image."""
        # Pillow finds fault with arguments before it reads the file.
        chain = self._movable() if _inside(box, self.size) else None
        if chain is not None and box is not None:
            chain = chain.cropped(*(round(edge) for edge in box))
        return super().crop(box) if chain is None else self._view(chain)

    def resize(
        self,
        size: Any,
        resample: int | None = None,
        box: tuple[float, float, float, float] | None = None,
        reducing_gap: float | None = None,
    ) -> Image.Image:
        """Pillow's resize(); recorded where it is of the whole image."""
        filter = Image.Resampling.BICUBIC if resample is None else resample
        usual = reducing_gap is None and box is None and isinstance(filter, int) and filter in FILTERS
        if usual and is_size(size):
            chain, wanted = self._movable(), (size[0], size[1])
            if chain is not None and wanted != self.size:
                # As Pillow: numbers of palette entries are never mixed.
                chain = chain.resized(wanted, int(Image.Resampling.NEAREST if self.mode == "P" else filter))
            if chain is not None and not (self.mode == "P" and chain.steps):
                return self._view(chain)
        return super().resize(size, resample, box, reducing_gap)

    def transpose(self, method: Image.Transpose) -> Image.Image:
        """Pillow's transpose(); mirroring and quarter turns are recorded."""
        known = method if isinstance(method, int) else None  # Pillow may refuse others
        if known in MIRRORED:
            chain = self._movable()
            chain = chain and chain.flipped(**MIRRORED[Image.Transpose(method)])
            if chain is not None:
                return self._view(chain)
        turned = self.after(TURN, (TURNED[Image.Transpose(method)],)) if known in TURNED else None
        return super().transpose(method) if turned is None else turned

    def transform(
        self,
        size: tuple[int, int],
        method: Any,
        data: Any = None,
        resample: int = Image.Resampling.NEAREST,
        fill: int = 1,
        fillcolor: Any = None,
    ) -> Image.Image:
        """Pillow's transform(), which rotate() calls; affine and perspective matrices are recorded."""
        found = warp_of(size, method, data, resample, fillcolor) if self.mode in ("RGB", "L") else None
        if found is None:
            return super().transform(size, method, data, resample, fill, fillcolor)
        info = self._copied_info()  # Pillow copies it before it reads the file, which may hold more
        warped = self.after(*found) or super().transform(size, method, data, resample, fill, fillcolor)
        warped.info = info
        return warped

    def filter(self, filter: Any) -> Image.Image:
        """Pillow's filter(); a Gaussian blur is recorded."""
        found = blur_of(filter)
        blurred = None if found is None else self.after(*found)
        return super().filter(filter) if blurred is None else blurred

    def point(self, lut: Any, mode: str | None = None) -> Image.Image:
        """Pillow's point(); a table of levels is recorded."""
        found = point_of(lut) if mode is None else None
        changed = None if found is None else self.after(*found)
        return super().point(lut, mode) if changed is None else changed

    def after(self, op: ImageOp, draw: Draw) -> LazyImage | None:
        """What `op` makes of the image, recorded; None where that has to be done to pixels."""
        before = self.size
        # A colour that fills in would be an error for gray, or another level.
        refused = self.mode == "L" and op is not TURN and (op.gray_problem or hasattr(op, "fill"))
        chain = None if refused else self._recorded()
        chain = chain and chain.after(op, draw)
        if chain is None:
            return None
        return self._view(chain, keeps_info=op.keeps_info(before[1], before[0], draw))

    @property
    def chain(self) -> Chain | None:
        """What is recorded of an RGB or L image; None: it has pixels, or is of another mode."""
        return self._recorded()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        pixels, chain = None, self._current()
        if not self._read and chain is not None:
            self._note_reader()
            pixels = chain.pixels()
        self._read = True  # at the second time it is decoded for good
        if pixels is None:
            return super().__array_interface__
        return {"version": 3, "shape": pixels.shape, "typestr": "|u1", "data": pixels.tobytes()}

    def __eq__(self, other: object) -> bool:
        theirs = other.stands_for if isinstance(other, Recorded) else type(other)
        return theirs is self.stands_for and _plain(self) == _plain(cast("Image.Image", other))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Elsewhere it is an ordinary image.
        return _ordinary, (self.stands_for, self.__getstate__())

    def _recorded(self, modes: tuple[str, ...] = ("RGB", "L")) -> Chain | None:
        """The chain that can go on; None where Pillow has to do what comes next to pixels."""
        if self.mode not in modes:
            return None
        if self._chain is None:
            self.load()
        chain = self._current()
        if chain is None:
            return None
        if self._used and chain.steps:  # done once, not again for each image that is made of it
            self._decode()
            return None
        limit = Image.MAX_IMAGE_PIXELS
        # Pillow warns of each crop of such an image.
        return None if limit is not None and self.width * self.height > limit else chain

    def _movable(self) -> Chain | None:
        """The chain where what comes next only moves pixels: those of a palette as well."""
        return self._recorded(("RGB", "L", "P"))

    def _view(self, chain: Chain, *, keeps_info: bool = True) -> LazyImage:
        self._used = True
        return LazyImage(chain, self._copied_info() if keeps_info else {}, self)

    def _copied_info(self) -> dict[Any, Any]:
        return {key: value.copy() if isinstance(value, list) else value for key, value in self.info.items()}


class LazyImage(Recorded):
    """What a recorded step gives: an `Image.Image` without a file format.

    Args:
        chain: from the file to this image.
        info: as the image's attribute of this name.
        origin: the image that the step is made of.
    """

    def __init__(self, chain: Chain, info: dict[Any, Any], origin: Recorded) -> None:
        super().__init__()
        # As the authors of Pillow's plug-ins set them.
        self._mode, self._size = chain.shown_mode, chain.shown
        self.info = info
        if self.mode == "P" and origin.palette is not None:
            self.palette, self._colors = origin.palette.copy(), origin._colors
        self._chain = chain

    __hash__ = None  # type: ignore[assignment]  # as Pillow's images


class LazyFile(Recorded, ImageFile.ImageFile):  # type: ignore[metaclass]
    """An image file that is decoded when its pixels are looked at; a base class for those of each format."""

    _taken = False

    def __init__(self, fp: Any, filename: str | bytes | None = None) -> None:
        super().__init__(fp, filename)
        assert self.fp is not None
        at = self.fp.tell()
        self.fp.seek(0)
        self._head = self.fp.read(at)  # what Pillow has read
        self._opened = self._state()

    def _state(self) -> Any:
        """What Pillow goes by when it decodes the file."""
        palette = self.palette and (self.palette.mode, self.palette.rawmode, self.palette.palette)
        file = _written(self.fp), getattr(self.fp, "closed", False)
        return self.mode, self.size, self.tile[:], self.decoderconfig, palette, *file

    def load(self) -> Any:
        """Reads the file if Pillow would decode it, and closes it as Pillow does."""
        waits = not self._taken and self._decodes_later()
        if waits and self.fp is not None and self._state() == self._opened:
            self.fp.seek(0)
            data = self.fp.read()
            # Else Pillow may raise an error, which is to come now.
            if data.startswith(self._head) and ffi.image_decodes(data):
                self._finish(data)
                self.tile = []
                self.readonly = 0
                self.__exit__()
                if self.palette is not None:
                    self._colors = bytes(self.palette.palette)
                    self.palette.dirty, self.palette.rawmode = 0, None
                self._chain = Chain.whole(File(data, self.size, self.stands_for), self.mode)
                self._taken, self._head = True, b""
                opened.count += 1
        return super().load()

    def _decodes_later(self) -> bool:
        """Whether the pixels that Pillow would read now are those that native code makes of the file."""
        raise NotImplementedError

    def _finish(self, data: bytes) -> None:
        """Does what Pillow does after it has decoded the file `data`."""


class LazyJpegFile(LazyFile, JpegImageFile):  # type: ignore[metaclass]
    """A JPEG file that is decoded when its pixels are looked at. Made as `JpegImageFile` is."""

    stands_for = JpegImageFile
    __hash__ = None  # type: ignore[assignment]

    def _decodes_later(self) -> bool:
        drafted = bool(self.decoderconfig)
        return len(self.tile) == 1 and not drafted and self.mode in ("RGB", "L")


class LazyPngFile(LazyFile, PngImageFile):  # type: ignore[metaclass]
    """A PNG file that is decoded when its pixels are looked at. Made as `PngImageFile` is."""

    stands_for = PngImageFile
    __hash__ = None  # type: ignore[assignment]
    _texts: dict[str, Any] | None = None

    def _decodes_later(self) -> bool:
        return len(self.tile) == 1 and not self.is_animated and self.mode in FILE_MODES

    def _finish(self, data: bytes) -> None:
        # Chunks behind the image data, of which some are texts. Native code has seen that they are whole.
        assert self.fp is not None
        assert self.png is not None
        at = self.tile[0][2] - 8
        while data[at + 4 : at + 8] == b"IDAT":
            at += 12 + int.from_bytes(data[at : at + 4], "big")
        self.fp.seek(at)
        while True:
            name, position, size = self.png.read()
            if name == b"IEND":
                break
            try:
                self.png.call(name, position, size)
            except AttributeError:  # of no meaning to Pillow
                self.private_chunks.append((name, self.fp.read(size), True))
            self.fp.read(4)
        self._texts = self.png.im_text
        self.png.close()
        self.png = None

    @property
    def text(self) -> dict[str, Any]:
        """Pillow's texts, by their keywords."""
        if self._texts is None and not self.is_animated:  # else Pillow goes to the last frame before it loads
            self.load()
        return super().text if self._texts is None else self._texts


class LazyWebpFile(LazyFile, WebPImageFile):  # type: ignore[metaclass]
    """A WebP file that is decoded when its pixels are looked at. Made as `WebPImageFile` is."""

    stands_for = WebPImageFile
    __hash__ = None  # type: ignore[assignment]

    def load(self) -> Any:
        """Reads the file where Pillow would decode it, and closes it as Pillow does."""
        if self._taken and self._chain is None:  # Pillow would decode the file again
            return ImageFile.ImageFile.load(self)
        return super().load()

    def _decodes_later(self) -> bool:
        return not self.is_animated

    def _finish(self, _: bytes) -> None:
        self.info["timestamp"] = self.info["duration"] = 0


def open(fp: str | bytes | PathLike[str] | PathLike[bytes] | IO[bytes]) -> Image.Image:
    """`PIL.Image.open` that postpones decoding, for code outside of a loader.

    Args:
        fp: a path, or a file opened for reading bytes.

    Returns:
        A `LazyJpegFile`, `LazyPngFile` or `LazyWebpFile` where native code decodes such files; what Pillow
        returns for everything else.

    Raises:
        OSError, PIL.UnidentifiedImageError: as `PIL.Image.open`.
    """
    image = Image.open(fp)
    lazy = next(
        (each for each in (LazyJpegFile, LazyPngFile, LazyWebpFile) if type(image) is each.stands_for), None
    )
    if lazy is None:
        return image
    if isinstance(fp, (str, bytes, PathLike)):
        image.close()
        return lazy(fp)
    fp.seek(0)
    return lazy(fp)


def install() -> None:
    """From now on `PIL.Image.open` gives lazy images in this process, of formats that native code decodes.

    A plug-in that isn't Pillow's own stays. If another function took the place of one of Pillow's that lazy
    images stand for, nothing changes at all.
    """
    patched = find_patched()
    if IMAGES in stopped_by(patched):
        return
    left = {function.key for function, _ in patched if function.owner is Image.OPEN}
    for name, lazy in _lazy_factories().items():
        factory, accept = Image.OPEN[name]
        if factory is not lazy and name not in left:
            _replaced[name] = factory
            Image.register_open(name, lazy, accept)


def uninstall() -> None:
    """From now on `PIL.Image.open` gives Pillow's own images again."""
    while _replaced:
        name, factory = _replaced.popitem()
        if Image.OPEN[name][0] is _lazy_factories()[name]:
            Image.register_open(name, factory, Image.OPEN[name][1])


_replaced: dict[str, Any] = {}  # what opened files of each format before, by Pillow's names


def _lazy_factories() -> dict[str, Any]:
    formats: dict[str, Any] = {"JPEG": _lazy_jpeg, "PNG": LazyPngFile}
    if features.check("webp"):
        formats["WEBP"] = LazyWebpFile
    return {name: formats[name] for name in formats if name in native_formats()}


def _lazy_jpeg(fp: IO[bytes], filename: str | bytes | None = None) -> JpegImageFile:
    image = LazyJpegFile(fp, filename)
    if "mp" not in image.info:
        return image
    fp.seek(0)
    return JpegImagePlugin.jpeg_factory(fp, filename)  # several images in one file


def _written(file: Any) -> tuple[int, int] | None:
    """When a file was written, and its length; None if it is not the system's, or closed."""
    try:
        status = os.fstat(file.fileno())
    except (AttributeError, OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size


def _inside(box: Any, size: tuple[int, int]) -> bool:
    if not isinstance(box, (list, tuple)):
        return box is None
    try:
        left, top, right, bottom = (round(edge) for edge in box)
    except (TypeError, ValueError, OverflowError):
        return False
    inside = 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]
    return inside and bool(box[0] <= box[2] and box[1] <= box[3])


def _plain(image: Image.Image) -> Image.Image:
    """An ordinary image of the same mode, size, info, palette and pixels."""
    return _ordinary(Image.Image, Image.Image.__getstate__(image))


def _ordinary(cls: type[Image.Image], state: list[Any]) -> Image.Image:
    image = cls.__new__(cls)
    image.__setstate__(state)
    return image
