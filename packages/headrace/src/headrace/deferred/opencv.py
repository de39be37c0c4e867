"""OpenCV's functions on deferred arrays: they record what they would do, as Pillow's methods do on images.

In a worker process whose program has imported cv2, these are replaced in the cv2 module: `imread` and
`imdecode` give arrays whose pixels are decoded when something touches them, and the functions of `STEPS`
make further ones of those that nobody has touched. `numpy.ascontiguousarray` does the same for a view of
one. Names that other modules took from cv2 before keep OpenCV's own functions, which see ordinary arrays; so
does a function that the program has replaced itself.

When a function is first called with a deferred array, it is compared with the installed OpenCV on small
images, and again when OpenCV's settings have changed. One that differs on this machine runs as it is.
"""

from __future__ import annotations

import functools
import io
import math
import os
import platform
import threading
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import cv2
import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from headrace._native import abi, ffi, render
from headrace._torch_compat import replace_attribute
from headrace.deferred import opencv_steps as steps
from headrace.deferred.arrays import Recipe, recipe_of, unclaim
from headrace.deferred.chain import Chain, Counter, File
from headrace.deferred.exif import APP1, START_OF_SCAN, UPRIGHT, orientation_in, segments_of
from headrace.deferred.images import LARGE_PIXELS, large, opened
from headrace.deferred.steps import BGR_ROWS, GRAY_ROWS, MAX_TABLES, RGB_ROWS, Store, laid_out
from headrace.errors import NativeError

Function = Callable[..., Any]

STEPS: dict[str, Callable[..., Recipe | None]] = {
    "cvtColor": steps.cvt_color,
    "resize": steps.resize,
    "flip": steps.flip,
    "rotate": steps.rotate,
    "copyMakeBorder": steps.copy_make_border,
    "warpAffine": steps.warp_affine,
    "warpPerspective": steps.warp_perspective,
    "GaussianBlur": steps.gaussian_blur,
    "sepFilter2D": steps.sep_filter,
}
LEVELS = np.repeat(np.arange(256, dtype=np.uint8).reshape(16, 16, 1), 3, 2)
NARROW = np.repeat(LEVELS.reshape(256, 1, 3), 2, 1)[:, :1]  # in rows of one pixel
LARGEST = 1 << 15  # edge of an image, which OpenCV decodes by default
IS_LIMITED = any(name.startswith("OPENCV_IO_MAX_IMAGE") for name in os.environ)  # by the program
PNG_SIGNATURE, JPEG_SIGNATURE = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"

_originals: dict[str, Function] = {}
_records = STEPS.copy()  # and those of other libraries' functions
_ours: dict[str, Function] = {}
# By function and OpenCV's settings: whether it differs, and its variant.
_verdicts: dict[tuple[str, Any], tuple[bool, int | None]] = {}
_needed: dict[str, str] = {}  # by a library's function, that of OpenCV whose variant it has
_comparing = threading.RLock()
_unused = Counter()  # arrays of files, as of `Recipe.array`
_within: list[str] = []  # the function that is compared, by who holds the lock


# --- files -------------------------------------------------------------------------------------------------


def _imread(original: Function, *args: Any, **kwargs: Any) -> Any:
    array, flags = None, _flags_of(args, kwargs, cv2.IMREAD_COLOR)
    if flags in _STORES and isinstance(args[0], (str, os.PathLike)):
        try:
            path = os.fspath(args[0])
            path.encode()
            with open(path, "rb", buffering=0) as file:
                array = _decoded(file.read(), flags)
        except (OSError, TypeError, ValueError, AttributeError):  # which OpenCV says in its own way
            pass
    return original(*args, **kwargs) if array is None else array


def _imdecode(original: Function, *args: Any, **kwargs: Any) -> Any:
    array, flags = None, _flags_of(args, kwargs, None)
    buf: Any = args[0] if args else None
    if flags in _STORES and type(buf) is np.ndarray and buf.dtype == np.uint8 and buf.ndim == 1:
        array = _decoded(buf.tobytes(), flags)
    return original(*args, **kwargs) if array is None else array


def _flags_of(args: tuple[Any, ...], kwargs: dict[str, Any], usual: Any) -> Any:
    """The flags of a call (source, flags), or None if it is another one."""
    flags = (*args[1:], *kwargs.values(), usual)[0]
    known = args and len(args) + len(kwargs) <= 2 and kwargs.keys() <= {"flags"}
    return flags if known and type(flags) is int else None


_STORES = {cv2.IMREAD_COLOR: BGR_ROWS, cv2.IMREAD_COLOR_RGB: RGB_ROWS, cv2.IMREAD_GRAYSCALE: GRAY_ROWS}


