"""A stage of loading whose results are given again and again: what is left is what the rest costs."""

from __future__ import annotations

import builtins
import io
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from headrace.measure.replay import clone

REMEMBERED = 8  # results: several, so that what comes after them isn't always of one size


class Remembered:
    """Calls something a few times, and gives what came of it from then on.

    Args:
        call: of the user's.
        copy: of a result, where it may be changed by what comes after.
    """

    def __init__(self, call: Callable[..., Any], copy: Callable[[Any], Any] = lambda result: result) -> None:
        self._call = call
        self._copy = copy
        self._results: list[Any] = []
        self._next = itertools.count()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        number = next(self._next)
        if number < REMEMBERED:
            result = self._call(*args, **kwargs)
            self._results.append(self._copy(result))
            return result
        return self._copy(self._results[number % len(self._results)])


def without(loader: DataLoader[Any], stage: str) -> bool:
    """Makes a stage of this loader cost nothing, in this process and in workers that it forks from now on.

    Args:
        loader: torch's, before it is iterated over; it is changed.
        stage: as `headrace.measure.stages` names it: "transform:NAME", "collate", "decode", "read".

    Returns:
        Whether it could be done.
    """
    kind, _, name = stage.partition(":")
    if kind == "collate":
        loader.collate_fn = Remembered(loader.collate_fn, clone)
    elif kind == "decode":
        return _without_decoding()
    elif kind == "read":
        builtins.open = Remembering(builtins.open)
    elif kind == "transform":
        found = [_without_transform(dataset, name) for dataset in _datasets(loader.dataset)]
        return any(found)
    else:
        return False
    return True


class Remembering:
    """`open`, but that the contents of files opened to be read as bytes are those of the first few."""

    def __init__(self, really: Callable[..., Any]) -> None:
        self._really = really
        self._contents: dict[str, Remembered] = {}

    def __call__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        named = isinstance(file, (str, os.PathLike))
        suffix = os.path.splitext(file)[1].lower() if named else ""
        if mode != "rb" or not suffix:
            return self._really(file, mode, *args, **kwargs)
        # Files of one kind stand for each other.
        contents = self._contents.setdefault(suffix, Remembered(self._read))
        return io.BytesIO(contents(file))

    def _read(self, file: Any) -> bytes:
        with self._really(file, "rb") as opened:
            content: bytes = opened.read()
        return content


def _without_decoding() -> bool:
    from PIL import Image

    Image.open = Remembered(Image.open, _decoded)
    return True


def _decoded(image: Any) -> Any:
    """Another picture of the same pixels, which are decoded once."""
    image.load()
    twin = image._new(image.im)
    twin.format = image.format
    return twin


def _datasets(dataset: Any) -> Iterator[Any]:
    """The dataset and those that it is made of."""
    yield dataset
    for name in ("dataset", "datasets"):
        inner = getattr(dataset, name, None)
        for one in inner if isinstance(inner, (list, tuple)) else [] if inner is None else [inner]:
            yield from _datasets(one)


def _without_transform(holder: Any, name: str) -> bool:
    found = False
    for attribute, value in list(getattr(holder, "__dict__", {}).items()):
        if is_named(value, name):
            setattr(holder, attribute, Remembered(value))
            found = True
        steps = getattr(value, "transforms", None)
        if isinstance(steps, list):
            for position, step in enumerate(steps):
                if is_named(step, name):
                    steps[position] = Remembered(step)
                    found = True
        # torchvision's datasets keep their transform in here, too, and call this one.
        if attribute in ("transforms", "transform", "target_transform") and steps is None:
            found |= _without_transform(value, name)
    return found


def is_named(step: Any, name: str) -> bool:
    """Whether the samplers call this step so: by its class, a function by "name (file.py:12)"."""
    if not callable(step):
        return False
    code = getattr(step, "__code__", None)
    own = type(step).__name__ if code is None else code.co_name
    return own == name.partition(" (")[0]
