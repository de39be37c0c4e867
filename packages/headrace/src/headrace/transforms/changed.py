"""Whether an object still does what its class does: hooks, patches and compilation change that."""

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
    """Why an instance may not do what its class does; None when nothing was changed on it."""
    if isinstance(transform, (FunctionType, BuiltinFunctionType)):
        return None  # it is its code, whatever hangs on it
    attributes = vars(transform) if hasattr(transform, "__dict__") else {}
    called_otherwise = find_call_change(transform) if isinstance(transform, nn.Module) else None
    if called_otherwise is not None:
        return called_otherwise
    kind: Any = type(transform)
    methods = tuple(getattr(kind, name, None) for name in METHODS)
    try:
        return _find_replaced(kind, tuple(attributes), methods)
    except TypeError:  # something in place of a method that can't be a key
        return _find_replaced.__wrapped__(kind, tuple(attributes), methods)


@lru_cache(maxsize=1024)
def _find_replaced(kind: type, attributes: tuple[str, ...], methods: tuple[Any, ...]) -> str | None:
    """The same as far as objects of a class with these attributes, and these `METHODS`, have it in common.
    Asked for every transform of every sample."""
    replaced = [name for name in attributes if callable(getattr(kind, name, None))]
    if replaced:
        return f"{', '.join(sorted(replaced))} replaced on this object"
    working = METHODS if issubclass(kind, nn.Module) else METHODS[:1]
    foreign = [
        name
        for name, method in zip(METHODS, methods, strict=True)
        if name in working and method is not None and not is_librarys(method)
    ]
    return f"{', '.join(foreign)} replaced on its class" if foreign else None


def is_librarys(method: Any) -> bool:
    """Whether a function is a library's own, by where its code is: `functools.wraps` gives a function the
    module's name of another one."""
    while hasattr(method, "__wrapped__"):
        if not _is_written_there(method):
            return False
        method = method.__wrapped__
    return _is_written_there(method)


def _is_written_there(function: Any) -> bool:
    names = getattr(function, "__globals__", {})
    # In worker processes Headrace stands around some of torchvision's methods (`headrace.lazy.recording`).
    return str(names.get("__name__")).partition(".")[0] in (*LIBRARIES, "headrace")
