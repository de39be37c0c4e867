"""Intercepts loaders of this process as iteration over them begins."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from headrace_doctor.measure.stages import Place, walk
from headrace_doctor.measure.subject import headrace_loader

Loader = DataLoader[Any]
Begin = Callable[[Loader], Iterator[Any]]
TORCHS: Begin = DataLoader.__iter__


@contextmanager
def intercepted(
    begin: Callable[[Loader, Begin], Iterator[Any]],
    made: Callable[[Loader, tuple[Place, ...]], None] = lambda *_: None,
) -> Iterator[None]:
    """Calls `begin(loader, original)` for iter(loader) meanwhile, in this process and not in its children.

    `original` is the ``__iter__`` of the loader's class, or of a base class that it calls. A loader that is
    made meanwhile is given to `made`, with the stack of places that makes it.
    """
    patched: dict[type, Begin] = {}
    initialize, here = DataLoader.__init__, os.getpid()

    def started(original: Begin) -> Begin:
        @functools.wraps(original)
        def start(loader: Loader) -> Iterator[Any]:
            return begin(loader, original) if os.getpid() == here else original(loader)

        return start

    def patch(cls: type) -> None:
        for base in cls.__mro__:
            if "__iter__" in vars(base) and base not in patched and issubclass(base, DataLoader):
                patched[base] = vars(base)["__iter__"]
                setattr(base, "__iter__", started(patched[base]))  # noqa: B010

    @functools.wraps(initialize)
    def init(loader: Loader, *args: Any, **kwargs: Any) -> None:
        patch(type(loader))
        initialize(loader, *args, **kwargs)
        if os.getpid() == here:
            made(loader, walk(sys._getframe(1)))

    headrace_loader()  # imports it
    for cls in _with_subclasses(DataLoader):
        patch(cls)
    DataLoader.__init__ = init  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        DataLoader.__init__ = initialize  # type: ignore[method-assign]
        for base, original in patched.items():
            setattr(base, "__iter__", original)  # noqa: B010


def _with_subclasses(cls: type[Loader]) -> Iterator[type[Loader]]:
    yield cls
    for subclass in cls.__subclasses__():
        yield from _with_subclasses(subclass)
