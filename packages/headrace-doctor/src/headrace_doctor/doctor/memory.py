"""Finds what takes too much memory, or will, and what to change."""

from __future__ import annotations

from headrace_doctor.doctor.records import Finding
from headrace_doctor.errors import size
from headrace_doctor.measure.observed import ACTUAL, SUPPLY, LoaderFacts, Observation

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
AGAINST_GROWTH = (
    "keep paths, labels and other records in NumPy arrays or tensors instead of Python lists and dicts (a"
    " forked worker copies a page of memory as soon as it changes the reference count of an object on it),"
    " call gc.freeze() before the loader starts its workers, keep caches out of the dataset, or use fewer"
    " workers"
)
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
    """The parts in order: all of it, prefetched batches, workers that grow, the device."""
    if observation.loader is None:
        return ()
    made = (find(observation, observation.loader) for find in (_all, _prefetched, _growth, _device))
    return tuple(finding for finding in made if finding is not None)


def _all(observation: Observation, _loader: LoaderFacts) -> Finding | None:
    most = max((usage["memory"] for usage in observation.usage), default=0)
    allowed = observation.memory.get("allowed", 0)
    if not most or not allowed:
        return None
    name, details = "memory of all processes", {"most": most, "allowed": allowed}
    value = f"{size(most)} at most, of {size(allowed)} that were free"
    if most <= MUCH * allowed:
        return Finding(name, value, "good", details=details)
    remedy = "fewer workers (each holds a copy of what it changes), a smaller prefetch_factor or batch"
    return Finding(name, value, "bad", remedy, details)


def _prefetched(observation: Observation, loader: LoaderFacts) -> Finding | None:
    workers = loader.arguments.get("num_workers") or 0
    if loader.kind != "torch" or not workers or not loader.batch_nbytes:
        return None
    batches = workers * (loader.arguments.get("prefetch_factor") or 2)
    ahead = batches * loader.batch_nbytes
    shm, allowed = observation.memory.get("shm_total", 0), observation.memory.get("allowed", 0)
    too_much_for = "/dev/shm" if shm and ahead > MUCH * shm else "memory" if ahead > 0.5 * allowed > 0 else ""
    remedy, change = "", {}
    if too_much_for:
        change = {"prefetch_factor": max(1, batches // workers // 2)}
        fewer = f"prefetch_factor={change['prefetch_factor']}, fewer workers, or uint8 batches"
        remedy = f"too much for {too_much_for}: {fewer} that are normalized on the device"
    if too_much_for == "/dev/shm":
        remedy += "; or a larger /dev/shm: docker run --shm-size=16g"
    pins = loader.arguments.get("pin_memory") and observation.device is not None
    value = f"{batches} of {size(loader.batch_nbytes)} each: {size(ahead)} in shared memory"
    value += f", and {size(loader.batch_nbytes)} pinned for each that is ready" if pins else ""
    details = {"batches": batches, "bytes": ahead, "shm": shm, "change": change}
    return Finding("batches made ahead", value, "bad" if too_much_for else "good", remedy, details)


def _growth(observation: Observation, loader: LoaderFacts) -> Finding | None:
    """Workers that keep growing, also when the loader is measured alone, or that have copied what they were
    forked with."""
    phases = [observation.phase(name) for name in (ACTUAL, SUPPLY)]
    measured = [phase for phase in phases if phase is not None and len(phase.worker_memory) == 2]
    workers = loader.arguments.get("num_workers") or 0
    if len(measured) < len(phases) or not workers:
        return None
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
        return None
    share = whole / max(1, observation.memory.get("allowed", 0))
    return Finding(GROWING, value, "bad", AGAINST_GROWTH, {"bytes_per_sample": per_sample, "share": share})


def _device(observation: Observation, _loader: LoaderFacts) -> Finding | None:
    name, device = "memory of the device", observation.device
    if observation.ended.startswith("out of memory on the device"):
        return Finding(name, observation.ended, "bad", FOR_MEMORY)
    if device is None or not device.memory_total:
        return None
    value = f"{size(device.memory_peak)} at most, of {size(device.memory_total)}"
    details = {"peak": device.memory_peak, "total": device.memory_total}
    if device.memory_peak <= 0.9 * device.memory_total:
        return Finding(name, value, "good", details=details)
    return Finding(name, value, "note", f"near its end: {FOR_MEMORY}", details)
