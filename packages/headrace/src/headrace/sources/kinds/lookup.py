"""Finds the kind of a dataset."""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.data import IterableDataset

from headrace.sources.kinds.kind import Kind, Reading, Refusal
from headrace.transforms.lookup import is_class
from headrace.transforms.origin import located

STREAMED = "an IterableDataset itself decides which sample comes next: runs as written"
OTHER_CLASS = (
    "runs as written: native code replaces known classes only. For image files with integer labels,"
    " headrace.ImageDataset is one"
)

_kinds: dict[type, type[Kind]] = {}  # by class
_imported: dict[str, type[Kind]] = {}  # by full name of a class
# By class, if neither it nor any of its bases is known: every epoch asks again.
_refused: weakref.WeakKeyDictionary[type, Refusal] = weakref.WeakKeyDictionary()


def register(kinds: tuple[type[Kind], ...]) -> None:
    """Makes `kinds` those that `read_dataset` knows."""
    _kinds.clear()
    _imported.clear()
    _refused.clear()
    for kind in kinds:
        _kinds.update(dict.fromkeys(kind.classes, kind))
        _imported.update(dict.fromkeys(kind.imported, kind))


def read_dataset(dataset: Any) -> Reading:
    """Returns what native code can do for `dataset`. Reads its attributes and none of its samples."""
    cls = type(dataset)
    refused = _refused.get(cls)
    if refused is None:
        for base in cls.__mro__:
            kind = _kind_of(base)
            if kind is not None:
                return kind.read(dataset) if base is cls else _refuse_subclass(cls, base)
        reason = STREAMED if issubclass(cls, IterableDataset) else OTHER_CLASS
        refused = _refused[cls] = Refusal(located(cls), reason)
    return refused


def is_unknown(cls: type) -> bool:
    """Returns whether a dataset of this class was refused because nothing is known of the class."""
    return cls in _refused


def _kind_of(cls: type) -> type[Kind] | None:
    name = f"{cls.__module__}.{cls.__qualname__}"
    return _kinds.get(cls) or (_imported.get(name) if is_class(cls, name) else None)


def _refuse_subclass(cls: type, known: type) -> Refusal:
    own = [c for c in cls.__mro__ if known in c.__mro__[1:]]
    # Functions and properties: every class has a __module__ and its like, whatever its author wrote.
    members = ((name, member) for each in own for name, member in vars(each).items() if hasattr(known, name))
    code = (property, staticmethod, classmethod)
    overridden = sorted({name for name, member in members if callable(member) or isinstance(member, code)})
    does = f" that overrides {', '.join(overridden)}" if overridden else ""
    reason = f"a subclass of {known.__name__}{does} may return anything: runs as written"
    return Refusal(located(cls), reason)
