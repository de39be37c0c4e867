"""Whether an object has been changed since it was looked at, found at small cost."""

from __future__ import annotations

import functools
import pathlib
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

DEPTH = 8
OBJECTS = 4000
ITEMS = 32
VALUES = (
    *(type(None), bool, int, float, complex, str, bytes, pathlib.PurePath),
    *(torch.dtype, torch.device, np.generic),
)


class Look:
    """What objects were like: their attributes and items, those of these, and so on, 8 levels deep.

    Noticed is an attribute, item, closure variable or default that is another object or another value; a list
    or dict of another length; a change of any of the first and last 16 items of a longer one; a tensor that
    torch changed in place; another array, or one with other values at 32 places spread over it. Not noticed:
    other changes within large lists and arrays, in what an extension type holds, in files, in globals, and in
    code. Tensors in shared memory are skipped, as their changes reach the workers anyway.
    """

    def __init__(self, *objects: Any) -> None:
        self._print = _fingerprint(objects)

    def same(self, *objects: Any) -> bool:
        """Whether the objects still look like that."""
        return _fingerprint(objects) == self._print


class _Same:
    """Equal to another that stands for the same object; an id alone may have passed to a new one."""

    __slots__ = ("_id", "_object")

    def __init__(self, value: Any) -> None:
        self._id = id(value)
        try:
            self._object: Any = weakref.ref(value)
        except TypeError:
            self._object = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or self._id != other._id:
            return False
        return self._object is None or self._object() is other._object()

    __hash__ = None  # type: ignore[assignment]


def _fingerprint(objects: tuple[Any, ...]) -> list[Any]:
    """A flat list: every object's own mark, in the order of a walk."""
    marks: list[Any] = []
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = [(value, 0) for value in objects]
    for value, depth in waiting:
        if isinstance(value, VALUES):
            marks.append((type(value), value if value == value else "nan"))
            continue
        if id(value) in seen:
            marks.append(_Same(value))
            continue
        seen.add(id(value))
        marks += _marks(value)
        if depth < DEPTH and len(waiting) < OBJECTS:
            waiting += [(part, depth + 1) for part in _parts(value)]
    return marks


def _marks(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        on_host = value.device.type == "cpu" and value.layout is torch.strided
        if on_host and value.is_shared():  # type: ignore[no-untyped-call]
            return [_Same(value)]
        return [_Same(value), value._version, tuple(value.shape)]
    if isinstance(value, np.ndarray):
        return [_Same(value), value.shape, _some_values(value)]
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return [_Same(value), len(value)]
    return [_Same(value)]


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, (type, types.ModuleType, torch.Tensor, np.ndarray)):
        return
    if isinstance(value, dict):
        # Not the pairs themselves, which are made anew at every look.
        for pair in value.items() if len(value) <= ITEMS else _dict_ends(value):
            yield from pair
    elif isinstance(value, (list, tuple)):
        yield from _ends(value)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, types.FunctionType):
        yield from (value.__code__, value.__defaults__, value.__kwdefaults__)
        for cell in value.__closure__ or ():
            yield from _content(cell)
    else:
        yield from _attributes(value)


def _attributes(value: Any) -> Iterator[Any]:
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, Mapping):
        yield from attributes.keys()
        yield from attributes.values()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            member = kind.__dict__.get(name)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    yield member.__get__(value)
                except AttributeError:  # not set
                    yield None


def _content(cell: types.CellType) -> Iterator[Any]:
    try:
        yield cell.cell_contents
    except ValueError:  # a name that has no value yet
        yield None


def _ends(items: Any) -> Any:
    return items if len(items) <= ITEMS else (*items[: ITEMS // 2], *items[-ITEMS // 2 :])


def _dict_ends(value: dict[Any, Any]) -> Iterator[Any]:
    # Not all of its items: it may have millions.
    for items in (value.items(), reversed(value.items())):
        for _, item in zip(range(ITEMS // 2), items, strict=False):
            yield item


def _some_values(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype.hasobject or array.size == 0:
        return b""
    places = np.linspace(0, array.size - 1, ITEMS).astype(np.int64)
    return array[np.unravel_index(places, array.shape)].tobytes() if array.ndim else array.tobytes()
