"""albumentations' functions between those of OpenCV, on deferred arrays.

Its `Compose` and its transforms run as they are written, and draw their own numbers; most of them call cv2,
whose functions record (`headrace.deferred.opencv`). Recorded here is what they do by NumPy and other
libraries: functions of single levels, which are run on all 256 of them, quarter turns, and shifts of hues.
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
from albumentations.augmentations.geometric import functional as geometric
from albumentations.augmentations.pixel import functional as pixel

from headrace.deferred import opencv, opencv_steps
from headrace.deferred.arrays import Recipe
from headrace.transforms.changed import is_librarys

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
    hsv = opencv_steps.cvt_color(seen, cv2.COLOR_RGB2HSV)
    shifted = hsv and opencv_steps.looked_up(hsv, table)
    return shifted and opencv_steps.cvt_color(shifted, cv2.COLOR_HSV2RGB)


STEPS: tuple[tuple[Any, str, Callable[..., Recipe | None]], ...] = (
    (geometric, "rot90", _rot90),
    (geometric, "transpose", _transpose),
    (pixel, "shift_hsv", _shift_hsv),
)
FUNCTIONS = {getattr(owner, name) for owner, name in (*BY_LEVELS, *(step[:2] for step in STEPS))}
# Module, name and function, wherever these libraries have a name for one. They are looked for here, before
# workers are forked: each would get a copy of the memory that it looks through.
PLACES = [
    (module, name, value)
    for module_name, module in list(sys.modules.items())
    if module_name.split(".")[0] in LIBRARIES
    for name, value in list(vars(module).items())
    if isinstance(value, FunctionType) and value in FUNCTIONS
]
_COMPARED = {"shift_hsv": "cvtColor"}  # the functions of OpenCV that these stand for


def start() -> None:
    """From now on these functions record in this process, until `opencv.stop`."""
    wraps: list[tuple[Function, Callable[[Function], Function]]]
    wraps = [(getattr(owner, name), opencv.by_levels) for owner, name in BY_LEVELS]
    for owner, name, record in STEPS:
        stands_for = _COMPARED.get(name, name)
        wrap: Any = functools.partial(opencv.recording, name=stands_for, record=record)
        wraps.append((getattr(owner, name), wrap if name in _COMPARED else _for_transforms(wrap)))
    # What the program put in their places is left there.
    recording = {original: wrap(original) for original, wrap in wraps if is_librarys(original, LIBRARIES)}
    for module, name, original in PLACES:
        if original in recording and vars(module).get(name) is original:
            opencv.replace(module, name, recording[original])


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
