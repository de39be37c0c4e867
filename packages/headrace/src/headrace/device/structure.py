"""Nested batches: their tensors found, and replaced by others.

Looked into are dicts and other mappings, lists, tuples, named tuples and dataclasses, however deeply nested.
Leaves are tensors of any class, and objects that move themselves: those with a ``to(device, …)`` of their
own, such as `PackedSequence` or a tokenizer's `BatchEncoding`. Whatever else a batch holds is handed through.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections import UserList
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from typing import Any, Literal

import torch

Move = Literal["none", "blocking", "non_blocking"]


def map_leaves(value: Any, function: Callable[[Any], Any]) -> Any:
    """`value` with each leaf replaced by ``function(leaf)``. Types are kept, but a container that can't be
    made again becomes a plain dict or tuple; one none of whose leaves changed is returned itself."""
    if is_leaf(value):
        return function(value)
    if isinstance(value, Mapping):
        return _map_mapping(value, function)
    if isinstance(value, (list, UserList, tuple)):
        return _map_sequence(value, function)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _map_dataclass(value, function)
    return value


def leaves(value: Any) -> Iterator[Any]:
    """The leaves of `value`, in order."""
    if is_leaf(value):
        yield value
    else:
        yield from (leaf for child in children(value) for leaf in leaves(child))


def children(value: Any) -> list[Any]:
    """Lists the values directly inside a container; none for what isn't one."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, UserList, tuple)):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, name) for name in _fields(value)]
    return []


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of `value`, in order, those inside objects that move themselves and are containers too."""
    if isinstance(value, torch.Tensor):
        yield value
    else:
        yield from (tensor for child in children(value) for tensor in tensors(child))


def total_nbytes(value: Any) -> int:
    """Bytes of all strided tensors that can be seen in `value`."""
    return sum(tensor.nbytes for tensor in tensors(value) if tensor.layout is torch.strided)


def batch_size(value: Any) -> int:
    """Samples in a batch as far as its shape tells: the length of its first tensor; 1 if there is none."""
    if type(value) in (int, float, str):
        return 1
    if type(value) in (list, tuple) and value and isinstance(value[0], torch.Tensor):
        value = value[0]  # most batches, as every one passes through here
    first = value if isinstance(value, torch.Tensor) else next(tensors(value), None)
    return first.shape[0] if first is not None and first.ndim else 1


def is_leaf(value: Any) -> bool:
    """Returns whether `value` is a tensor, or an object that moves itself."""
    return isinstance(value, torch.Tensor) or own_move(value) != "none"


def own_move(value: Any) -> Move:
    """Returns whether `value`, not a tensor, moves itself, and whether its ``to`` takes ``non_blocking``."""
    return _own_move(type(value))  # type: ignore[arg-type]  # classes are hashable


@lru_cache(maxsize=256)
def _own_move(cls: type[Any]) -> Move:
    to = getattr(cls, "to", None)
    # Modules move in place, which a batch must not.
    if not callable(to) or issubclass(cls, (torch.Tensor, torch.nn.Module)):
        return "none"
    try:
        parameters = list(inspect.signature(to).parameters.values())[1:]
    except (TypeError, ValueError):
        return "none"
    names = {parameter.name for parameter in parameters}
    anything = bool(parameters) and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL
    if "device" not in names and not anything:  # quantities with units have a `to` as well
        return "none"
    keywords = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    return "non_blocking" if keywords or "non_blocking" in names else "blocking"


def _map_mapping(value: Mapping[Any, Any], function: Callable[[Any], Any]) -> Any:
    changed = {key: new for key, item in value.items() if (new := map_leaves(item, function)) is not item}
    if not changed:
        return value
    if isinstance(value, MutableMapping):
        clone = copy.copy(value)
        clone.update(changed)
        return clone
    replaced = {**value, **changed}
    try:
        return type(value)(replaced)  # type: ignore[call-arg]
    except TypeError:
        return replaced


def _map_sequence(value: Any, function: Callable[[Any], Any]) -> Any:
    items = [map_leaves(item, function) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    if not isinstance(value, tuple):
        clone = copy.copy(value)
        clone[:] = items
        return clone
    if hasattr(value, "_make"):  # a named tuple
        return value._make(items)
    try:
        return type(value)(items)
    except TypeError:
        return tuple(items)


def _map_dataclass(value: Any, function: Callable[[Any], Any]) -> Any:
    parts = {name: getattr(value, name) for name in _fields(value)}
    changed = {name: new for name, item in parts.items() if (new := map_leaves(item, function)) is not item}
    if not changed:
        return value
    clone = copy.copy(value)
    for name, new in changed.items():
        object.__setattr__(clone, name, new)  # frozen ones too
    return clone


def _fields(value: Any) -> list[str]:
    # A field without a default may never have been set.
    return [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