def _decoded(data: bytes, flags: int) -> Any:
    """The array of a file, or None if OpenCV has to decode it."""
    if IS_LIMITED or not ffi.image_decodes(data) or _differs("imread"):
        return None
    is_png, gray = data.startswith(PNG_SIGNATURE), flags == cv2.IMREAD_GRAYSCALE
    if is_png and data[24] > 8:  # bits of a value, which OpenCV scales and Pillow cuts
        return None
    # Its color type, or another format: OpenCV's gray of colors is Pillow's in no format.
    if gray and (data[25] != 0 if is_png else data[:2] != JPEG_SIGNATURE):
        return None
    upright = UPRIGHT.get(_orientation(data))
    if upright is None:
        return None
    try:
        file = _file(data, is_png=is_png, gray=gray)
        chain = Chain.whole(file, "RGB") if max(file.size) <= LARGEST else None
    except (NativeError, MemoryError):
        return None
    if isinstance(upright, float):
        chain = chain and chain.after(steps.TURN, (upright,))
    else:
        for axis, mirrored in zip("xy", upright, strict=True):
            chain = chain.flipped(**{axis: True}) if chain and mirrored else chain
    store = _STORES[flags]
    array = chain and Recipe(chain, store, "HW" if store is GRAY_ROWS else "HWC").array(_unused)
    opened.count += array is not None
    kind = PngImageFile if is_png else JpegImageFile
    large.count += array is not None and math.prod(file.size) >= LARGE_PIXELS[kind]
    return array


def _file(data: bytes, *, is_png: bool, gray: bool = False) -> File:
    size = ffi.image_size(data)
    if is_png:
        return File(render.inflated_png(data), size, abi.INFLATED)
    return File(data, size, abi.LUMA if gray else 0, certain=data[:2] == JPEG_SIGNATURE)


def _chunks_of(data: bytes) -> list[bytes]:
    """The names of a PNG's chunks."""
    names, at = [], len(PNG_SIGNATURE)
    while at < len(data):
        names.append(data[at + 4 : at + 8])
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    return names


def _orientation(data: bytes) -> int:
    """EXIF's orientation as OpenCV reads it, or 0 if that isn't certain."""
    if data.startswith(PNG_SIGNATURE):
        return 0 if b"eXIf" in _chunks_of(data) else 1
    if data[:2] != JPEG_SIGNATURE:
        return 0 if b"EXIF" in data else 1
    segments = segments_of(data)
    exif = [content for marker, content in segments if marker == APP1 and content[:4].lower() == b"exif"]
    if segments[-1][0] != START_OF_SCAN or len(exif) > 1:
        return 0
    return orientation_in(exif[0]) if exif else 1


# --- steps -------------------------------------------------------------------------------------------------


def seen(x: Any) -> Recipe | None:
    """The recipe of an array of levels that nobody has touched, or None."""
    if type(x) is not np.ndarray or x.dtype != np.uint8:
        return None
    recipe = recipe_of(x)
    if recipe is None or recipe.store.values is not None or recipe.axes == "CHW":
        return None
    if not recipe.store.rows_of_pixels:
        recipe = recipe._replace(store=laid_out(recipe.store, rows_of_pixels=True))
    axes = "HWC" if recipe.store.channels == 3 else "HW"
    return recipe if recipe.axes == axes else recipe._replace(axes=axes)


def recording(original: Function, *, name: str, record: Callable[..., Recipe | None]) -> Function:
    """`original`, a function of an array, recorded by `record` if it can be."""
    unused = Counter()

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        src = args[0] if args else kwargs.get("src")
        recipe = seen(src)
        if recipe is not None and not _differs(name):
            given = kwargs if args else {key: value for key, value in kwargs.items() if key != "src"}
            try:
                made = record(recipe, *args[1:], **given)
            except Exception:  # which OpenCV says in its own way
                made = None
            array = None if made is None else _like(original, src, made).array(unused)
            if array is not None:
                return array
            unclaim(src)
        return original(*args, **kwargs)

    return recorded


def _like(original: Function, src: Any, made: Recipe) -> Recipe:
    """The recipe of what a function makes of `src`, with an axis for a single channel if `src` has one, which
    only OpenCV's own functions drop."""
    keeps = isinstance(original, FunctionType) and src.ndim == 3
    return made._replace(axes="HWC") if keeps else made


