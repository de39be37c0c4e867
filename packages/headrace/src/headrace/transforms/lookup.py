"""Finds what is known of a transform by its class, and the transforms that containers call one after another.

`headrace.transforms` registers all ops here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace.transforms.changed import find_change
from headrace.transforms.op import ImageOp, NoNativeForm, Op
from headrace.transforms.own_code import plain_base, wrapped_transform

COMPOSE: tuple[type, ...] = (v1.Compose, v2.Compose)
LISTS = (*COMPOSE, nn.Sequential)
# What `weights.transforms()` of torchvision's image models gives.
PRESET = "torchvision.transforms._presets.ImageClassification"

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
    name = f"{cls.__module__}.{cls.__qualname__}"
    return _by_class.get(cls) or (_by_name.get(name) if is_class(cls, name) else None)


def is_class(cls: type, name: str) -> bool:
    """Returns whether `cls` is the class of that full name, of a module that the user has imported: a class
    may say of itself that it is of any."""
    module, _, attribute = name.rpartition(".")
    return getattr(sys.modules.get(module), attribute, None) is cls


def _is_known(cls: type) -> bool:
    return _find_exactly(cls) is not None


def read_op(kind: type[Op], transform: Any, *, on_tensor: bool) -> Op:
    """The op of `transform`, which is read as one of `kind`. An image op is read as one on tensors if
    `on_tensor`. Raises NoNativeForm."""
    if change := find_change(transform):
        raise NoNativeForm(change)
    if on_tensor and issubclass(kind, ImageOp):
        return kind.read_on_tensor(transform)
    return kind.read(transform)


def known_base(transform: Any) -> type | None:
    """The known class that `transform`'s class derives from, if it does without being one."""
    bases = type(transform).__mro__[1:]
    return next((base for base in bases if _is_known(base) or container_of(base)), None)


def container_of(cls: type) -> type | None:
    """The container that `cls` is, or changes nothing of: it calls other transforms one after another."""
    return cls if _is_container(cls) else plain_base(cls, _is_container)


def _is_container(cls: type) -> bool:
    return cls in LISTS or is_class(cls, PRESET)


def steps_of(transform: Any) -> Sequence[Any] | None:
    """The transforms that a container calls, in order, or None for all other transforms, and for a container
    that was changed."""
    kind = container_of(type(transform))
    if kind is None:
        wrapped = wrapped_transform(transform)
        return None if wrapped is None else [wrapped]
    if find_change(transform) is not None:
        return None
    if kind is nn.Sequential:
        return list(transform)
    if kind in COMPOSE:
        return list(transform.transforms)
    return [
        v1.Resize(transform.resize_size, transform.interpolation, antialias=transform.antialias),
        v1.CenterCrop(transform.crop_size),
        v1.PILToTensor(),
        v1.ConvertImageDtype(torch.float),
        v1.Normalize(transform.mean, transform.std),
    ]
