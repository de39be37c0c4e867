"""Loaders that are examined, their batches, and other loaders of the same batches.

Settings are a dict with any of these keys:

- "loader": arguments of `torch.utils.data.DataLoader` that differ;
- "headrace": True for Headrace's loader in the place of torch's;
- "threads": threads of operators in the training process;
- "worker_threads": threads of OpenMP, OpenBLAS, OpenCV and the like in each worker process.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from headrace_doctor.machine import usable_cores
from headrace_doctor.measure.observed import LoaderFacts, Loop, Phase
from headrace_doctor.measure.processes import Times, times
from headrace_doctor.measure.stages import Place, files_of, is_users

OWN = Path(__file__).parent.parent
WARM_UP = "warm-up"
# Numbers of workers are tried upwards until so many in a row brought no more than this factor.
TRIES_IN_VAIN, FACTOR_THAT_COUNTS = 2, 1.05
# What torch's DataLoader keeps of its arguments under their names.
_KEPT = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "generator", "in_order")
OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")


@dataclass
class Watched:
    """One loader of the script, and the state of its examination."""

    loader: DataLoader[Any]
    begin: Callable[[], Iterator[Any]]  # its own iter()
    facts: LoaderFacts
    phase: Phase = field(default_factory=lambda: Phase(WARM_UP))  # that lasts, or begins with its next step
    kept: list[Any] = field(default_factory=list)  # copies of the latest batches of the warm-up
    steps: int = 0  # that the script made with it
    times: Times = field(default_factory=times)  # when its phase began
    trains: bool = False  # whether a loop over it began with gradients enabled
    # Its iteration began within another loader's step, or in lock-step with it by zip(), or without gradients
    # though another loop has them, as for validation.
    nested: bool = False
    origin: Origin | None = None  # of its loader, or None if not known
    epochs: int = 0  # number of those that began
    left: float | None = None  # when its last epoch ended, by `time.perf_counter()`; None while one lasts
    given: float = 0.0  # when the script got its latest batch

    def new_loop(self) -> Loop:
        """A record of its loops in which nothing is counted yet."""
        return Loop(self.facts.where, self.facts.code, self.facts.arguments)


@dataclass
class Epoch:
    """One loop over a loader."""

    watched: Watched
    began: float  # by `time.perf_counter()`
    loop: Loop  # what it consisted of so far
    thread: int = field(default_factory=threading.get_ident)  # that iterates
    in_step: bool = False  # it advances with each step of another loop, as by zip()


class Origin(NamedTuple):
    """The place at which a loader was made, and what is the same if it is made there for the next epoch."""

    places: tuple[Place, ...]
    dataset: type
    sampler: type
    batch_size: int | None


def origin_of(loader: DataLoader[Any], places: tuple[Place, ...]) -> Origin:
    """The origin of a loader that was made there."""
    return Origin(places, type(loader.dataset), type(loader.sampler), loader.batch_size)


def made_by_trainer(origin: Origin) -> bool:
    """Tells whether the Trainer of transformers made the loader, rather than a subclass of it."""
    trainer = "/transformers/trainer.py"
    makers = (file for file in files_of(origin.places) if is_users(file) or file.endswith(trainer))
    return next(makers, "").endswith(trainer)


def map_tree(function: Callable[[Any], Any], value: Any) -> Any:
    """A nested batch with `function` applied to whatever is no tuple, list or dict."""
    if type(value) in (dict, OrderedDict):
        return type(value)((key, map_tree(function, item)) for key, item in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tree(function, item) for item in value))
    if type(value) in (list, tuple):
        return type(value)(map_tree(function, item) for item in value)
    return function(value)


def leaves_of(value: Any) -> list[Any]:
    """The values in a nested batch that are no tuples, lists or dicts, in order."""
    leaves: list[Any] = []
    map_tree(leaves.append, value)
    return leaves


def clone(batch: Any) -> Any:
    """A copy of a batch; pinned memory stays pinned, and objects that can't be copied are shared."""
    return map_tree(_clone_leaf, batch)


