"""The checkup of a machine: cores, memory, limits, decoding, GPUs, and whether torch reaches them."""

from __future__ import annotations

from dataclasses import asdict

from headrace_doctor.doctor.records import Checkup, Finding, Judgement
from headrace_doctor.doctor.storage import storage_findings
from headrace_doctor.errors import size
from headrace_doctor.machine import FileLimit, Space
from headrace_doctor.measure.survey import Cores, Decoding, Machine, Memory, TorchBuild

# Share of the cores' time in use before measuring: more than the few percent of a desktop or of daemons.
BUSY = 0.2
# What a typical loader has in flight: 64 × 3 × 224 × 224 float32, and torch's default prefetch_factor.
BATCH_BYTES = 64 * 3 * 224 * 224 * 4
PREFETCH = 2
# Private memory (USS) of a worker that runs an ImageFolder with torchvision, by torch 2.15 on Linux: forked,
# 16 to 48 MB at first; by spawn or forkserver, the default from Python 3.14 on, 410 to 440 MB.
FORKED_WORKER = 50_000_000
SPAWNED_WORKER = 440_000_000
# Files open in the training process, measured there, too: five for each worker's pipes and its sentinel, and
# one for each tensor in shared memory (torch's sharing strategy "file_descriptor"), two per batch.
FILES_PER_WORKER = 5 + 2 * PREFETCH
# Python, torch, CUDA and a few logs.
OWN_FILES = 200
# A quarter of what a Zen 4 core does (1,040 images of 500 × 375 per second): one below it is shared,
# throttled, emulated, or very old.
SLOW_CORE = 260.0


def cores_finding(cores: Cores) -> Finding:
    """A note where fewer cores are usable than visible, or other processes use them."""
    limits = []
    if cores.affinity < cores.host:
        limits.append(f"affinity {cores.affinity}")
    if cores.quota is not None and cores.quota < cores.affinity:
        limits.append(f"cgroup quota {cores.quota:g}")
    value = f"{cores.usable} of {cores.host}" + (f" ({', '.join(limits)})" if limits else "")
    remedy = ""
    busy = cores.busy > BUSY
    if busy:
        value += f", {cores.busy:.0%} busy before measuring"
        remedy = "Other processes take part of them; the rates below are lower than on a quiet machine. "
    if limits:
        times = cores.host / cores.usable
        remedy += f"num_workers={cores.usable}: os.cpu_count() is {times:.3g} times as many."
    if cores.quota is not None and cores.quota < cores.affinity:
        # torch and OpenMP follow the affinity, and the kernel stops all threads once the quota is used up.
        remedy += f" Set OMP_NUM_THREADS={cores.usable}: torch doesn't see the quota."
    return Finding("usable cores", value, "note" if limits or busy else "good", remedy.strip(), asdict(cores))


def memory_finding(memory: Memory, cores: int) -> Finding:
    """Bad where a forked worker per core and its batches don't fit, a note where spawned ones don't."""
    batches = cores * PREFETCH * BATCH_BYTES
    forked, spawned = cores * FORKED_WORKER + batches, cores * SPAWNED_WORKER + batches
    value = f"{size(memory.available)} available of {size(memory.limit or memory.total)}"
    if memory.limit is not None:
        value += f" (cgroup limit; the host has {size(memory.total)})"
    judgement: Judgement = "good"
    remedy = ""
    if memory.available < forked:
        judgement = "bad"
        remedy = f"{cores} workers with their batches need {size(forked)}: fewer workers, or more memory."
    elif memory.available < spawned:
        judgement = "note"
        remedy = (
            f"{cores} workers started by spawn or forkserver need {size(spawned)}:"
            ' multiprocessing_context="fork", or fewer workers.'
        )
    return Finding("memory", value, judgement, remedy, asdict(memory))


