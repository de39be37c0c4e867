"""What of a dataset threads can't share: state that its code changes, handles, random generators."""

from __future__ import annotations

import io
import os
import random
import sys
import types
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import numpy as np
import torch

# Deep and wide enough for datasets that wrap datasets and hold lists of transforms; lists of samples are
# longer than this, and looking at their first items says what all of them are.
MAX_DEPTH = 6
MAX_ITEMS = 64
MAX_NODES = 4096

PLAIN = (bool, int, float, complex, str, bytes, type(None))
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
HANDLES = (io.IOBase, types.GeneratorType)
# Objects of these packages are bound to a process or a thread, however they look.
HANDLE_PACKAGES = ("h5py", "lmdb", "netCDF4", "rocksdb", "sqlite3", "tables")
STATELESS = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)

Snapshot = dict[str, object]


def snapshot(dataset: Any) -> Snapshot:
    """What can be seen of the state of `dataset` and the objects in it: two snapshots differ where its code
    changed something in between. Valid as long as the objects live."""
    return {path: _token(value) for path, value in _walk(dataset)}


def changed(before: Snapshot, after: Snapshot) -> str | None:
    """The path of something that differs, such as ``dataset.cache``; None: nothing does."""
    return next((path for path in after if path not in before or before[path] != after[path]), None)


def unshareable(dataset: Any) -> str | None:
    """Why threads can't share what `dataset` holds, with its path; None: nothing is known against it."""
    for path, value in _walk(dataset):
        kind = type(value)
        if isinstance(value, STATELESS):
            continue
        if isinstance(value, GENERATORS):
            return f"{path} is a {kind.__name__}, from which threads would draw in any order"
        package = kind.__module__.partition(".")[0]
        if isinstance(value, HANDLES) or package in HANDLE_PACKAGES or _is_opaque(value):
            return f"{path} is a {kind.__name__}, which threads may not be able to share"
    return None


def code_stamp(*roots: Any) -> str | None:
    """The same for objects whose code, and whose plain attributes, are the same: the files that their classes
    and functions come from, with times of modification; functions; numbers, flags and texts. None: some code
    comes from no file."""
    modules, parts = set(), []
    for root in roots:
        for path, value in _walk(root):
            modules.add(getattr(value, "__module__", None) or type(value).__module__)
            parts.append((path, _plainly(value)))
    stamps = []
    for name in modules - set(sys.builtin_module_names):
        file = getattr(sys.modules.get(str(name)), "__file__", None)
        if file is None or not os.path.exists(file):
            return None
        stamps.append(f"{file} {os.stat(file).st_mtime_ns}")
    return sha256(repr((sorted(stamps), sorted(parts))).encode("utf-8", "backslashreplace")).hexdigest()


def _plainly(value: Any) -> str:
    if isinstance(value, PLAIN):
        return repr(value)
    code = getattr(value, "__code__", None)
    if code is not None:
        return f"{value.__qualname__} {code.co_firstlineno} {code.co_code.hex()} {code.co_names}"
    return f"{type(value).__qualname__} {getattr(value, '__qualname__', '')}"


def _walk(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Every object that is reached from `dataset`, with its path, once."""
    seen: set[int] = set()
    waiting = [("dataset", dataset, 0)]
    while waiting and len(seen) < MAX_NODES:
        path, value, depth = waiting.pop()
        if id(value) in seen:
            continue
        if not isinstance(value, PLAIN):
            seen.add(id(value))
        yield path, value
        if depth < MAX_DEPTH and not isinstance(value, STATELESS):
            waiting += [(f"{path}{name}", inner, depth + 1) for name, inner in _inner(value)]


def _inner(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, (*PLAIN, torch.Tensor, np.ndarray)):
        return []
    inner: list[tuple[str, Any]] = []
    if isinstance(value, (list, tuple)):
        inner = [(f"[{i}]", item) for i, item in enumerate(value[:MAX_ITEMS])]
    elif isinstance(value, dict):
        inner = [(f"[{key!r}]", value[key]) for key, _ in zip(list(value), range(MAX_ITEMS), strict=False)]
    return inner + [(f".{name}", item) for name, item in list(getattr(value, "__dict__", {}).items())]


def _token(value: Any) -> object:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    if isinstance(value, (list, tuple, dict, set, bytearray)):
        return id(value), len(value)
    return id(value)


def _is_opaque(value: Any) -> bool:
    """Whether this is an object of C code that can't be copied: a handle of some kind."""
    if isinstance(value, (*PLAIN, torch.Tensor, np.ndarray)) or hasattr(value, "__dict__"):
        return False
    try:
        value.__reduce_ex__(4)
    except TypeError:
        return True
    except Exception:  # the class's own idea of pickling
        return False
    return False