def _clone_leaf(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        twin = leaf.detach().clone()
        return twin.pin_memory() if leaf.is_pinned() else twin
    try:
        return copy.deepcopy(leaf)
    except Exception:  # whatever a user's __deepcopy__ raises: the object itself is the next best
        return leaf


def nbytes(batch: Any) -> int:
    """Bytes of the tensors in a batch."""
    leaves = leaves_of(batch)
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves if isinstance(leaf, torch.Tensor))


def most_bytes(batch: Any) -> str:
    """The part of a batch, as "batch[1][…]['mask']", that has most of its bytes, or "" if none has.

    What is neither a tensor nor an array counts by `sys.getsizeof`. Positions but the first are left out, so
    that the parts of all samples count together.
    """
    sizes: Counter[str] = Counter()

    def add(part: Any, name: str) -> None:
        if isinstance(part, torch.Tensor):
            sizes[name] += part.numel() * part.element_size()
        elif isinstance(part, dict):
            for key, value in part.items():
                add(value, f"{name}[{key!r}]")
        elif isinstance(part, (list, tuple)) and not all(isinstance(one, (int, float)) for one in part):
            for position, value in enumerate(part):
                add(value, f"{name}[{position}]" if name == "batch" else f"{name}[…]")
        else:
            sizes[name] += getattr(part, "nbytes", None) or sys.getsizeof(part)

    add(batch, "batch")
    ((name, size),) = sizes.most_common(1) or [("", 0)]
    return name if 2 * size > sizes.total() else ""


def batch_samples(batch: Any, batch_size: int | None) -> int:
    """Samples in a batch, at least 1: the length of its first tensor with any, or else `batch_size`."""
    for leaf in leaves_of(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] > 0:
            return int(leaf.shape[0])
    if isinstance(batch, (list, tuple)) and batch and isinstance(batch[0], (list, tuple)) and batch[0]:
        return len(batch[0])
    return batch_size or 1


def headrace_loader() -> type[DataLoader[Any]] | None:
    """Headrace's DataLoader, or None if Headrace isn't installed."""
    with suppress(ModuleNotFoundError):
        from headrace import DataLoader as Headrace

        return Headrace
    return None


def is_headrace(loader: DataLoader[Any]) -> bool:
    """Tells whether the loader is Headrace's, not torch's."""
    return type(loader).__module__.startswith("headrace.")


def prefetched(loader: DataLoader[Any]) -> int:
    """Number of batches made before they are asked for: 4 for Headrace's loader, where it varies."""
    return 4 if is_headrace(loader) else loader.num_workers * (loader.prefetch_factor or 2)


def own_stages(loader: DataLoader[Any]) -> dict[str, list[float]]:
    """Counts of Headrace's loader: stage → [samples, thread seconds, threads]; empty for torch's, and for
    worker processes, whose stacks tell more."""
    if not is_headrace(loader):
        return {}
    stages: Any = loader.stats().stages  # type: ignore[attr-defined]
    found = {stage.name: [stage.samples, stage.seconds, stage.threads] for stage in stages if stage.samples}
    return {} if "render" in found else found


def best_workers(
    above: int, rate_of: Callable[[int], float], now: float = 0.0, enough: float = math.inf, first: int = 0
) -> int | None:
    """The fastest of the numbers of workers above the present one, tried upwards, or None if none is faster.

    Args:
        above: the present number.
        rate_of: returns samples per second with so many workers, or 0 if that can't be tried.
        now: samples per second with the present number.
        enough: samples per second that need not be exceeded.
        first: about the number to begin with, if fewer are known not to suffice.
    """
    best, in_vain, most = None, 0, max(16, 4 * usable_cores())
    for count in (1, *(step * 2**power for power in range(12) for step in (2, 3))):  # 1, 2, 3, 4, 6, 8, 12, …
        if count <= above or 1.5 * count <= min(first, most):
            continue
        if count > most or in_vain == TRIES_IN_VAIN or now > enough:
            break
        rate = rate_of(count)
        in_vain = 0 if rate > FACTOR_THAT_COUNTS * now else in_vain + 1
        if rate > now:
            best, now = count, rate
    return best


