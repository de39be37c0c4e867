"""Pillow's own images on deferred memory, and the methods that record what they would do to one.

An image file has its ordinary class, state and core; only the bytes of its pixels are made late: decoded by
native code when something first touches them. In a process where `install` was called, `convert` to RGB and
L, `crop`, `resize`, `transpose`, `rotate`, `transform` with an affine or perspective matrix,
`filter(GaussianBlur)`, `point` with a table and `copy` of such an image, as long as nobody has touched it,
make another one, whose bytes are those of the file after the steps so far. Everything else is Pillow's.

Results, exceptions and warnings are Pillow's, and come when Pillow's would come: only files are deferred that
are certain to decode. Nobody knows that of a WebP: its error comes when its pixels are needed.
"""

from __future__ import annotations

import faulthandler
import functools
import inspect
import io
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from headrace import _pillow_compat
from headrace._native import abi, deferred, ffi, render
from headrace._torch_compat import replace_attribute
from headrace.deferred import own_code
from headrace.deferred.arrays import Recipe, note_reader, with_dtype, write_array
from headrace.deferred.chain import FILTERS, Box, Chain, Counter, File, with_numbers
from headrace.deferred.steps import GRAY_ROWS, RGB_ROWS, blur_of, is_size, point_of, warp_of
from headrace.errors import NativeError
from headrace.records import Draw
from headrace.transforms.op import ImageOp
from headrace.transforms.patches import IMAGES, Patched, find_patched, stopped_by
from headrace.transforms.warps import RandomRotation

Function = Callable[..., Any]

MIRRORED = {Image.Transpose.FLIP_LEFT_RIGHT: {"x": True}, Image.Transpose.FLIP_TOP_BOTTOM: {"y": True}}
# Quarter turns, counter-clockwise, that make the image as large as they must.
TURNED = {Image.Transpose[f"ROTATE_{angle}"]: float(angle) for angle in (90, 180, 270)}
TURN = RandomRotation((0.0, 360.0), Image.Resampling.NEAREST, True, None, (0, 0, 0))
# Of images in these modes conversions alone are recorded; Pillow decodes them for anything else.
CONVERTED = ("RGBA", "LA", "1", "I;16")
MODES = {
    JpegImageFile: ("RGB", "L"),
    PngImageFile: ("RGB", "L", "P", *CONVERTED),
    WebPImageFile: ("RGB", "RGBA"),
}
# Smaller files are decoded in less time than it takes to defer them.
FEWEST_PIXELS = 48 * 48
TIMES_FEWEST = {JpegImageFile: 1, PngImageFile: 4, WebPImageFile: 4}
# Files of as many gain from it even if nothing but decoding is done natively.
LARGE_PIXELS = {JpegImageFile: 224 * 224, PngImageFile: 96 * 96, WebPImageFile: 512 * 512}
_TRANSFORM = inspect.signature(Image.Image.transform)
KINDS = frozenset({Image.Image, *MODES})

opened, unused = Counter(), Counter()  # files that native code decodes later; arrays, as of `Recipe.array`
large = Counter()  # files that were opened and have `LARGE_PIXELS`


