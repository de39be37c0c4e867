"""Other settings of a loader or a process, as a plain dict that travels to other processes.

A dict of settings has any of these keys, each as in `headrace.doctor.records.Advice.settings`:

- "loader": arguments of `torch.utils.data.DataLoader` that differ;
- "headrace": True: Headrace's loader in the place of torch's;
- "threads": operators' threads in the training process;
- "worker_threads": threads of OpenMP, OpenBLAS, OpenCV and the like in each worker process.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

# What torch's DataLoader keeps of its arguments under their names.
_KEPT = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "generator", "in_order")
OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")


def arguments_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """What makes another loader of the same batches, of torch's."""
    known = inspect.signature(DataLoader.__init__).parameters
    names = [name for name in _KEPT if name in known]
    if loader.num_workers:
        names += OF_WORKERS
    arguments = {"dataset": loader.dataset, "collate_fn": loader.collate_fn}
    arguments |= {name: getattr(loader, name) for name in names}
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return {**arguments, "batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_size is None and loader.batch_sampler is not None:
        return {**arguments, "batch_sampler": loader.batch_sampler}
    sized = {"batch_size": loader.batch_size, "sampler": loader.sampler}
    return {**arguments, **sized, **({} if loader.batch_size is None else {"drop_last": loader.drop_last})}


def is_replaceable(loader: DataLoader[Any]) -> bool:
    """Whether its iter() is torch's or Headrace's: another loader would drop what one of its own does."""
    owner = next(cls for cls in type(loader).__mro__ if "__iter__" in vars(cls))
    return owner is DataLoader or owner.__module__.startswith("headrace.")


def with_settings(
    loader: DataLoader[Any], settings: dict[str, Any], headrace: type[DataLoader[Any]] | None
) -> DataLoader[Any]:
    """Another loader of the same batches.

    Args:
        loader: torch's; it is left alone.
        settings: "threads" is ignored.
        headrace: Headrace's DataLoader; None: settings don't ask for it.
    """
    arguments = arguments_of(loader)
    if settings.get("headrace") and headrace is not None:
        for name in ("num_workers", "in_order", "worker_init_fn", *OF_WORKERS):
            arguments.pop(name, None)
        return headrace(**arguments)
    arguments |= settings.get("loader", {})
    if "worker_threads" in settings:
        arguments["worker_init_fn"] = LimitedWorker(settings["worker_threads"], loader.worker_init_fn)
    if not arguments["num_workers"]:
        for name in OF_WORKERS:
            arguments.pop(name, None)
    return DataLoader(**arguments)


class LimitedWorker:
    """A worker_init_fn that limits the threads of libraries, then calls the user's."""

    def __init__(self, threads: int, init: Callable[[int], object] | None) -> None:
        self._threads, self._init = threads, init

    def __call__(self, worker_id: int) -> None:
        """Runs in the worker process."""
        torch.set_num_threads(self._threads)
        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(0 if self._threads == 1 else self._threads)
        try:
            import threadpoolctl  # type: ignore[import-untyped]
        except ImportError:
            pass  # OpenMP and BLAS keep their threads: only what torch and OpenCV do is limited
        else:
            threadpoolctl.threadpool_limits(self._threads)
        if self._init is not None:
            self._init(worker_id)


def name_of(kind: str, settings: dict[str, Any], where: str = "") -> str:
    """Of a phase with these settings: "supply num_workers=8"; of another loop's loader, " at eval.py:9"."""
    words = [f"{name}={value!r}" for name, value in settings.get("loader", {}).items()]
    words += [f"worker_threads={settings['worker_threads']!r}"] if "worker_threads" in settings else []
    words += ["headrace"] if settings.get("headrace") else []
    words += [f"threads={settings['threads']!r}"] if "threads" in settings else []
    words += [f"at {where}"] if where else []
    return f"{kind} {' '.join(words)}" if words else kind
