"""Detects objects that don't do what their class does: hooks, patches and compilation change that."""

from __future__ import annotations

from functools import lru_cache
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import nn

from headrace._torch_compat import find_call_change

# Whose classes may be known; see `Op.matches_imported` for those that Headrace doesn't import.
LIBRARIES = ("torch", "torchvision", "timm", "transformers")
# Those that make a module what it is, as far as it has them; of another object, the first.
METHODS = ("__call__", "forward", "transform", "make_params", "get_params")


def find_change(transform: Any) -> str | None:
    """Why an object may not do what its class does, or None if nothing was changed on it."""
    if isinstance(transform, (FunctionType, BuiltinFunctionType)):
        return None  # it is its code, whatever hangs on it
    kind: Any = type(transform)
    is_module = isinstance(transform, nn.Module)
    if is_module and (change := find_call_change(transform)) is not None:
        return change
    attributes = tuple(vars(transform)) if hasattr(transform, "__dict__") else ()
    methods = tuple([getattr(kind, name, None) for name in (METHODS if is_module else METHODS[:1])])
    try:
        return _find_replaced(kind, attributes, methods)
    except TypeError:  # something in place of a method that can't be a key
        return _find_replaced.__wrapped__(kind, attributes, methods)


@lru_cache(maxsize=1024)
def _find_replaced(kind: type, attributes: tuple[str, ...], methods: tuple[Any, ...]) -> str | None:
    """The same for all objects of a class with these attributes and methods: it is asked for every transform
    of every sample."""
    replaced = [name for name in attributes if callable(getattr(kind, name, None))]
    if replaced:
        return f"{', '.join(sorted(replaced))} replaced on this object"
    pairs = zip(METHODS, methods)  # noqa: B905  (of other objects than modules, the first alone)
    foreign = [name for name, method in pairs if method is not None and not is_librarys(method)]
    return f"{', '.join(foreign)} replaced on its class" if foreign else None


def is_librarys(method: Any, libraries: tuple[str, ...] = LIBRARIES) -> bool:
    """Returns whether a function, and what it wraps, is in a library's code: `functools.wraps` copies the
    name of the module alone."""
    place = getattr(method, "__globals__", {}).get("__name__")
    # In worker processes Headrace stands around some of torchvision's methods (`deferred.recording`).
    here = str(place).partition(".")[0] in (*libraries, "headrace")
    return here and (not hasattr(method, "__wrapped__") or is_librarys(method.__wrapped__, libraries))
