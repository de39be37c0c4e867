"""Whether an object still does what its class does: hooks, patches and compilation change that."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from torch import nn

# Whose classes may be known; see `Op.matches_imported` for those that Headrace doesn't import.
LIBRARIES = ("torch", "torchvision", "timm")


def find_change(transform: Any) -> str | None:
    """Why an instance may not do what its class does; None when nothing was changed on it."""
    if type(transform) is FunctionType:
        return None  # it is its code, whatever hangs on it
    attributes = vars(transform) if hasattr(transform, "__dict__") else {}
    if attributes.get("_forward_hooks") or attributes.get("_forward_pre_hooks"):
        return "has forward hooks"
    if attributes.get("_compiled_call_impl") is not None:
        return "is compiled"
    replaced = [name for name in attributes if callable(getattr(type(transform), name, None))]
    if replaced:
        return f"{', '.join(sorted(replaced))} replaced on this object"
    foreign = [
        name for name in _working_methods(transform) if not _is_librarys(getattr(type(transform), name))
    ]
    return f"{', '.join(foreign)} replaced on its class" if foreign else None


def _working_methods(transform: Any) -> list[str]:
    """The methods that make a transform what it is, as far as it has them."""
    names = ("forward", "transform", "make_params", "get_params")
    wanted = names if isinstance(transform, nn.Module) else ("__call__",)
    return [name for name in wanted if hasattr(type(transform), name)]


def _is_librarys(method: Any) -> bool:
    return str(getattr(method, "__module__", "")).partition(".")[0] in LIBRARIES
