"""What takes how much memory, and what to change before it is too much."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from headrace.doctor.records import Finding
from headrace.measure.observed import ACTUAL, Observation

# Growth of workers in the actual phase that is told from noise: allocators grow a little at first.
GROWTH_THAT_COUNTS = 0.05
LEAST_GROWTH = 32e6  # bytes
LEAST_LOOKS = 6
MUCH = 0.8  # of what is allowed


def memory_findings(observation: Observation) -> tuple[Finding, ...]:
    """In order: all of it, prefetched batches, workers that grow, the device."""
    if observation.loader is None:
        return ()
    findings = [*_all(observation), *_prefetched(observation), *_growth(observation), *_device(observation)]
    return tuple(findings)


def _all(observation: Observation) -> list[Finding]:
    most = max((usage["memory"] for usage in observation.usage), default=0)
    allowed = observation.memory.get("allowed", 0)
    if not most or not allowed:
        return []
    much = most > MUCH * allowed
    return [
        Finding(
            name="memory of all processes",
            value=f"{_size(most)} at most, of {_size(allowed)} that were free",
            judgement="bad" if much else "good",
            remedy="fewer workers (each holds a copy of what it changes), a smaller prefetch_factor or batch"
            if much
            else "",
            details={"most": most, "allowed": allowed},
        )
    ]


def _prefetched(observation: Observation) -> list[Finding]:
    loader = observation.loader
    assert loader is not None
    workers = loader.arguments.get("num_workers") or 0
    if loader.kind != "torch" or not workers or not loader.batch_nbytes:
        return []
    batches = workers * (loader.arguments.get("prefetch_factor") or 2)
    ahead = batches * loader.batch_nbytes
    shm, allowed = observation.memory.get("shm_total", 0), observation.memory.get("allowed", 0)
    too_much_for = "/dev/shm" if shm and ahead > MUCH * shm else "memory" if ahead > 0.5 * allowed > 0 else ""
    remedy = ""
    if too_much_for:
        fewer = f"prefetch_factor={max(1, batches // workers // 2)}, fewer workers, or uint8 batches"
        remedy = f"too much for {too_much_for}: {fewer} that are normalised on the device"
    if too_much_for == "/dev/shm":
        remedy += "; or a larger /dev/shm: docker run --shm-size=16g"
    pins = loader.arguments.get("pin_memory")
    pinned = f", and {_size(loader.batch_nbytes)} pinned for each that is ready" if pins else ""
    return [
        Finding(
            name="batches made ahead",
            value=f"{batches} of {_size(loader.batch_nbytes)} each: {_size(ahead)} in shared memory{pinned}",
            judgement="bad" if too_much_for else "good",
            remedy=remedy,
            details={"batches": batches, "bytes": ahead, "shm": shm},
        )
    ]


def _growth(observation: Observation) -> list[Finding]:
    phase = observation.phase(ACTUAL)
    rows = [usage for usage in observation.usage if usage["phase"] == ACTUAL and usage["workers_memory"]]
    if phase is None or len(rows) < LEAST_LOOKS:
        return []
    times, sizes = [row["time"] for row in rows], [row["workers_memory"] for row in rows]
    slope = slope_of(times, sizes)
    grown = slope * (times[-1] - times[0])
    if grown < max(LEAST_GROWTH, GROWTH_THAT_COUNTS * sizes[0]):
        return []
    samples = max(1.0, sum(phase.samples) * (times[-1] - times[0]) / max(phase.ended - phase.began, 1e-9))
    loader = observation.loader
    assert loader is not None
    per_sample = grown / samples
    epoch = f": {_size(per_sample * loader.samples)} more after an epoch" if loader.samples else ""
    return [
        Finding(
            name="workers that grow",
            value=f"{_size(per_sample * 1000)} for every 1,000 samples{epoch}",
            judgement="bad",
            remedy="forked workers copy a page of memory as soon as they touch a Python object on it, even to"
            " count references: keep lists of paths and labels in NumPy arrays or tensors, and caches out of"
            " datasets",
            details={"bytes_per_sample": per_sample, "bytes_per_second": slope},
        )
    ]


def _device(observation: Observation) -> list[Finding]:
    remedy = (
        "in this order: autocast to bfloat16, a smaller batch with gradient accumulation, activation"
        " checkpointing (torch.utils.checkpoint), fewer batches in flight to the device"
    )
    if observation.ended.startswith("out of memory on the device"):
        return [Finding("memory of the device", observation.ended, "bad", remedy)]
    device = observation.device
    if device is None or not device.memory_total:
        return []
    full = device.memory_peak > 0.9 * device.memory_total
    return [
        Finding(
            name="memory of the device",
            value=f"{_size(device.memory_peak)} at most, of {_size(device.memory_total)}",
            judgement="note" if full else "good",
            remedy=f"near its end: {remedy}" if full else "",
            details={"peak": device.memory_peak, "total": device.memory_total},
        )
    ]


def slope_of(times: Sequence[float], values: Sequence[float]) -> float:
    """By Theil and Sen: the median of the slopes of all pairs, which outliers don't bend."""
    slopes = [
        (values[j] - values[i]) / (times[j] - times[i])
        for i in range(len(times))
        for j in range(i + 1, len(times))
        if times[j] > times[i]
    ]
    return statistics.median(slopes) if slopes else 0.0


def _size(count: Any) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,.0f} bytes"
