"""The loader that is examined: what it is, where it is used, what it has ready."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from headrace.measure.machine import usable_cores
from headrace.measure.observed import LoaderFacts
from headrace.measure.settings import arguments_of

LIBRARIES = ("site-packages", "dist-packages")
OWN = Path(__file__).parent.parent


def prefetched(loader: DataLoader[Any], settings: dict[str, Any] | None = None) -> int:
    """Batches that are made before they are asked for: torch's; a few for Headrace's, whose number varies."""
    asked = (settings or {}).get("loader", {})
    workers = asked.get("num_workers", loader.num_workers)
    if (settings or {}).get("headrace") or is_headrace(loader):
        return 4
    return int(workers * asked.get("prefetch_factor", loader.prefetch_factor or 2))


def is_headrace(loader: DataLoader[Any]) -> bool:
    """Whether it is Headrace's, not torch's."""
    return type(loader).__module__.startswith("headrace")


def own_stages(loader: DataLoader[Any]) -> dict[str, list[float]]:
    """What Headrace's loader has counted: stage → [samples, thread seconds, threads]; empty for torch's."""
    if not is_headrace(loader):
        return {}
    stages: Any = loader.stats().stages  # type: ignore[attr-defined]
    return {stage.name: [stage.samples, stage.seconds, stage.threads] for stage in stages}


def stages_between(before: dict[str, list[float]], after: dict[str, list[float]]) -> dict[str, list[float]]:
    """What was counted in between, of stages that did anything."""
    found = {}
    for name, (samples, seconds, threads) in after.items():
        then = before.get(name, [0.0, 0.0, 0.0])
        if samples > then[0]:
            found[name] = [samples - then[0], seconds - then[1], threads]
    return found


def is_full(inner: Iterator[Any]) -> bool:
    """Whether torch's workers made all batches that they were asked for; True where it can't be known."""
    outstanding = getattr(inner, "_tasks_outstanding", None)
    queues = [getattr(inner, name, None) for name in ("_worker_result_queue", "_data_queue")]
    if outstanding is None or queues[0] is None:
        return True
    ready = {id(queue): queue.qsize() for queue in queues if queue is not None}
    stored = sum(len(info) == 2 for info in getattr(inner, "_task_info", {}).values())
    return bool(sum(ready.values()) + stored >= outstanding)


def more_workers(count: int) -> list[int]:
    """Numbers above `count`, each about half as many again as the last, up to four times the cores."""
    ladder = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    most = max(8, 4 * usable_cores())
    return [workers for workers in ladder if count < workers <= most]


def describe(loader: DataLoader[Any], where: str, batch_nbytes: int) -> LoaderFacts:
    """The loader as the report names it."""
    known, ours = arguments_of(loader), is_headrace(loader)
    asked: dict[str, Any] = {"batch_size": loader.batch_size}
    for name in () if ours else ("num_workers", "prefetch_factor", "persistent_workers"):
        if name in known:
            asked[name] = known[name]
    asked["pin_memory"] = bool(loader.pin_memory)
    if "in_order" in known and not ours:
        asked["in_order"] = loader.in_order
    samples = _length(loader.dataset)
    dataset = type(loader.dataset).__name__ + ("" if samples is None else f" of {samples:,}")
    code = ", ".join([dataset, *(f"{name}={value!r}" for name, value in asked.items())])
    return LoaderFacts(
        kind="headrace" if ours else "torch",
        code=f"{'headrace.' if ours else ''}{type(loader).__name__}({code})",
        where=where,
        arguments=asked,
        batches=_length(loader),
        batch_nbytes=batch_nbytes,
        samples=samples,
    )


def where_from() -> str:
    """The caller's file and line: the innermost frame that isn't of a library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        of_library = any(name in path.parts for name in LIBRARIES) or OWN in path.parents
        if not of_library and path.exists():
            return f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except TypeError:
        return None
