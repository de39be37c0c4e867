"""Finds the kind of a dataset."""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.data import IterableDataset

from headrace.sources.kinds.kind import Kind, Reading, Refusal, is_class
from headrace.transforms.origin import describe_callable, located

STREAMED = "an IterableDataset itself decides which sample comes next: runs as written"
OTHER_CLASS = (
    "runs as written: native code replaces known classes only. For image files with integer labels,"
    " headrace.ImageDataset is one"
)

_kinds: dict[type, type[Kind]] = {}  # by class
_imported: dict[str, list[tuple[str, type[Kind]]]] = {}  # by the last part of a class's name: all of it
# By class, if neither it nor any of its bases is known: every epoch asks again.
_refused: weakref.WeakKeyDictionary[type, Refusal] = weakref.WeakKeyDictionary()


def register(kinds: tuple[type[Kind], ...]) -> None:
    """Makes `kinds` those that `read_dataset` knows."""
    _kinds.clear()
    _imported.clear()
    _refused.clear()
    for kind in kinds:
        _kinds.update(dict.fromkeys(kind.classes, kind))
        for name in kind.imported:
            _imported.setdefault(name.rpartition(".")[2], []).append((name, kind))


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
        refused = _refused[cls] = Refusal(located(describe_callable(cls), cls), reason)
    return refused


def _kind_of(cls: type) -> type[Kind] | None:
    named = (kind for name, kind in _imported.get(cls.__name__, ()) if is_class(cls, name))
    return _kinds.get(cls) or next(named, None)


def _refuse_subclass(cls: type, known: type) -> Refusal:
    own = [c for c in cls.__mro__ if known in c.__mro__[1:]]
    # Functions and properties: every class has a __module__ and its like, whatever its author wrote.
    overridden = sorted(
        {name for c in own for name, member in vars(c).items() if hasattr(known, name) and _is_code(member)}
    )
    does = f" that overrides {', '.join(overridden)}" if overridden else ""
    what = located(cls.__qualname__, cls)
    return Refusal(what, f"a subclass of {known.__name__}{does} may return anything: runs as written")


def _is_code(member: Any) -> bool:
    return callable(member) or isinstance(member, (property, staticmethod, classmethod))
