"""The names that `explain()` calls the user's objects by, such as ``blur (aug.py:41)``."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import re
import weakref
from types import CodeType
from typing import Any

from headrace.transforms.patches import Function

# Classes of these packages need no file and line: their names say where they come from.
LIBRARIES = ("torch", "torchvision", "timm", "headrace", "builtins")


def describe_callable(value: Any) -> str:
    """The name of a function, `partial(name)`, or of a callable object's class."""
    if isinstance(value, functools.partial):
        return f"partial({describe_callable(value.func)})"
    if inspect.isroutine(value) or isinstance(value, type):
        return str(getattr(value, "__qualname__", value))
    return type(value).__qualname__


def location(value: Any) -> str | None:
    """``file:line`` of where `value` (a function, class or object) is defined, or None if that isn't known.

    The file is relative to the working directory when it lies below it.
    """
    while isinstance(value, functools.partial):
        value = value.func
    value = inspect.unwrap(value) if callable(value) else value
    value = getattr(value, "__func__", value)
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        return place(code.co_filename, code.co_firstlineno)
    cls = value if isinstance(value, type) else type(value)
    if cls.__module__.partition(".")[0] in LIBRARIES:
        return None
    if cls not in _class_places:
        _class_places[cls] = _find_class(cls)
    found = _class_places[cls]
    return None if found is None else place(*found)


def patched_text(function: Function, other: Any) -> str:
    """Such as ``PIL.Image.open is my_open (train.py:3)``."""
    code = getattr(other, "__code__", None)
    # Not by __qualname__ and inspect.unwrap: functools.wraps has them name the function that is wrapped.
    if isinstance(code, CodeType):
        name = getattr(code, "co_qualname", code.co_name)
        return f"{function.text} is {name} ({place(code.co_filename, code.co_firstlineno)})"
    return f"{function.text} is {located(other)}"


def located(value: Any) -> str:
    """The name of `value`, with the place of its definition in brackets if that is known."""
    name, place = describe_callable(value), location(value)
    return name if place is None else f"{name} ({place})"


# By class: (file, line), or None. Every epoch is planned, and a file takes milliseconds to search.
_class_places: weakref.WeakKeyDictionary[type, tuple[str, int] | None] = weakref.WeakKeyDictionary()


def _find_class(cls: type) -> tuple[str, int] | None:
    try:
        file = inspect.getsourcefile(cls)
        return None if file is None else (file, _class_line(cls, file))
    except (OSError, TypeError):
        # No source for the class (a shell, a generated class): its first method's code may still know.
        codes = (getattr(member, "__code__", None) for member in vars(cls).values())
        known = sorted((c.co_firstlineno, c.co_filename) for c in codes if isinstance(c, CodeType))
        return (known[0][1], known[0][0]) if known else None


def _class_line(cls: type, file: str) -> int:
    statement = re.compile(rf"\s*class {re.escape(cls.__name__)}\b")
    lines = [number for number, line in enumerate(linecache.getlines(file), 1) if statement.match(line)]
    # inspect parses the whole file, which may take longer than to make the first batch.
    return lines[0] if len(lines) == 1 else inspect.getsourcelines(cls)[1]


def place(file: str, line: int) -> str:
    """``file:line``, relative to the working directory when the file lies below it."""
    here = os.getcwd() + os.sep
    return f"{file.removeprefix(here)}:{line}"