def shared_memory_finding(shared: Space | None, cores: int) -> Finding:
    """Bad where the batches of a worker per core don't fit, a note where those of two per core don't.

    A worker that finds no room there dies of a bus error.
    """
    name = "shared memory"
    if shared is None:
        remedy = "mount -t tmpfs tmpfs /dev/shm, or num_workers=0: workers need it."
        return Finding(name, "no /dev/shm", "bad", remedy)
    one, two = cores * PREFETCH * BATCH_BYTES, 2 * cores * PREFETCH * BATCH_BYTES
    judgement: Judgement = "bad" if shared.free < one else "note" if shared.free < two else "good"
    remedy = ""
    if judgement != "good":
        wanted = -(-two // 2**30)
        remedy = (
            f"{2 * cores} workers with batches of 64 × 3 × 224 × 224 float32 need {size(two)}:"
            f" docker run --shm-size={wanted}g (or --ipc=host), in Kubernetes an emptyDir of medium Memory at"
            f" /dev/shm, else mount -o remount,size={wanted}g /dev/shm."
        )
    value = f"{size(shared.free)} free of {size(shared.total)} at /dev/shm"
    return Finding(name, value, judgement, remedy, asdict(shared))


def files_finding(limit: FileLimit, cores: int) -> Finding:
    """Bad where a worker per core needs more files than may be open, a note where two per core do.

    Beyond it torch says "Too many open files", or "received 0 items of ancdata".
    """
    one, two = (OWN_FILES + workers * FILES_PER_WORKER for workers in (cores, 2 * cores))
    judgement: Judgement = "good"
    remedy = ""
    if limit.soft is not None and limit.soft < two:
        judgement = "bad" if limit.soft < one else "note"
        wanted = max(65536, two)
        remedy = f"ulimit -n {wanted}"
        if limit.hard is not None and limit.hard < wanted:
            remedy = f"docker run --ulimit nofile={wanted}, or nofile in /etc/security/limits.conf"
            remedy += f" (the hard limit, {limit.hard:,}, has to go up too)"
        remedy += f", before the training starts: {2 * cores} workers need {two:,}."
    hard = "" if limit.hard == limit.soft else f" (may be raised to {_number(limit.hard)})"
    return Finding("open files", f"{_number(limit.soft)} a process{hard}", judgement, remedy, asdict(limit))


def decoding_findings(decoding: Decoding) -> tuple[Finding, ...]:
    """By Pillow, as torchvision's datasets do it, and by Headrace if it is installed."""
    details = {key: value for key, value in asdict(decoding).items() if not key.startswith("headrace")}
    shape = f"{decoding.width} × {decoding.height} JPEGs"
    value, remedy = f"{decoding.pillow_per_core:,.0f} {shape} per second and core", ""
    judgement: Judgement = "good"
    if decoding.pillow_turbo is None:
        judgement = "bad"
        remedy = "pip install --force-reinstall pillow: this one lacks libjpeg-turbo, 2 to 6 times as fast."
    elif decoding.pillow_per_core < SLOW_CORE:
        judgement = "note"
        remedy = (
            f"Below {SLOW_CORE:.0f}, a core is shared, throttled or emulated: compare on another machine."
        )
    pillow = Finding("Pillow", value, judgement, remedy, details)
    if decoding.headrace_missing:
        return (pillow, Finding("Headrace", "no usable native library", "bad", decoding.headrace_missing))
    rate = decoding.headrace_per_core
    if rate is None:
        return (pillow,)  # it isn't installed
    details = {"per_core": rate}
    return (pillow, Finding("Headrace", f"{rate:,.0f} per second and core", "good", details=details))


def _number(limit: int | None) -> str:
    return "unlimited" if limit is None else f"{limit:,}"


def torch_finding(build: TorchBuild, gpus: int) -> Finding:
    """Bad if there is a GPU that torch doesn't reach.

    Args:
        build: the installed torch.
        gpus: number of GPUs that NVML knows.
    """
    name, details = "torch", {**asdict(build), "gpus": gpus}
    if build.accelerator:
        value = f"{build.version}; reaches {build.devices} of kind {build.accelerator}"
        if build.accelerator == "cuda" and build.devices < gpus:
            by = f"CUDA_VISIBLE_DEVICES={build.visible}" if build.visible is not None else "something"
            remedy = f"The machine has {gpus} GPUs: {by} hides the others."
            return Finding(name, value, "note", remedy, details)
        return Finding(name, value, "good", details=details)
    if not gpus:
        why = build.reason or "no GPU"
        remedy = "If this machine has a GPU: install its driver; in a container, docker run --gpus all."
        return Finding(name, f"{build.version}; {why}", "note", remedy, details)
    if build.visible is not None and build.visible.strip() in ("", "-1", "NoDevFiles"):
        remedy = f"unset CUDA_VISIBLE_DEVICES: it is {build.visible!r}, which hides all GPUs."
    elif build.cuda is None:
        remedy = "This torch was built without CUDA: install one with it, as https://pytorch.org says."
    else:
        remedy = build.reason or "torch says no reason: python -c 'import torch; torch.cuda.init()'"
    return Finding(name, f"{build.version}; reaches no GPU", "bad", remedy, details)


def examine(machine: Machine) -> Checkup:
    """The checkup of what `measure.survey` measured."""
    cores, worth, decoding = machine.cores.usable, machine.cores.worth, machine.decoding
    of_cores = (
        cores_finding(machine.cores),
        memory_finding(machine.memory, cores),
        shared_memory_finding(machine.shared, cores),
        files_finding(machine.files, cores),
    )
    sections = [(machine.cores.processor, of_cores), ("decoding", decoding_findings(decoding))]
    for one in machine.storages:
        sections.append((str(one.path), storage_findings(one, decoding, worth, machine.memory.available)))
    sections.append(("torch and GPU", (torch_finding(machine.torch, machine.gpus),)))
    return Checkup("machine", tuple(sections))