def describe(loader: DataLoader[Any], where: str) -> LoaderFacts:
    """The loader as the report names it."""
    known, ours = arguments_of(loader), is_headrace(loader)
    names = () if ours else ("num_workers", "prefetch_factor", "persistent_workers", "in_order")
    shown = {"batch_size": loader.batch_size, **{name: known[name] for name in names if name in known}}
    shown["pin_memory"] = bool(loader.pin_memory)
    samples = length_of(loader.dataset)
    dataset = type(loader.dataset).__name__ + ("" if samples is None else f" of {samples:,}")
    code = ", ".join([dataset, *(f"{name}={value!r}" for name, value in shown.items())])
    return LoaderFacts(
        kind="headrace" if ours else "torch",
        code=f"{'headrace.' if ours else ''}{type(loader).__name__}({code})",
        where=where,
        arguments=shown,
        batches=length_of(loader),
        samples=samples,
    )


def where_from() -> str:
    """The line of the script that is executed, as "file.py:12", or "file.py:12 in function"."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        library = {"site-packages", "dist-packages"} & set(path.parts) or OWN in path.parents
        if not library and path.exists():
            line = f"{path.name}:{frame.f_lineno}"
            while frame.f_back and frame.f_code.co_name in ("<genexpr>", "<listcomp>", "<lambda>"):
                frame = frame.f_back
            function = frame.f_code.co_name
            return line if function.startswith("<") else f"{line} in {function}"
        frame = frame.f_back
    return "?"


def length_of(thing: Any) -> int | None:
    """Its len(), or None if it has none."""
    try:
        return len(thing)
    except TypeError:
        return None


def arguments_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """The arguments of torch's loader that make another one of the same batches."""
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
    """Tells whether another loader can do what this one's ``__iter__`` does: it is torch's or Headrace's."""
    owner = next(cls for cls in type(loader).__mro__ if "__iter__" in vars(cls))
    return owner is DataLoader or owner.__module__.startswith("headrace.")


def with_settings(loader: DataLoader[Any], settings: dict[str, Any]) -> DataLoader[Any]:
    """Another loader of the same batches with other settings."""
    arguments = arguments_of(loader)
    headrace = headrace_loader() if settings.get("headrace") else None
    if headrace is not None:
        for name in ("num_workers", "in_order", "worker_init_fn", *OF_WORKERS):
            arguments.pop(name, None)
        return headrace(**arguments)
    arguments |= settings.get("loader", {})
    if "worker_threads" in settings:
        threads, init = settings["worker_threads"], loader.worker_init_fn
        arguments["worker_init_fn"] = functools.partial(limit_worker, threads, init)
    if not arguments["num_workers"]:
        for name in OF_WORKERS:
            arguments.pop(name, None)
    return DataLoader(**arguments)


def limit_worker(threads: int, init: Callable[[int], object] | None, worker_id: int) -> None:
    """Limits the threads of libraries in a worker process, then calls the user's worker_init_fn."""
    torch.set_num_threads(threads)
    if "cv2" in sys.modules:
        sys.modules["cv2"].setNumThreads(0 if threads == 1 else threads)
    if find_spec("threadpoolctl") is not None:  # else OpenMP and BLAS keep their threads
        import threadpoolctl  # type: ignore[import-untyped]

        threadpoolctl.threadpool_limits(threads)
    if init is not None:
        init(worker_id)


def name_of(kind: str, settings: dict[str, Any]) -> str:
    """The name of a phase with these settings: "supply num_workers=8"."""
    words = [f"{name}={value!r}" for name, value in settings.get("loader", {}).items()]
    words += [f"{name}={settings[name]!r}" for name in ("worker_threads", "threads") if name in settings]
    words += ["headrace"] if settings.get("headrace") else []
    return " ".join([kind, *words])
