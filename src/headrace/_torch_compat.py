"""What Headrace uses of torch that torch doesn't promise to keep, each with what is done where it is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils.data


def set_worker_info(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """What `torch.utils.data.get_worker_info()` returns in this process from now on.

    Args:
        worker: number of this worker, 0 or more.
        workers: how many there are.
        seed: of this worker.
        dataset: the user's.
    """
    try:
        from torch.utils.data._utils import worker as module

        kind: Any = module.WorkerInfo
        info = kind(id=worker, num_workers=workers, seed=seed, dataset=dataset)
        module._worker_info = info
    except (ImportError, AttributeError, TypeError):
        info = None
    shown = torch.utils.data.get_worker_info()
    if info is None or shown is not info:
        _show_worker_info(worker, workers, seed, dataset)


class _WorkerInfo:
    """As torch's, for code that asks `torch.utils.data.get_worker_info()` by this name."""

    def __init__(self, worker: int, workers: int, seed: int, dataset: Any) -> None:
        self.id = worker
        self.num_workers = workers
        self.seed = seed
        self.dataset = dataset


def _show_worker_info(worker: int, workers: int, seed: int, dataset: Any) -> None:
    info = _WorkerInfo(worker, workers, seed, dataset)
    module: Any = torch.utils.data
    module.get_worker_info = lambda: info


def default_collate_functions() -> dict[Any, Callable[..., Any]]:
    """The table that `default_collate` follows, by type: documented, but not exported. Empty: it is gone, and
    batches are copied once more on their way."""
    try:
        from torch.utils.data._utils.collate import default_collate_fn_map
    except ImportError:
        return {}
    functions: dict[Any, Callable[..., Any]] = default_collate_fn_map
    return functions


def pin_memory(data: Any) -> Any:
    """`data` with its tensors in pinned memory, as torch's DataLoader gives it; containers of types that
    torch knows are looked into, and objects with a method `pin_memory` pin themselves."""
    try:
        from torch.utils.data._utils.pin_memory import pin_memory as by_torch
    except ImportError:
        return _pinned(data)
    return by_torch(data)  # type: ignore[no-untyped-call]


def _pinned(data: Any) -> Any:
    if isinstance(data, (str, bytes)):
        return data
    if isinstance(data, Mapping):
        return {key: _pinned(item) for key, item in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(_pinned, data))
    if type(data) in (list, tuple):
        return type(data)(map(_pinned, data))
    return data.pin_memory() if hasattr(data, "pin_memory") else data
