"""Which member of an object can't be pickled, by its path."""

from __future__ import annotations

import functools
import os
import pickle
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

MOST_LEVELS = 40


def explain_unpicklable(parts: Mapping[str, Any], error: Exception, attempt: Callable[[Any], None]) -> str:
    """The message for the user.

    Args:
        parts: what was to be pickled, by name.
        error: what was raised.
        attempt: pickles an object and throws the pickle away.
    """
    for name, part in parts.items():
        own = _error_of(part, attempt)
        if own is not None:
            path, member, error = _innermost(name, part, own, attempt)
            return (
                f"{path}: {_described(member)} can't be pickled: {error}; {_remedy(member)}, or"
                " multiprocessing_context='fork', which pickles nothing."
            )
    return f"{', '.join(parts)} can't be pickled together, though each can by itself: {error}"


def _innermost(
    path: str, value: Any, error: Exception, attempt: Callable[[Any], None]
) -> tuple[str, Any, Exception]:
    """The deepest member that can't be pickled by itself."""
    seen = {id(value)}
    while len(seen) < MOST_LEVELS:
        for name, member in _members(value):
            own = None if id(member) in seen else _error_of(member, attempt)
            if own is not None:
                path, value, error = path + name, member, own
                seen.add(id(value))
                break
        else:
            break
    return path, value, error


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        yield from _reduced(value)


def _reduced(value: Any) -> Iterator[tuple[str, Any]]:
    """What pickle would look at, by the names that the user gave it where it has some."""
    try:
        reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:  # can't be taken apart: `value` itself is the one
        return
    if not isinstance(reduced, tuple):
        return
    _, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    for part in state if isinstance(state, tuple) else (state,):
        if isinstance(part, dict):
            yield from ((f".{name}", member) for name, member in part.items())
        elif part is not None:
            yield ".__getstate__()", part
    yield from ((f"[{i}]", item) for i, item in enumerate(items or ()))
    yield from ((f"[{key!r}]", item) for key, item in pairs or ())
    names = {id(member): name for name, member in getattr(value, "__dict__", {}).items()}
    for i, argument in enumerate(arguments or ()):
        if argument is not type(value):
            yield f".{names[id(argument)]}" if id(argument) in names else f".__reduce__()[1][{i}]", argument


def _error_of(value: Any, attempt: Callable[[Any], None]) -> Exception | None:
    try:
        attempt(value)
    except Exception as error:
        return error
    return None


def _described(value: Any) -> str:
    code = getattr(value, "__code__", None)
    if code is not None:
        return f"{code.co_name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"
    return f"a {type(value).__qualname__}"


def _remedy(value: Any) -> str:
    if isinstance(value, types.FunctionType):
        return "use a module-level function"
    if "<locals>" in type(value).__qualname__:
        return "define its class in a module"
    return "make it where it is first used, in the worker, and leave it out in __getstate__"