class Deferred:
    """The stand-in for an image's core until its pixels are asked for; after that it holds them, as `core`.

    Attributes:
        chain: the steps from the file to them.
        size: (width, height) of the image.
        used: whether another image was made of them.
        read: whether an array was.
        noted: whether what read them was noted.
    """

    __slots__ = ("_address", "_core", "_data", "_mode", "chain", "noted", "read", "size", "used")

    readonly = 0  # Pillow asks cores for it

    def __init__(self, chain: Chain, mode: str = "", data: bytes = b"") -> None:
        """`mode` is one of `CONVERTED`, of whose file, `data`, the chain gives what it is converted to."""
        self.chain, self._mode, self.size = chain, mode or chain.shown_mode, chain.shown
        self._core: Any = None
        self._data = data
        self.used = self.read = self.noted = False

    @property
    def untouched(self) -> bool:
        """True if nobody has seen or changed the pixels, nor what they mean."""
        if self._core is None:
            return True
        return bool(deferred.state(self._address) == deferred.UNTOUCHED and self._core.mode == self._mode)

    @property
    def mode(self) -> str:
        """The mode of the pixels."""
        return self._mode if self._core is None else str(self._core.mode)

    @property
    def core(self) -> Any:
        """Pillow's core image, whose pixels are made when they are touched."""
        return self._core or self._made(late=True)

    def _made(self, *, late: bool) -> Any:
        with self.chain.file.lock:
            if self._core is None and self._data:
                self._core, self._address = _decoded_core(self._data), 0
            elif self._core is None:
                memory, self._address = self._memory(late=late)
                self._core = _pillow_compat.core_on(memory, self._mode, self.size)
        return self._core

    def _memory(self, *, late: bool) -> tuple[Any, int]:
        try:
            return self.chain.memory(late=late)
        except NativeError:
            _decoded_core(bytes(self.chain.file.data))  # Pillow's error counts
            raise

    def touch(self) -> None:
        """Has the pixels made, if they weren't: without a fault, unless somebody has the core already."""
        self._made(late=False)
        if self._address:
            deferred.touch(self._address)


def _decoded_core(data: bytes) -> Any:
    """The core of a file's image, decoded by Pillow."""
    image = Image.open(io.BytesIO(data))
    image.__dict__.pop("_headrace_opened", None)
    image.load()
    return _pillow_compat.core_of(image)


def _deferred_of(image: Any) -> Deferred | None:
    """The `Deferred` of an image whose pixels nobody has touched, else None."""
    known = _pillow_compat.core_of(image)
    if type(known) is not Deferred or type(image) not in KINDS or not known.untouched:
        return None
    return known if image.size == known.size and image.mode == known.mode else None


def _recorded(image: Image.Image, modes: tuple[str, ...] = ("RGB", "L")) -> Deferred | None:
    """The `Deferred` of an image whose next step may be recorded, else None."""
    if image.mode not in modes or type(image) not in KINDS:
        return None
    if "_headrace_opened" in image.__dict__:
        _defer_opened(image)
    if image.palette is not None:
        image.load()  # Pillow puts a palette in that was changed
    known = _deferred_of(image)
    if known is None:
        return None
    if known.used and known.chain.steps:  # done once, not again for each image that is made of it
        known.touch()
        return None
    limit = Image.MAX_IMAGE_PIXELS
    # Pillow warns of each crop of such an image.
    return None if limit is not None and image.width * image.height > limit else known


def _movable(image: Image.Image) -> Deferred | None:
    """The same if the next step only moves pixels: those of a palette as well."""
    known = _recorded(image, ("RGB", "L", "P"))
    return None if known is not None and image.mode == "P" and _colors(image) is None else known


def _colors(image: Image.Image) -> bytes | None:
    """The colors of the palette, "RGB" after "RGB", or None if it has transparent ones."""
    core: Any = image.im
    return core.getpalette("RGB", "RGB") if core.getpalettemode() == "RGB" else None


def _view(
    image: Image.Image, known: Deferred, chain: Chain | None, *, keeps_info: bool = True
) -> Image.Image | None:
    """An image made of another, whose steps are `chain`, or None if it can't be deferred."""
    chain = chain and chain.checked()
    if chain is None:
        return None
    known.used = True
    pixels = Deferred(chain)
    if pixels.mode == "P":
        pixels.core.putpalette("RGB", "RGB", _colors(image))
    view = _pillow_compat.image_on(image, pixels)
    if not keeps_info:
        view.info = {}
    return view


def may_record(image: Any) -> bool:
    """Returns whether a step on an image may be recorded: it is deferred, or a file not yet loaded."""
    if type(image) not in KINDS:
        return False
    return type(_pillow_compat.core_of(image)) is Deferred or bool(getattr(image, "tile", None))


