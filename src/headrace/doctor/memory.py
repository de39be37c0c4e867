"""What takes how much memory, and what to change before it is too much."""

from __future__ import annotations

from headrace.doctor.records import Finding
from headrace.errors import size
from headrace.measure.observed import ACTUAL, SUPPLY, Observation

# Growth in a phase that is more than the freed memory that an allocator keeps: of each worker, in bytes, and
# of all as a share of what they had.
LEAST_GROWTH, NOISE = 16e6, 0.02
# Growth of one worker since its first batch, or in an epoch, that is more than what any worker needs: in
# bytes, and as a share of the memory of the process that it was forked from.
LEAST_COPIED, COPIED = 100e6, 0.25
# Batches that a worker holds at one moment, and not at another: made, joined, and sent.
BATCHES_BETWEEN = 4
MUCH = 0.8  # of what is allowed
GROWING = "workers that grow"
LESS_GROWTH = "records in arrays instead of Python lists and dicts"
LESS_GROWTH_LINES = (
    " records = np.array(records)  # a forked worker copies each page of Python objects that it reads",
    " gc.freeze()  # before the loader starts its workers",
    " and no cache in the dataset, or fewer workers",
)
FOR_MEMORY = (
    "in this order: autocast to bfloat16, a smaller batch with gradient accumulation, activation"
    " checkpointing (torch.utils.checkpoint), fewer batches in flight to the device"
)


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
            value=f"{size(most)} at most, of {size(allowed)} that were free",
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
    remedy, change = "", {}
    if too_much_for:
        change = {"prefetch_factor": max(1, batches // workers // 2)}
        fewer = f"prefetch_factor={change['prefetch_factor']}, fewer workers, or uint8 batches"
        remedy = f"too much for {too_much_for}: {fewer} that are normalised on the device"
    if too_much_for == "/dev/shm":
        remedy += "; or a larger /dev/shm: docker run --shm-size=16g"
    pins = loader.arguments.get("pin_memory") and observation.device is not None
    pinned = f", and {size(loader.batch_nbytes)} pinned for each that is ready" if pins else ""
    return [
        Finding(
            name="batches made ahead",
            value=f"{batches} of {size(loader.batch_nbytes)} each: {size(ahead)} in shared memory{pinned}",
            judgement="bad" if too_much_for else "good",
            remedy=remedy,
            details={"batches": batches, "bytes": ahead, "shm": shm, "change": change},
        )
    ]


def _growth(observation: Observation) -> list[Finding]:
    """Workers that keep growing, also when the loader is measured alone, or that have copied what they were
    forked with."""
    loader, phases = observation.loader, [observation.phase(name) for name in (ACTUAL, SUPPLY)]
    assert loader is not None
    measured = [phase for phase in phases if phase is not None and len(phase.worker_memory) == 2]
    workers = loader.arguments.get("num_workers") or 0
    if len(measured) < len(phases) or not workers:
        return []
    grown = [phase.worker_memory[1] - phase.worker_memory[0] for phase in measured]
    firsts = [phase.worker_memory[0] for phase in measured]
    least = workers * max(LEAST_COPIED, COPIED * observation.memory.get("main_at_first", 0))
    swing = workers * BATCHES_BETWEEN * loader.batch_nbytes
    whole, per_sample, value = 0.0, 0.0, ""
    noise = [max(workers * LEAST_GROWTH, NOISE * first) + swing for first in firsts]
    if all(growth >= most for growth, most in zip(grown, noise, strict=True)):
        # An allocator's memory grows ever more slowly, what is kept for each sample does not.
        per_sample = min(growth / sum(phase.samples) for growth, phase in zip(grown, measured, strict=True))
        whole = max(sum(grown), per_sample * (loader.samples or 0))
        epoch = f": {size(whole)} in an epoch" if loader.samples else ""
        value = f"{size(per_sample * 1000)} for every 1,000 samples{epoch}"
    if whole < least:  # most may have been copied before either was measured
        ahead = workers * (loader.arguments.get("prefetch_factor") or 2) * loader.batch_nbytes
        at_first = observation.memory.get("workers_at_first", measured[1].worker_memory[1])
        whole = measured[1].worker_memory[1] - at_first - ahead
        per_sample, least = 0.0, least + swing
        value = f"{size(whole / workers)} each since their first batch: {size(whole)} in all"
    if whole < least:
        return []
    return [
        Finding(
            name=GROWING,
            value=value,
            judgement="bad",
            remedy="keep paths, labels and other records in NumPy arrays or tensors instead of Python lists"
            " and dicts (a forked worker copies a page of memory as soon as it changes the reference count of"
            " an object on it), call gc.freeze() before the loader starts its workers, keep caches out of"
            " the dataset, or use fewer workers",
            details={
                "bytes_per_sample": per_sample,
                "share": whole / max(1, observation.memory.get("allowed", 0)),
            },
        )
    ]


def _device(observation: Observation) -> list[Finding]:
    if observation.ended.startswith("out of memory on the device"):
        return [Finding("memory of the device", observation.ended, "bad", FOR_MEMORY)]
    device = observation.device
    if device is None or not device.memory_total:
        return []
    full = device.memory_peak > 0.9 * device.memory_total
    return [
        Finding(
            name="memory of the device",
            value=f"{size(device.memory_peak)} at most, of {size(device.memory_total)}",
            judgement="note" if full else "good",
            remedy=f"near its end: {FOR_MEMORY}" if full else "",
            details={"peak": device.memory_peak, "total": device.memory_total},
        )
    ]
