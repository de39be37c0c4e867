"""Names and places of the user's objects, for explanations: ``blur (aug.py:41)``."""

from __future__ import annotations

import functools
import inspect
import os
from types import CodeType
from typing import Any

# Classes of these packages need no file and line: their names say where they come from.
LIBRARIES = ("torch", "torchvision", "headrace", "builtins")


def describe_object(value: Any) -> str:
    """The class's name of an object, the class's or function's own name of one of those."""
    if isinstance(value, type) or hasattr(value, "__code__"):
        return str(value.__qualname__)
    return type(value).__qualname__


def describe_callable(value: Any) -> str:
    """The name of a function, `partial(name)`, or of a callable object's class."""
    if isinstance(value, functools.partial):
        return f"partial({describe_callable(value.func)})"
    if inspect.isroutine(value) or isinstance(value, type):
        return str(getattr(value, "__qualname__", value))
    return type(value).__qualname__


def location(value: Any) -> str | None:
    """``file:line`` of where `value` (a function, class or object) is defined; None when Python doesn't know.

    The file is relative to the working directory when it lies below it.
    """
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(value) if callable(value) else value
    value = getattr(value, "__func__", value)
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        return _place(code.co_filename, code.co_firstlineno)
    cls = value if isinstance(value, type) else type(value)
    if cls.__module__.partition(".")[0] in LIBRARIES:
        return None
    return _class_place(cls)


def located(text: str, value: Any) -> str:
    """`text`, with the place of `value` in brackets where that is known."""
    place = location(value)
    return text if place is None else f"{text} ({place})"


def _class_place(cls: type) -> str | None:
    try:
        file = inspect.getsourcefile(cls)
        line = inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        # No source for the class (a shell, a generated class): its first method's code may still know.
        codes = (getattr(member, "__code__", None) for member in vars(cls).values())
        known = sorted((c.co_firstlineno, c.co_filename) for c in codes if isinstance(c, CodeType))
        return _place(known[0][1], known[0][0]) if known else None
    return None if file is None else _place(file, line)


def _place(file: str, line: int) -> str:
    here = os.getcwd() + os.sep
    return f"{file.removeprefix(here)}:{line}"