def chain_of(image: Any) -> Chain | None:
    """The recorded steps of an RGB or L image that nobody has touched, else None."""
    known = _recorded(image) if isinstance(image, Image.Image) else None
    return None if known is None else known.chain


def after(image: Image.Image, op: ImageOp, draw: Draw) -> Image.Image | None:
    """The image that `op` makes of `image`, recorded, or None if that has to be done to pixels."""
    # A color that fills in would be an error for gray, or another level.
    if image.mode == "L" and op is not TURN and (op.gray_problem or hasattr(op, "fill")):
        return None
    known = _recorded(image)
    if known is None:
        return None
    return _view(image, known, known.chain.after(op, draw), keeps_info=op.keeps_info)


def crop_and_resize(image: Image.Image, box: Box, size: Any, filter: int | None) -> Image.Image | None:
    """The image that `image.crop(box).resize((width, height), filter)` gives, recorded, or None if it isn't.
    `box` is (left, top, right, bottom) and `size` [height, width]."""
    edges = _edges(box, image.size) if filter in FILTERS and is_size(size) else None
    known = None if edges is None else _recorded(image)
    if known is None or edges is None or filter is None:
        return None
    chain, wanted = known.chain.cropped(*edges), (size[1], size[0])
    if chain is not None and chain.shown != wanted:
        chain = chain.resized(wanted, int(filter))
    return _view(image, known, chain)


# --- Pillow's methods, each of which records what it can ---------------------------------------------------


def _copy(original: Function, image: Image.Image) -> Any:
    known = _movable(image)
    copied = known and _view(image, known, known.chain)
    return original(image) if copied is None else copied


def _convert(original: Function, image: Image.Image, mode: Any = None, *args: Any, **kwargs: Any) -> Any:
    converted = None
    if mode in ("RGB", "L") and not args and not kwargs and "transparency" not in image.info:
        known = _recorded(image, ("RGB", "L", "P", *CONVERTED))
        if known is not None:
            if image.mode == "P":
                chain = _by_palette(image, known.chain, mode)
            else:
                chain = known.chain.converted(mode)
            converted = _view(image, known, chain)
            opened.count += converted is not None and image.mode in CONVERTED
    return original(image, mode, *args, **kwargs) if converted is None else converted