def by_levels(original: Function) -> Function:
    """`original`, a function of an image that treats every level of a channel by itself, recorded by what it
    makes of all levels."""
    place = {"LUT": 2, "convertScaleAbs": 1}.get(original.__name__)  # of OpenCV's array for the result

    @functools.lru_cache(maxsize=MAX_TABLES)
    def values_of(
        channels: tuple[int, ...], args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]
    ) -> Any:
        given = [_thawed(each) for each in args], {name: _thawed(value) for name, value in kwargs}
        wide, narrow = (each[..., : channels[0]] if channels else each[..., 0] for each in (LEVELS, NARROW))
        pixels = wide.copy()
        try:
            values = original(pixels, *given[0], **given[1])
        except Exception:  # which is said of the image
            return None
        if np.shares_memory(values, pixels) or not np.array_equal(pixels, wide):
            return None  # it changes its image, or gives that back
        levels = values.reshape(256, -1)
        # What OpenCV computes in vectors may be rounded otherwise than what is left at the end of a row.
        same = original is not _originals["convertScaleAbs"] or np.array_equal(
            levels, original(narrow, *given[0], **given[1]).reshape(256, -1)
        )
        fits = same and levels.shape[1:] == (channels or (1,))
        axes = ("HW", "HWC")[values.ndim - 2]
        return (axes, levels, levels.tobytes()) if fits else None  # whose hash is computed once

    @functools.wraps(original)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        results = args[place : place + 1] if place is not None else ()
        usual = args and all(each is None for each in (*results, kwargs.get("dst")))
        recipe = seen(args[0]) if usual and _are_of_levels((*args[1:], *kwargs.values())) else None
        # NumPy keeps the order of axes in memory, OpenCV doesn't.
        if recipe is not None and (place is not None or recipe.axes == "HW" or abs(args[0].strides[-1]) == 1):
            fixed = (
                tuple(map(_frozen, args[1:])),
                tuple((name, _frozen(each)) for name, each in kwargs.items()),
            )
            values = values_of(args[0].shape[2:], *fixed)
            made = None if values is None else _with_values(recipe, *values)
            array = None if made is None else made.array()
            if array is not None:
                return array
        return original(*args, **kwargs)

    return recorded


def _frozen(value: Any) -> Any:
    """An argument as something that can be a key; `_thawed` gives it back."""
    if isinstance(value, np.ndarray):
        return value.tobytes(), value.dtype.str, value.shape
    return type(value), value


def _thawed(fixed: Any) -> Any:
    if len(fixed) == 3:
        return np.frombuffer(fixed[0], fixed[1]).reshape(fixed[2])
    return fixed[1]


def _are_of_levels(arguments: tuple[Any, ...]) -> bool:
    """Returns whether arguments are numbers, of which a channel or a level may have its own."""
    usual = (int, float, np.integer, np.floating, str, type(None))
    return all(
        each.dtype.kind in "iuf" and (each.size <= 4 or (256 in each.shape and each.size <= 768))
        if type(each) is np.ndarray
        else isinstance(each, usual)
        for each in arguments
    )


def _with_values(recipe: Recipe, axes: str, values: Any, data: bytes) -> Recipe | None:
    """The recipe with a table [256, channels], and its bytes, for the array's levels, and other axes."""
    if values.dtype == np.uint8:
        return steps.looked_up(recipe._replace(axes=axes), values)
    if values.dtype != np.float32:
        return None
    return recipe._replace(store=_store(recipe.store, data, values.shape[1]), axes=axes)


@functools.lru_cache(maxsize=MAX_TABLES)
def _store(store: Store, values: bytes, channels: int) -> Store:
    """The store of a table of float32 [256, channels]."""
    planes = np.ascontiguousarray(np.frombuffer(values, np.float32).reshape(256, channels).T)
    return Store(planes.ctypes.data, 3, True, planes, store.channels, store.blue_first)


def _merge(original: Function, *args: Any, **kwargs: Any) -> Any:
    mv: Any = args[0] if len(args) == 1 and not kwargs else None
    same = isinstance(mv, (list, tuple)) and len(mv) == 3 and mv[0] is mv[1] is mv[2]
    recipe = seen(mv[0]) if same else None
    gray = recipe is not None and recipe.axes == "HW"
    array = recipe._replace(store=RGB_ROWS, axes="HWC").array() if recipe is not None and gray else None
    return original(*args, **kwargs) if array is None else array


def _ascontiguousarray(original: Function, a: Any, *args: Any, **kwargs: Any) -> Any:
    if type(a) is np.ndarray and not args and not kwargs and not a.flags.c_contiguous:
        recipe = recipe_of(a)
        if recipe is not None:
            rows = recipe.axes != "CHW" or recipe.store.channels == 1
            array = recipe._replace(store=laid_out(recipe.store, rows_of_pixels=rows)).array()
            if array is not None:
                return array
    return original(a, *args, **kwargs)


