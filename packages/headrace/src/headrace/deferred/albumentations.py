"""The functions of albumentations 2.0 and AlbumentationsX between those of OpenCV, on deferred arrays.

Both are imported as `albumentations`. Their `Compose` and transforms run as they are written, and draw their
own numbers; most of them call cv2, whose functions record (`headrace.deferred.opencv`). Recorded here is what
they do by NumPy and other libraries: functions of single levels, which are run on all 256 of them, quarter
turns, shifts of hues, blends with gray, boxes that are filled, and Pillow's blur.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import albucore
import cv2
import numpy as np
from albumentations import ColorJitter
from albumentations.augmentations.blur import functional as blur
from albumentations.augmentations.dropout import functional as dropout
from albumentations.augmentations.geometric import functional as geometric
from albumentations.augmentations.pixel import functional as pixel

from headrace._native import abi
from headrace.deferred import opencv, opencv_steps
from headrace.deferred.arrays import Recipe
from headrace.deferred.chain import Chain
from headrace.deferred.steps import (
    MAX_FACTOR,
    MAX_RADIUS,
    RGB_ROWS,
    FillBoxes,
    OpencvContrast,
    OpencvSaturation,
    PillowBlur,
)
from headrace.transforms.changed import is_librarys
from headrace.transforms.op import ImageOp

Function = Callable[..., Any]

LIBRARIES = ("albumentations", "albucore")


def _rot90(seen: Recipe, factor: Any) -> Recipe | None:
    turns = {1: 90.0, 2: 180.0, 3: 270.0}
    known = turns.get(factor) if type(factor) is int else None
    return None if known is None else opencv_steps.after(seen, opencv_steps.TURN, (known,))


def _transpose(seen: Recipe) -> Recipe | None:
    turned = opencv_steps.after(seen, opencv_steps.TURN, (90.0,))
    return turned and opencv_steps.with_chain(turned, turned.chain.flipped(y=True))


def _shift_hsv(seen: Recipe, hue_shift: Any, sat_shift: Any, val_shift: Any) -> Recipe | None:
    numbers = [opencv_steps.number(shift) for shift in (hue_shift, sat_shift, val_shift)]
    replaced = not all(map(opencv.is_ours, ("cvtColor", "LUT")))
    if replaced or seen.axes != "HWC" or None in numbers or not any(numbers):
        return None
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    hues = np.mod(levels.astype(np.int16) + hue_shift, 180).astype(np.uint8) if hue_shift else levels
    saturations = albucore.add_constant(levels.copy(), sat_shift) if sat_shift else levels.copy()
    saturations[0, 0] = 0  # gray stays gray
    values = albucore.add_constant(levels.copy(), val_shift) if val_shift else levels
    table = np.stack([hues.ravel(), saturations.ravel(), values.ravel()], 1)
    return _in_hsv(seen, table)


def _in_hsv(seen: Recipe, table: Any) -> Recipe | None:
    """The recipe with a table [256, 3] for hues, saturations and values."""
    hsv = opencv_steps.cvt_color(seen, cv2.COLOR_RGB2HSV)
    shifted = hsv and opencv_steps.looked_up(hsv, table)
    return shifted and opencv_steps.cvt_color(shifted, cv2.COLOR_HSV2RGB)


def _hue(seen: Recipe, factor: Any) -> Recipe | None:
    levels, known = np.arange(256, dtype=np.int16), opencv_steps.number(factor)
    if not known or seen.axes != "HWC" or not opencv.is_ours("cvtColor"):
        return None  # the image itself, if there is nothing to shift
    hues = np.mod(levels + 180 * factor, 180)
    return _in_hsv(seen, np.stack([hues, levels, levels], 1).astype(np.uint8))


def _blend_with_gray(op: ImageOp, seen: Recipe, factor: Any, *further: float) -> Recipe | None:
    known = opencv_steps.number(factor)
    if known is None or known in (0, 1) or abs(known) > MAX_FACTOR or not opencv.is_ours("cvtColor"):
        return None
    chain = opencv_steps.in_order(seen, blue_first=False)
    store = RGB_ROWS if seen.axes == "HWC" else seen.store
    return chain and opencv_steps.with_chain(seen._replace(store=store), chain.after(op, (known, *further)))


def _contrast(seen: Recipe, factor: Any) -> Recipe | None:
    return _blend_with_gray(OpencvContrast(), seen, factor, 1.0, 0.0)


def _brightness_contrast(
    seen: Recipe, brightness_factor: Any, contrast_factor: Any, brightness_first: Any
) -> Recipe | None:
    usual = type(brightness_factor) is type(contrast_factor) is float and type(brightness_first) is bool
    if not usual or not 0 < brightness_factor <= MAX_FACTOR:
        return None
    further = brightness_factor, float(brightness_first)
    return _blend_with_gray(OpencvContrast(), seen, contrast_factor, *further)


def _saturation(seen: Recipe, factor: Any, gamma: Any = 0) -> Recipe | None:
    known = seen.axes == "HWC" and opencv_steps.number(gamma) == 0
    numkong = opencv_steps.variant.of["adjust_saturation_torchvision"] == 1
    if not known or (numkong and math.prod(seen.chain.shown) % 8):
        return None  # NumKong computes the last values, if fewer than 8 are left, in another way
    return _blend_with_gray(OpencvSaturation(numkong), seen, factor)


def _cutout(seen: Recipe, holes: Any, fill: Any, random_generator: Any) -> Recipe | None:  # noqa: ARG001
    channels = seen.store.channels
    levels = fill if isinstance(fill, (list, tuple)) else [fill] * channels
    color = opencv_steps.color_of(levels, seen) if len(levels) == channels else None
    if color is None or type(holes) is not np.ndarray or holes.shape[1:] != (4,) or holes.dtype.kind != "i":
        return None
    width, height = seen.chain.shown
    inside = (holes >= 0) & (holes <= (width, height, width, height))
    if not np.all(inside) or np.any(holes[:, :2] > holes[:, 2:]):
        return None  # of negative numbers NumPy counts from the other side
    chain: Chain | None = seen.chain
    boxes = holes.astype(float).ravel().tolist()
    for begin in range(0, len(boxes), abi.DRAWS):
        chain = chain and chain.after(FillBoxes(color), tuple(boxes[begin : begin + abi.DRAWS]))
    return opencv_steps.with_chain(seen, chain)


def _perspective(  # noqa: PLR0913  (those of the library)
    seen: Recipe,
    matrix: Any,
    max_width: Any,
    max_height: Any,
    border_val: Any,
    border_mode: Any,
    keep_size: Any,
    interpolation: Any,
) -> Recipe | None:
    # Of a number other than 0 the libraries make different colors, and of a single channel they call OpenCV.
    known = seen.axes == "HWC" and opencv_steps.number(border_val) in (None, 0)
    if not known or not opencv.is_ours("warpPerspective"):
        return None
    size = max_width, max_height
    if keep_size:
        size = seen.chain.shown
        matrix = np.dot(np.diag([size[0] / max_width, size[1] / max_height, 1]), matrix)
    return opencv_steps.warp_perspective(seen, matrix, size, None, interpolation, border_mode, border_val)


def _convolve(seen: Recipe, kernel: Any) -> Recipe | None:
    return opencv_steps.sep_filter(seen, -1, kernel, kernel) if opencv.is_ours("sepFilter2D") else None


# By the thread that made it, the last kernel of Pillow's blur and its standard deviation.
_kernel = threading.local()


def _noting(original: Function) -> Function:
    """`create_pillow_gaussian_kernel`, of whose argument the blur knows nothing."""

    @functools.wraps(original)
    def create(sigma: float) -> Any:
        kernel = original(sigma)
        _kernel.made, _kernel.sigma = kernel, sigma
        return kernel

    return create


def _pillow_blur(seen: Recipe, kernel: Any) -> Recipe | None:
    return _blurred(seen, _kernel.sigma) if kernel is getattr(_kernel, "made", None) else None


def _blurred(seen: Recipe, sigma: Any) -> Recipe | None:
    known = opencv_steps.number(sigma)
    if known is None or not 0 < known <= MAX_RADIUS:
        return None
    return opencv_steps.after(seen, PillowBlur(), (known, known))


def _for_transforms(wrap: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """The same only for calls by the library, whose `Compose` copies views: others may see that these are."""

    def wrapped(original: Function) -> Function:
        recorded = wrap(original)

        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            caller = str(sys._getframe(1).f_globals.get("__name__"))
            return (recorded if caller.startswith("albumentations.") else original)(*args, **kwargs)

        return function

    return wrapped


# Functions of a uint8 image that treat every level by itself.
BY_LEVELS: tuple[tuple[Any, str], ...] = (
    *((albucore, name) for name in ("normalize", "multiply_add", "multiply", "add", "sz_lut")),
    *((pixel, name) for name in ("gamma_transform", "solarize", "posterize", "invert")),
)
# Others; either library has some of them alone.
STEPS: tuple[tuple[Any, str, Callable[..., Recipe | None]], ...] = (
    (geometric, "rot90", _rot90),
    (geometric, "transpose", _transpose),
    (pixel, "shift_hsv", _shift_hsv),
    (pixel, "adjust_hue_torchvision", _hue),
    (pixel, "adjust_contrast_torchvision", _contrast),
    (pixel, "apply_brightness_contrast_torchvision", _brightness_contrast),
    (pixel, "adjust_saturation_torchvision", _saturation),
    (dropout, "cutout", _cutout),
    (geometric, "perspective", _perspective),
    (pixel, "separable_convolve", _convolve),
    (blur, "pillow_gaussian_blur", _pillow_blur),
)
VIEWS = ("rot90", "transpose")
# Arguments of calls by which they are compared, after the images.
_CALLS: dict[str, list[Any]] = {
    "shift_hsv": [(20, -30, 10), (-7.5, 41.5, -20.5), (0, 0, 30), (3, 0, 0)],
    "adjust_hue_torchvision": [(0.1,), (-0.37,)],
    **{f"adjust_{each}_torchvision": [(0.7,), (1.3,)] for each in ("contrast", "saturation")},
    "apply_brightness_contrast_torchvision": [
        (brightness, 1.2, first) for brightness in (0.8, 1.0, 1.7) for first in (False, True)
    ],
    "cutout": [(np.array([[3, 5, 40, 9], [0, 30, 60, 38]]), fill, None) for fill in (7, (1, 2, 3))],
    "perspective": [
        (np.array([[1.1, 0.1, -3], [-0.05, 0.9, 2], [1e-3, -7e-4, 1]]), 83, 40, (1, 2, 3), 0, keeps, 1)
        for keeps in (False, True)
    ],
    "separable_convolve": [(np.array([0.1, 0.23, 0.34, 0.23, 0.1], np.float32),)],
    "pillow_gaussian_blur": [(0.5,), (1.7,), (3.0,)],
}
# The functions of OpenCV whose variants they have.
_NEEDED = {
    **dict.fromkeys(("shift_hsv", "adjust_hue_torchvision"), "cvtColor"),
    "perspective": "warpPerspective",
    "separable_convolve": "sepFilter2D",
}


def _blur(image: Any, sigma: float) -> Any:
    return blur.pillow_gaussian_blur(image, inspect.unwrap(blur.create_pillow_gaussian_kernel)(sigma))


def _known() -> dict[Function, Callable[[Function], Function]]:
    """The functions of the installed library, as far as they are its own, with what makes them record."""
    wraps: list[tuple[Any, str, Any]] = [(*each, opencv.by_levels) for each in BY_LEVELS]
    wraps.append((blur, "create_pillow_gaussian_kernel", _noting))
    for owner, name, record in STEPS:
        wrap = functools.partial(opencv.recording, name=name, record=record)
        wraps.append((owner, name, _for_transforms(wrap) if name in VIEWS else wrap))
    found: list[tuple[Any, Any]] = [(getattr(owner, name, None), wrap) for owner, name, wrap in wraps]
    # What the program put in their places is left there.
    return {function: wrap for function, wrap in found if is_librarys(function, LIBRARIES)}


KNOWN = _known()
# Module, name and function, wherever the library has a name for one. They are looked for here, before
# workers are forked: each would get a copy of the memory that it looks through.
PLACES = [
    (module, name, value)
    for module_name, module in list(sys.modules.items())
    if module_name.split(".")[0] in LIBRARIES
    for name, value in list(vars(module).items())
    if isinstance(value, FunctionType) and value in KNOWN
]


def start() -> None:
    """From now on these functions record in this process, until `opencv.stop`."""
    for owner, name, record in STEPS:
        if name in _CALLS and hasattr(owner, name):
            function: Function = getattr(owner, name)
            compared = (_blur, _blurred) if record is _pillow_blur else (function, record)
            opencv.compare(name, compared[0], compared[1], _CALLS[name], _NEEDED.get(name))
    recording = {original: wrap(original) for original, wrap in KNOWN.items()}
    for module, name, original in PLACES:
        if vars(module).get(name) is original:
            opencv.replace(module, name, recording[original])
    opencv.replace(ColorJitter, "transforms", _Transforms(recording))


class _Transforms:
    """`transforms` of albumentations 2.0's `ColorJitter`: functions that the object took when it was made, as
    those that record."""

    def __init__(self, recording: dict[Function, Function]) -> None:
        self._recording = {id(original): recorded for original, recorded in recording.items()}

    def __get__(self, jitter: Any, kind: type) -> Any:
        if jitter is None or "transforms" not in vars(jitter):
            raise AttributeError(f"{kind.__name__} has no attribute 'transforms'")
        return [self._recording.get(id(each), each) for each in vars(jitter)["transforms"]]

    def __set__(self, jitter: Any, functions: Any) -> None:
        vars(jitter)["transforms"] = functions
