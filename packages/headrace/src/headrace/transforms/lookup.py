"""Finds what is known of a transform by its class. `headrace.transforms` registers all ops here."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType
from typing import Any

from headrace.transforms.containers import is_container
from headrace.transforms.op import Op
from headrace.transforms.own_code import plain_base

_by_class: dict[type, type[Op]] = {}
_by_name: dict[str, type[Op]] = {}


def register(ops: Iterable[type[Op]], functions: type[Op]) -> None:
    """Adds `ops`, which say themselves what they match, and the one that functions are read as."""
    for op in ops:
        _by_class.update(dict.fromkeys(op.matches, op))
        _by_name.update(dict.fromkeys(op.matches_imported, op))
    _by_class.update({FunctionType: functions, BuiltinFunctionType: functions})


def find_op(cls: type) -> type[Op] | None:
    """The op that objects of this class are read as, or None. A subclass that changes nothing is its base."""
    return _find_exactly(cls) or _find_exactly(plain_base(cls, _is_known) or object)


def _find_exactly(cls: type) -> type[Op] | None:
    found = _by_class.get(cls) or _by_name.get(f"{cls.__module__}.{cls.__qualname__}")
    if found is None or cls in _by_class:
        return found
    # A class may say of itself that it is of any module.
    return found if getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls else None


def _is_known(cls: type) -> bool:
    return _find_exactly(cls) is not None


def known_base(transform: Any) -> type | None:
    """The known class that `transform`'s class derives from, if it does without being one."""
    bases = type(transform).__mro__[1:]
    return next((base for base in bases if _is_known(base) or is_container(base)), None)
