"""albumentations' functions between those of OpenCV, on deferred arrays.

Its `Compose` and its transforms run as they are written, and draw their own numbers; most of them call cv2,
whose functions record (`headrace.deferred.opencv`). Recorded here is what they do by NumPy and other
libraries: functions of single levels, which are run on all 256 of them, quarter turns, shifts of hues,
blends with gray, and boxes that are filled.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import albucore
import cv2
import numpy as np
from albumentations.augmentations.dropout import functional as dropout
from albumentations.augmentations.geometric import functional as geometric
from albumentations.augmentations.pixel import functional as pixel
from albumentations.augmentations.pixel.transforms import ColorJitter

from headrace._native import abi
from headrace.deferred import opencv, opencv_steps
from headrace.deferred.arrays import Recipe
from headrace.deferred.chain import Chain
from headrace.deferred.steps import MAX_FACTOR, RGB_ROWS, FillBoxes, OpencvContrast, OpencvSaturation
from headrace.transforms.changed import is_librarys
from headrace.transforms.op import ImageOp

Function = Callable[..., Any]

LIBRARIES = ("albumentations", "albucore")
# Functions of a uint8 image that treat every level by itself.
BY_LEVELS: tuple[tuple[Any, str], ...] = (
    *((albucore, name) for name in ("normalize", "multiply_add", "multiply", "add", "sz_lut")),
    *((pixel, name) for name in ("gamma_transform", "solarize", "posterize", "invert")),
)


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


def _blend_with_gray(op: ImageOp, seen: Recipe, factor: Any) -> Recipe | None:
    known = opencv_steps.number(factor)
    if known is None or known in (0, 1) or abs(known) > MAX_FACTOR or not opencv.is_ours("cvtColor"):
        return None
    chain = opencv_steps.in_order(seen, blue_first=False)
    store = RGB_ROWS if seen.axes == "HWC" else seen.store
    return chain and opencv_steps.with_chain(seen._replace(store=store), chain.after(op, (known,)))


def _contrast(seen: Recipe, factor: Any) -> Recipe | None:
    return _blend_with_gray(OpencvContrast(), seen, factor)


def _saturation(seen: Recipe, factor: Any, gamma: Any = 0) -> Recipe | None:
    known = seen.axes == "HWC" and opencv_steps.number(gamma) == 0
    return _blend_with_gray(OpencvSaturation(), seen, factor) if known else None


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


STEPS: tuple[tuple[Any, str, Callable[..., Recipe | None]], ...] = (
    (geometric, "rot90", _rot90),
    (geometric, "transpose", _transpose),
    (pixel, "shift_hsv", _shift_hsv),
    (pixel, "adjust_hue_torchvision", _hue),
    (pixel, "adjust_contrast_torchvision", _contrast),
    (pixel, "adjust_saturation_torchvision", _saturation),
    (dropout, "cutout", _cutout),
)
# By identity: what the program put in the place of one may have no hash.
FUNCTIONS = {id(getattr(owner, name)) for owner, name in (*BY_LEVELS, *(step[:2] for step in STEPS))}
# Module, name and function, wherever these libraries have a name for one. They are looked for here, before
# workers are forked: each would get a copy of the memory that it looks through.
PLACES = [
    (module, name, value)
    for module_name, module in list(sys.modules.items())
    if module_name.split(".")[0] in LIBRARIES
    for name, value in list(vars(module).items())
    if isinstance(value, FunctionType) and id(value) in FUNCTIONS
]
VIEWS = ("rot90", "transpose")
# The functions of OpenCV that these stand for.
_COMPARED = dict.fromkeys(("shift_hsv", "adjust_hue_torchvision"), "cvtColor")
# Calls by which others are compared.
_CALLS: dict[str, list[Any]] = {
    **{f"adjust_{each}_torchvision": [(0.7,), (1.3,)] for each in ("contrast", "saturation")},
    "cutout": [(np.array([[3, 5, 40, 9], [0, 30, 60, 38]]), fill, None) for fill in (7, (1, 2, 3))],
}


def start() -> None:
    """From now on these functions record in this process, until `opencv.stop`."""
    wraps: list[tuple[Function, Callable[[Function], Function]]]
    wraps = [(getattr(owner, name), opencv.by_levels) for owner, name in BY_LEVELS]
    for owner, name, record in STEPS:
        function, stands_for = getattr(owner, name), _COMPARED.get(name, name)
        wrap: Any = functools.partial(opencv.recording, name=stands_for, record=record)
        wraps.append((function, _for_transforms(wrap) if name in VIEWS else wrap))
        if name in _CALLS:
            opencv.compare(name, function, record, _CALLS[name])
    # What the program put in their places is left there.
    recording = {original: wrap(original) for original, wrap in wraps if is_librarys(original, LIBRARIES)}
    for module, name, original in PLACES:
        if original in recording and vars(module).get(name) is original:
            opencv.replace(module, name, recording[original])
    opencv.replace(ColorJitter, "transforms", _Transforms(recording))


class _Transforms:
    """`ColorJitter.transforms`: functions that the object took when it was made, as those that record."""

    def __init__(self, recording: dict[Function, Function]) -> None:
        self._recording = {id(original): recorded for original, recorded in recording.items()}

    def __get__(self, jitter: Any, kind: type) -> Any:
        if jitter is None:
            raise AttributeError(f"{kind.__name__} has no attribute 'transforms'")
        return [self._recording.get(id(each), each) for each in vars(jitter)["transforms"]]

    def __set__(self, jitter: Any, functions: Any) -> None:
        vars(jitter)["transforms"] = functions


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