def _by_palette(image: Image.Image, chain: Chain, mode: str) -> Chain | None:
    colors = _colors(image)
    if colors is None:
        return None
    entries = Image.new("P", (256, 1))
    entries.putdata(range(256))
    entries.putpalette(colors)
    levels = [band.tobytes() for band in entries.convert(mode).split()]
    return chain.colored(mode, b"".join(levels * (3 // len(levels))))


def _crop(original: Function, image: Image.Image, box: Any = None) -> Any:
    # Pillow finds fault with arguments before it reads the file.
    edges = _edges(box, image.size)
    known = None if edges is None else _movable(image)
    cropped = known and edges and _view(image, known, known.chain.cropped(*edges))
    return original(image, box) if cropped is None else cropped


def _resize(
    original: Function,
    image: Image.Image,
    size: Any,
    resample: int | None = None,
    box: Any = None,
    reducing_gap: float | None = None,
) -> Any:
    filter = Image.Resampling.BICUBIC if resample is None else resample
    usual = reducing_gap is None and box is None and isinstance(filter, int) and filter in FILTERS
    if usual and is_size(size):
        known, wanted = _movable(image), (size[0], size[1])
        chain = None if known is None else known.chain
        if chain is not None and wanted != image.size:
            # As Pillow: numbers of palette entries are never mixed.
            chain = chain.resized(wanted, int(Image.Resampling.NEAREST if image.mode == "P" else filter))
        if chain is not None and not (image.mode == "P" and chain.steps):
            resized = known and _view(image, known, chain)
            if resized is not None:
                return resized
    return original(image, size, resample, box, reducing_gap)


def _transpose(original: Function, image: Image.Image, method: Any) -> Any:
    known = method if isinstance(method, int) else None  # Pillow may refuse others
    made = None
    if known in MIRRORED:
        source = _movable(image)
        made = source and _view(image, source, source.chain.flipped(**MIRRORED[Image.Transpose(method)]))
    elif known in TURNED:
        made = after(image, TURN, (TURNED[Image.Transpose(method)],))
    return original(image, method) if made is None else made


def _transform(original: Function, image: Image.Image, *args: Any, **kwargs: Any) -> Any:
    found = _warp_of(*args, **kwargs) if image.mode in ("RGB", "L") else None
    if found is None:
        return original(image, *args, **kwargs)
    info = image.info.copy()  # Pillow copies it before it reads the file, which may hold more
    warped = after(image, *found) or original(image, *args, **kwargs)
    warped.info = info
    return warped


def _warp_of(*args: Any, **kwargs: Any) -> tuple[ImageOp, Draw] | None:
    try:
        given = _TRANSFORM.bind(None, *args, **kwargs).arguments
    except TypeError:  # which Pillow raises
        return None
    filter = given.get("resample", Image.Resampling.NEAREST)
    return warp_of(given["size"], given["method"], given.get("data"), filter, given.get("fillcolor"))


def _filter(original: Function, image: Image.Image, filter: Any) -> Any:
    found = blur_of(filter)
    blurred = None if found is None else after(image, *found)
    return original(image, filter) if blurred is None else blurred


def _point(original: Function, image: Image.Image, lut: Any, mode: str | None = None) -> Any:
    found = point_of(lut) if mode is None else None
    changed = None if found is None else after(image, *found)
    return original(image, lut, mode) if changed is None else changed


def _core(image: Image.Image) -> Any:
    pixels = _pillow_compat.core_of(image)
    if type(pixels) is CORE_TYPE:
        return pixels
    return pixels.core if type(pixels) is Deferred else _PILLOWS.fget(image)  # which raises errors


CORE_TYPE = type(Image.new("L", (1, 1)).im)
_PILLOWS: Any = vars(Image.Image)["im"]
CORE = property(_core, _PILLOWS.fset)
_PILLOWS_ARRAY: Any = vars(Image.Image)["__array_interface__"]


def _array_interface(original: Function, image: Image.Image) -> Any:
    known = _recorded(image, ("RGB", "L", "P"))
    if known is not None and known.read:  # at the second time it is decoded for good
        known.touch()
    elif known is not None and min(known.size) > 1 and not _is_named("__array_interface__", 2):
        raise AttributeError("NumPy then asks for __array__")
    return original(image)


def _array_method(image: Any) -> Any:
    """`__array__`, which Pillow's images don't have: NumPy alone finds it, if there is no array interface."""
    if type(_pillow_compat.core_of(image)) is not Deferred or _is_named("__array__", 1):
        raise AttributeError(f"{type(image).__name__!r} object has no attribute '__array__'")
    return functools.partial(_as_array, image)


def _as_array(image: Any, dtype: Any = None, copy: bool | None = None) -> Any:
    """The array that `numpy.asarray(image)` gives, which may be written only if `copy` is true."""
    known = _recorded(image, ("RGB", "L", "P"))
    made = None
    if known is not None:
        known.read = True
        store, axes = (RGB_ROWS, "HWC") if image.mode == "RGB" else (GRAY_ROWS, "HW")
        converted = None if copy is False else with_dtype(store, dtype)
        # The numbers of a palette's entries are levels from here on.
        chain = known.chain._replace(mode="L") if image.mode == "P" else known.chain
        writable = copy is True or converted is not None
        made = Recipe(chain, converted or store, axes).array(unused, writable=writable)
        if not known.noted and made is not None:
            known.noted = True
            note_reader(made, own_code.note_pixels())
    if made is not None:
        return made
    usual = types.SimpleNamespace(__array_interface__=_PILLOWS_ARRAY.fget(image))
    return np.array(usual, dtype, copy=copy)


def _is_named(name: str, depth: int) -> bool:
    """Returns whether the caller's code, `depth` functions up, has a name in it: it isn't NumPy that asks."""
    code = sys._getframe(depth + 1).f_code
    return name in code.co_names or name in code.co_consts


def _load(original: Function, image: Image.Image) -> Any:
    known = _deferred_of(image)
    if known is not None and own_code.is_reader(2):
        _note_reader(known)
        known.touch()
    return original(image)


def _note_reader(known: Deferred) -> None:
    if not known.noted:
        known.noted = True
        own_code.note_pixels()


# --- files -------------------------------------------------------------------------------------------------


def _open_file(original: Function, image: Any, *args: Any, **kwargs: Any) -> None:
    original(image, *args, **kwargs)
    kind, pixels = type(image), image.width * image.height
    large.count += kind in MODES and pixels >= LARGE_PIXELS[kind]
    if image.mode not in MODES.get(kind, ()) or image.fp is None or _is_progressive(image):
        return
    if pixels >= FEWEST_PIXELS * TIMES_FEWEST[kind]:
        at = image.fp.tell()
        image.fp.seek(0)
        image._headrace_opened = image.fp.read(at), _state(image)  # what Pillow has read


def _is_progressive(image: Any) -> bool:
    """Returns whether a JPEG is progressive, or a PNG interlaced, which Pillow decodes."""
    return "progressive" in image.info or "interlace" in image.info


def _state(image: Any) -> Any:
    """The attributes that Pillow goes by when it decodes the file."""
    palette = image.palette and (image.palette.mode, image.palette.rawmode, image.palette.palette)
    file = _written(image.fp), getattr(image.fp, "closed", False)
    return image.mode, image.size, image.tile[:], image.decoderconfig, palette, *file


def _load_file(original: Function, image: Any) -> Any:
    _defer_opened(image)
    known = _deferred_of(image)
    if known is not None and own_code.is_reader(2):
        _note_reader(known)
        known.touch()
    return original(image)


def _defer_opened(image: Any) -> None:
    """Has the pixels of a file made later if Pillow would decode them now, and can for certain."""
    opened_as = image.__dict__.pop("_headrace_opened", None)
    if opened_as is not None and image.mode in MODES.get(type(image), ()) and _is_whole(image):
        head, state = opened_as
        if image.fp is not None and _state(image) == state:
            image.fp.seek(0)
            data = image.fp.read()
            # Else Pillow may raise an error, which is to come now.
            if data.startswith(head) and ffi.image_decodes(data):
                _defer(image, data)


def _is_whole(image: Any) -> bool:
    """Returns whether the pixels that Pillow would read now are those that native code makes of the file."""
    if isinstance(image, WebPImageFile):
        return not image.is_animated and _pillow_compat.is_unloaded(image)
    if isinstance(image, PngImageFile) and image.is_animated:
        return False
    return len(image.tile) == 1 and not image.decoderconfig


def _defer(image: Any, data: bytes) -> None:
    """Has the pixels of a file made later, and does what else Pillow does when it decodes it."""
    try:
        file = _certain(image, data)
    except (NativeError, MemoryError):
        return
    is_converted = image.mode in CONVERTED
    chain = Chain.whole(file, "RGB" if is_converted else image.mode)
    if chain.checked() is None:
        return
    image.im = Deferred(chain, image.mode, data) if is_converted else Deferred(chain)
    if isinstance(image, WebPImageFile):
        _pillow_compat.mark_loaded(image)
        image.info["timestamp"] = image.info["duration"] = 0
    elif isinstance(image, PngImageFile):  # which may have more to say behind its pixels
        at = image.tile[0][2] - 8
        while data[at + 4 : at + 8] == b"IDAT":
            at += 12 + int.from_bytes(data[at : at + 4], "big")
        _pillow_compat.end_after(image, at)
    image.tile = []
    image.readonly = 0
    image.__exit__()
    opened.count += not is_converted


def _certain(image: Any, data: bytes) -> File:
    """The file as one that native code decodes for certain. Raises NativeError or MemoryError if it can't."""
    if isinstance(image, JpegImageFile):
        return File(data, image.size, gray=image.mode == "L")
    if isinstance(image, PngImageFile):
        inflated = render.inflated_png(with_numbers(data) if image.mode == "P" else data)
        return File(inflated, image.size, abi.INFLATED, gray=image.mode == "L")
    return File(data, image.size, certain=False)


def _written(file: Any) -> tuple[int, int] | None:
    """When a file was written, and its length, or None if it is not the system's, or closed."""
    if type(file) is io.BytesIO:
        return None
    try:
        status = os.fstat(file.fileno())
    except (AttributeError, OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size


def _edges(box: Any, size: tuple[int, int]) -> Box | None:
    """The box that Pillow crops, if it lies inside an image of `size` and isn't empty."""
    if not isinstance(box, (list, tuple)):
        return None
    try:
        left, top, right, bottom = map(round, box)
    except (TypeError, ValueError, OverflowError):
        return None
    inside = 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]
    return (left, top, right, bottom) if inside and box[0] <= box[2] and box[1] <= box[3] else None


# --- install and uninstall ---------------------------------------------------------------------------------

# Methods that do something for an image that is deferred, or may be.
METHODS: tuple[tuple[type, str, Function], ...] = (
    *((Image.Image, function.__name__[1:], function) for function in (_copy, _convert, _crop, _resize)),
    *((Image.Image, function.__name__[1:], function) for function in (_transpose, _transform, _filter)),
    *((Image.Image, function.__name__[1:], function) for function in (_point, _load)),
    (Image.Image, "__array_interface__", _array_interface),
    (ImageFile.ImageFile, "load", _load_file),
    (WebPImageFile, "load", _load_file),
)

_undo: list[Function] = []


def _enable(original: Function, *args: Any, **kwargs: Any) -> None:
    original(*args, **kwargs)
    deferred.stay_in_front()


def problem() -> str | None:
    """Why images can't be deferred in this process, or None if they can."""
    return deferred.problem() or _pillow_compat.problem()


def install(patched: Patched | None = None) -> None:
    """From now on image files of formats that native code decodes are deferred in this process.

    If another function took the place of one of Pillow's that this stands for, nothing changes at all;
    `patched` are those functions if they are known.
    """
    if _undo or problem() is not None:
        return
    if IMAGES in stopped_by(find_patched() if patched is None else patched):
        return
    for owner, name, function in METHODS:
        _replace(owner, name, _for_deferred(vars(owner)[name], function))
    _replace(Image.Image, "__array__", property(_array_method))
    _replace(ImageFile.ImageFile, "__init__", standing_for(ImageFile.ImageFile.__init__, _open_file))
    _replace(faulthandler, "enable", standing_for(faulthandler.enable, _enable))
    _replace(np.lib.format, "write_array", standing_for(np.lib.format.write_array, write_array))
    Image.Image.im = CORE  # type: ignore[assignment]  # which images need after uninstall() as well


def uninstall() -> None:
    """From now on Pillow decodes files itself again; images that are deferred stay so."""
    while _undo:
        _undo.pop()()


def _replace(owner: Any, name: str, value: Any) -> None:
    _undo.append(replace_attribute(owner, name, value))


def _for_deferred(original: Any, function: Function) -> Any:
    if isinstance(original, property):
        assert original.fget is not None
        return property(_for_deferred(original.fget, function))

    @functools.wraps(original)
    def method(image: Any, *args: Any, **kwargs: Any) -> Any:
        if type(_pillow_compat.core_of(image)) is Deferred or "_headrace_opened" in image.__dict__:
            return function(original, image, *args, **kwargs)
        return original(image, *args, **kwargs)

    return method


def standing_for(original: Function, function: Function) -> Function:
    """A function that calls `function` with `original` before the arguments."""

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    return replaced