# --- comparison --------------------------------------------------------------------------------------------


def _settings() -> tuple[bool, bool]:
    return cv2.useOptimized(), cv2.ipp.useIPP()


def _differs(name: str) -> bool:
    """Returns whether a function gives other values than native code, with OpenCV's current settings."""
    if name not in _CALLS:  # OpenCV has no part in it
        return False
    needed = _needed.get(name)
    if needed is not None and _differs(needed):
        return True
    key = name, _settings()
    verdict = _verdicts.get(key)
    if verdict is None:
        with _comparing:
            verdict = _verdicts.get(key) or _compared(*key)
    if verdict is None:
        return True
    differs, found = verdict
    if found is not None:
        steps.variant.of = {**steps.variant.of, name: found}
    return differs


def _compared(name: str, settings: Any) -> tuple[bool, int | None] | None:
    """Returns whether a function differs, and its variant, or None within a comparison."""
    if _within:
        return None
    _within.append(name)
    try:
        differs = not _fits(name)
    except Exception:  # of memory that is short, or of what took a function's place
        differs = True
    finally:
        _within.clear()
    if _settings() != settings:
        return None
    _verdicts[name, settings] = differs, steps.variant.of.get(name)
    return _verdicts[name, settings]


def differing() -> tuple[str, ...]:
    """Sentences on the functions that run as they are, because they differ here."""
    names = sorted({name for (name, _), (differs, _) in _verdicts.items() if differs})
    where = f"OpenCV {cv2.__version__} on {platform.machine()}"
    full = [f"cv2.{name}" if hasattr(cv2, name) else name for name in names]
    return tuple(f"{name}, because {where} gives other values than native code" for name in full)


def alike() -> dict[Any, int | None]:
    """The functions that don't differ, with OpenCV's settings, and their variants."""
    return {key: found for key, (differs, found) in _verdicts.items() if not differs}


def learn(verdicts: Mapping[Any, int | None]) -> None:
    """Notes what `alike` gave in another process on this machine."""
    _verdicts.update({key: (False, found) for key, found in verdicts.items()})


def _fits(name: str) -> bool:
    """Returns whether native code gives the same as a function on small images, and sets its variant."""
    pixels = _pixels()
    if name == "imread":
        return _decodes_alike(pixels[0])
    if name == "sepFilter2D":
        pixels = pixels + _near_halves()
    images = [(each, _recipe_of(each)) for each in pixels]
    cases = [(call, *image) for call in _CALLS[name] for image in images]
    return any(all(_same(name, *case) for case in cases) for _ in _variants(name))


@functools.cache
def _pixels() -> list[Any]:
    rng = np.random.default_rng(0)
    # What is left of a row by vectors differs in length.
    return [rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((41, 100, 3), (58, 60, 3), (38, 75))]


@functools.cache
def _near_halves() -> list[Any]:
    """Images whose values are so near to a half after a filter with `_FLAT` that multiplications and
    additions which are fused, along rows or columns, give others than those that aren't."""
    rows = np.array([np.roll([0, 202, 29], shift) for shift in range(3)], np.uint8)
    columns = np.array([[0], [10], [145]], np.uint8)
    gray = [np.tile(rows.repeat(3, 0), 25), np.tile(columns, (4, 75))]
    return [*gray, *(np.repeat(each[..., None], 3, 2) for each in gray)]


def _variants(name: str) -> Any:
    """Sets the variants of OpenCV's arithmetic one after another."""
    yield
    for value in steps.VARIANTS.get(name, ()):
        steps.variant.of = {**steps.variant.of, name: value}
        yield


_TILTED = np.array([[0.9, -0.3, 4.2], [0.25, 1.1, -3.7]])
_SEEN_ASIDE = np.array([[1.1, 0.1, -3.0], [-0.05, 0.9, 2.0], [1e-3, -7e-4, 1.0]])
_FLAT = np.array([0.372, 0.256, 0.372])


