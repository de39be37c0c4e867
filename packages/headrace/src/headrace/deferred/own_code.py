"""Finds the user's code that runs as Python on images and tensors, from the first samples of a worker.

An image is deferred until somebody reads its pixels. If that is a step of the user's own, it runs as Python
on each image; so does any step that a `Compose` calls with a tensor. `explain()` names both.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from types import FrameType, FunctionType, MethodType
from typing import Any

import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace._torch_compat import leaves_of
from headrace.transforms import find_op
from headrace.transforms.changed import METHODS
from headrace.transforms.lookup import COMPOSE
from headrace.transforms.op import LevelOp
from headrace.transforms.origin import LIBRARIES, place

LAMBDAS = (v1.Lambda, v2.Lambda)
# What reads pixels for the code that calls it.
READERS = ("PIL", "numpy", "headrace")
# Functions of Pillow that load an image for something else than its pixels.
NO_READERS = frozenset(("exif_transpose", "getim", "getpalette", "load"))


class Notes:
    """Counts of the images and tensors that Python code was seen to work on.

    Attributes:
        pixels: number of images whose pixels were read, by the place in the code that reads them.
        tensors: number of tensors that were passed to a step, by the step's own code.
    """

    def __init__(self) -> None:
        self.pixels: Counter[str] = Counter()
        self.tensors: Counter[str] = Counter()


_notes: Notes | None = None  # of this process, or None if nobody wants to know


def start() -> Notes:
    """From now on the code of this process is noted."""
    global _notes
    _notes = Notes()
    return _notes


def stop() -> None:
    """From now on nothing is noted."""
    global _notes
    _notes = None


def is_reader(depth: int) -> bool:
    """Returns whether the caller, `depth` functions up, is Pillow: it calls `load` before reading pixels."""
    frame = sys._getframe(depth + 1)
    return _package(frame.f_globals.get("__name__")) == "PIL" and frame.f_code.co_name not in NO_READERS


def note_pixels() -> str | None:
    """To be called where the pixels of a deferred image are read. Returns the noted place, or None."""
    frame = None if _notes is None else inspect.currentframe()
    while frame is not None and _package(frame.f_globals.get("__name__")) in READERS:
        frame = frame.f_back
    if _notes is None or frame is None or _package(frame.f_globals.get("__name__")) in LIBRARIES:
        return None
    reader = f"{_name(frame)} ({place(frame.f_code.co_filename, frame.f_lineno)})"
    _notes.pixels[reader] += 1
    return reader


def forget_pixels(reader: str) -> None:
    """To be called if the code that `note_pixels` noted didn't read the pixels."""
    if _notes is not None:
        _notes.pixels[reader] -= 1


def note_inputs(steps: Any, inputs: Any) -> None:
    """To be called where a `Compose` calls `steps` with what may be tensors that the dataset made."""
    if _notes is None or not isinstance(steps, (list, tuple)):
        return
    leaves = leaves_of(inputs)
    images = any(isinstance(leaf, Image.Image) for leaf in leaves)
    if not images and any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        for step in steps:
            note_tensor(step)


def note_tensor(step: Any) -> None:
    """To be called where a `Compose` calls `step` with a tensor."""
    if _notes is None:
        return
    while isinstance(step, (functools.partial, *LAMBDAS)):
        step = step.func if isinstance(step, functools.partial) else step.lambd
    function = step.__func__ if isinstance(step, MethodType) else step
    written = [function] if isinstance(function, FunctionType) else _methods(type(step))
    for each in written:
        if _package(each.__module__) not in LIBRARIES:
            code = each.__code__
            _notes.tensors[f"{each.__qualname__} ({place(code.co_filename, code.co_firstlineno)})"] += 1
            return
    if written and not isinstance(step, COMPOSE):  # which calls steps of its own
        _note_library(step if isinstance(step, FunctionType) else type(step))


def _note_library(step: Any) -> None:
    """A step of a library takes as long as one of the user's, if it does more than to look up each value."""
    assert _notes is not None
    op = find_op(step) if isinstance(step, type) else None
    if op is None or not issubclass(op, LevelOp):
        _notes.tensors[f"{_package(step.__module__)}'s {step.__qualname__}"] += 1


def _methods(kind: type) -> list[FunctionType]:
    """Gives the methods that say what a transform does."""
    found = [getattr(kind, name, None) for name in METHODS]
    return [method for method in found if isinstance(method, FunctionType)]


def _package(module: str | None) -> str:
    return str(module).partition(".")[0]


def _name(frame: FrameType) -> str:
    """``function`` or ``Class.method``; before Python 3.11 ``method``."""
    # Not by f_locals: CPython keeps what it has put there alive until the function returns.
    return str(getattr(frame.f_code, "co_qualname", frame.f_code.co_name)).rpartition("<locals>.")[2]
