"""The one place at which loaders of this process are intercepted: as iteration over them begins."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from headrace_doctor.measure.subject import headrace_loader

Loader = DataLoader[Any]
Begin = Callable[[Loader], Iterator[Any]]
TORCHS: Begin = DataLoader.__iter__


@contextmanager
def intercepted(begin: Callable[[Loader, Begin], Iterator[Any]], *loaders: Loader) -> Iterator[None]:
    """Calls `begin(loader, original)` for iter(loader) meanwhile, in this process and not in its children.

    Args:
        begin: called with the loader and its class's ``__iter__``; returns what the script iterates over.
        loaders: that were made before, of classes with an ``__iter__`` of their own.
    """
    patched: dict[type, Begin] = {}
    made = DataLoader.__init__

    @functools.wraps(made)
    def init(loader: Loader, *args: Any, **kwargs: Any) -> None:
        _patch(type(loader), begin, patched)
        made(loader, *args, **kwargs)

    for known in (DataLoader, headrace_loader(), *map(type, loaders)):
        if known is not None:
            _patch(known, begin, patched)
    DataLoader.__init__ = init  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        DataLoader.__init__ = made  # type: ignore[method-assign]
        for cls, original in patched.items():
            cls.__iter__ = original  # type: ignore[attr-defined]


def _patch(cls: type, begin: Callable[[Loader, Begin], Iterator[Any]], patched: dict[type, Begin]) -> None:
    """Replaces each ``__iter__`` of a class and of its base classes that are loaders, once."""
    for base in cls.__mro__:
        original: Begin | None = base.__dict__.get("__iter__")
        if original is None or base in patched or not issubclass(base, DataLoader):
            continue
        patched[base] = original

        setattr(base, "__iter__", _start(begin, original))  # noqa: B010


def _start(begin: Callable[[Loader, Begin], Iterator[Any]], original: Begin) -> Begin:
    here = os.getpid()

    @functools.wraps(original)
    def start(loader: Loader) -> Iterator[Any]:
        return begin(loader, original) if os.getpid() == here else original(loader)

    return start
