"""Makes a stage of loading free of cost by repeating a few of its results, to measure the rest."""

from __future__ import annotations

import builtins
import io
import itertools
import os
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from headrace.measure.subject import clone, datasets

REMEMBERED = 8  # results: several, so that what comes after them isn't always of one size


class Remembered:
    """Calls `call` a few times, and returns its results in turn from then on, each through `copied`."""

    def __init__(
        self, call: Callable[..., Any], copied: Callable[[Any], Any] = lambda result: result
    ) -> None:
        self._call, self._copied = call, copied
        self._results: list[Any] = []
        self._next = itertools.count()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        number = next(self._next)
        if number < REMEMBERED:
            result = self._call(*args, **kwargs)
            self._results.append(self._copied(result))
            return result
        return self._copied(self._results[number % len(self._results)])


def without(loader: DataLoader[Any], stage: str) -> bool:
    """Makes a stage of torch's loader free of cost, in this process and in workers that it forks from now on.

    Args:
        loader: not iterated over yet; it is changed.
        stage: "transform:NAME", "collate", "decode" or "read", as of `headrace.measure.stages`.

    Returns:
        Whether it could be done.
    """
    kind, _, name = stage.partition(":")
    if kind == "collate":
        loader.collate_fn = Remembered(loader.collate_fn, clone)
    elif kind == "decode":
        from PIL import Image

        Image.open = Remembered(Image.open, _decoded)
    elif kind == "read":
        builtins.open = Remembering(builtins.open)
    else:
        found = [_without_transform(one, name) for one in datasets(loader.dataset)]
        return kind == "transform" and any(found)
    return True


class Remembering:
    """`open`, except that files opened as bytes have the contents of the first few of their extension."""

    def __init__(self, really: Callable[..., Any]) -> None:
        self._really = really
        self._contents: dict[str, Remembered] = {}

    def __call__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        suffix = os.path.splitext(file)[1].lower() if isinstance(file, (str, os.PathLike)) else ""
        if mode != "rb" or not suffix:
            return self._really(file, mode, *args, **kwargs)
        return io.BytesIO(self._contents.setdefault(suffix, Remembered(self._read))(file))

    def _read(self, file: Any) -> bytes:
        with self._really(file, "rb") as opened:
            content: bytes = opened.read()
        return content


def _decoded(image: Any) -> Any:
    """Another image of the same pixels, which are decoded once."""
    twin = image.copy()
    twin.format = image.format
    return twin


def _without_transform(holder: Any, name: str) -> bool:
    found = False
    for attribute, value in list(getattr(holder, "__dict__", {}).items()):
        if is_named(value, name):
            setattr(holder, attribute, Remembered(value))
            found = True
        steps = getattr(value, "transforms", None)
        if isinstance(steps, list):
            found |= any(is_named(step, name) for step in steps)
            steps[:] = [Remembered(step) if is_named(step, name) else step for step in steps]
        # torchvision's datasets keep their transform in here, too, and call this one.
        if attribute in ("transforms", "transform", "target_transform") and steps is None:
            found |= _without_transform(value, name)
    return found


def is_named(step: Any, name: str) -> bool:
    """Whether stages call this step so: by its class, a function by "name (file.py:12)"."""
    code = getattr(step, "__code__", None)
    return callable(step) and name.partition(" (")[0] == (code.co_name if code else type(step).__name__)