def _bell(size: int) -> Any:
    """A kernel of that many taps."""
    values = np.exp(-(((np.arange(size) - size // 2) * 5 / size) ** 2))
    return values / values.sum()


_CALLS: dict[str, list[tuple[Any, ...]]] = {
    "imread": [],
    "cvtColor": [(code,) for code in steps.CONVERSIONS],
    "resize": [
        (size, None, 0, 0, interpolation)
        for size in ((50, 31), (75, 90), (24, 24), (33, 19), (134, 90), (48, 19))
        for interpolation in steps.FILTERS
    ],
    "flip": [(-1,), (0,), (1,)],
    "rotate": [(code,) for code in steps.TURNS],
    "copyMakeBorder": [(3, 0, 7, 70, border, None, (9, 8, 7)) for border in steps.BORDERS],
    "warpAffine": [
        (_TILTED, (70, 50), None, interpolation, border, (200, 100, 50))
        for interpolation in (0, 1, 17)
        for border in steps.BORDERS
    ],
    "warpPerspective": [
        (_SEEN_ASIDE, (83, 40), None, interpolation, border, (1, 2, 3))
        for interpolation in (0, 1)
        for border in steps.BORDERS
    ],
    "GaussianBlur": [((3, 3), 0), ((5, 7), 0), ((0, 0), 1.3), ((9, 3), 2.0, None, 0.7), ((31, 31), 4.0)],
    "sepFilter2D": [(-1, x, y) for x, y in ((_FLAT, _FLAT), (_bell(5), _bell(9)), (_bell(31), _bell(31)))],
}


def compare(
    name: str,
    original: Function,
    record: Callable[..., Recipe | None],
    calls: list[Any],
    needed: str | None = None,
) -> None:
    """From now on a function of another library is compared, too, by calls with further arguments, after the
    one of OpenCV whose variant it has."""
    _originals[name], _records[name], _CALLS[name] = original, record, calls
    if needed is not None:
        _needed[name] = needed


def _same(name: str, call: tuple[Any, ...], image: Any, recipe: Recipe) -> bool:
    """Returns whether a call gives the same pixels by native code, if that does it at all."""
    original, made = _originals[name], _records[name](recipe, *call)
    if isinstance(original, FunctionType):
        image = np.atleast_3d(image)  # as AlbumentationsX wants it
    ours = None if made is None else _like(original, image, made).array()
    return ours is None or np.array_equal(ours, original(image, *call))


def _recipe_of(image: Any) -> Recipe:
    """The pixels of an image, as those of a file."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG", compress_level=0)
    chain = Chain.whole(_file(file.getvalue(), is_png=True), "RGB")
    return Recipe(chain, RGB_ROWS, "HWC") if image.ndim == 3 else Recipe(chain, GRAY_ROWS, "HW")


def _decodes_alike(image: Any) -> bool:
    cases = (".jpg", cv2.IMREAD_COLOR), (".jpg", cv2.IMREAD_GRAYSCALE), (".png", cv2.IMREAD_COLOR)
    for extension, flags in cases:
        data, gray = cv2.imencode(extension, image)[1], flags == cv2.IMREAD_GRAYSCALE
        chain = Chain.whole(_file(data.tobytes(), is_png=extension == ".png", gray=gray), "RGB")
        ours: Any = Recipe(chain, _STORES[flags], "HW" if gray else "HWC").array()
        if not np.array_equal(ours, _originals["imdecode"](data, flags)):
            return False
    return True


# --- start and stop ----------------------------------------------------------------------------------------

_undo: list[Callable[[], None]] = []


def start() -> None:
    """From now on cv2's functions record in this process."""
    if _undo:
        return
    _unused.count = 0
    wrappers: dict[str, Callable[[Function], Function]] = {
        **{name: functools.partial(_calling, _FIRST[name]) for name in _FIRST},
        **{name: functools.partial(recording, name=name, record=STEPS[name]) for name in STEPS},
        **dict.fromkeys(("LUT", "convertScaleAbs"), by_levels),
    }
    for name, wrap in wrappers.items():
        original = _originals[name] = getattr(cv2, name)
        if isinstance(original, BuiltinFunctionType):
            _ours[name] = wrap(original)
            replace(cv2, name, _ours[name])
    contiguous: Any = np.ascontiguousarray
    replace(np, "ascontiguousarray", _calling(_ascontiguousarray, contiguous))


def is_ours(name: str) -> bool:
    """Returns whether a function of cv2 is what `start` put there, over OpenCV's own."""
    return getattr(cv2, name) is _ours.get(name)


def _calling(function: Function, original: Function) -> Function:
    return functools.wraps(original)(functools.partial(function, original))


_FIRST: dict[str, Function] = {"imread": _imread, "imdecode": _imdecode, "merge": _merge}


def stop() -> None:
    """Ends what `start` began."""
    while _undo:
        _undo.pop()()


def replace(owner: Any, name: str, value: Any) -> None:
    """Puts an object in the place of another until `stop`."""
    _undo.append(replace_attribute(owner, name, value))
