"""Whether an object still does what its class does: hooks, patches and compilation change that."""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import nn

from headrace._torch_compat import find_call_change

# Whose classes may be known; see `Op.matches_imported` for those that Headrace doesn't import.
LIBRARIES = ("torch", "torchvision", "timm")


def find_change(transform: Any) -> str | None:
    """Why an instance may not do what its class does; None when nothing was changed on it."""
    if isinstance(transform, (FunctionType, BuiltinFunctionType)):
        return None  # it is its code, whatever hangs on it
    attributes = vars(transform) if hasattr(transform, "__dict__") else {}
    called_otherwise = find_call_change(transform) if isinstance(transform, nn.Module) else None
    if called_otherwise is not None:
        return called_otherwise
    replaced = [name for name in attributes if callable(getattr(type(transform), name, None))]
    if replaced:
        return f"{', '.join(sorted(replaced))} replaced on this object"
    foreign = [
        name for name in _working_methods(transform) if not is_librarys(getattr(type(transform), name))
    ]
    return f"{', '.join(foreign)} replaced on its class" if foreign else None


def _working_methods(transform: Any) -> list[str]:
    """The methods that make a transform what it is, as far as it has them."""
    names = ("__call__", "forward", "transform", "make_params", "get_params")
    wanted = names if isinstance(transform, nn.Module) else ("__call__",)
    return [name for name in wanted if hasattr(type(transform), name)]


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
