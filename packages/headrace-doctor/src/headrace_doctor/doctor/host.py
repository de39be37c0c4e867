"""The checkup of a machine: cores, memory, limits, decoding, storage, and whether torch reaches the GPUs."""

from __future__ import annotations

import math
from dataclasses import asdict

from headrace_doctor.doctor.records import Checkup, Finding, Judgement
from headrace_doctor.errors import duration, size
from headrace_doctor.machine import FileLimit, Space
from headrace_doctor.measure.storage import IN_FLIGHT, RANDOM_READ, Mount, Rates, Storage
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
# Less is read in no time, mostly from caches, and says nothing about an epoch.
LEAST_BYTES = 8_000_000
# Share of the available memory that the files of a data set may take and stay cached until the next epoch.
FITS = 0.5
# Mean size in bytes of files that are containers of many samples (tar shards, LMDB): packing would not help.
LARGE_FILE = 8 << 20
# Failures that are listed.
NAMED = 3
IN_VOLUME = "docker run -v /path/of/data:/data"
COPY_HERE = "Copy the data to a local disk before the training, or pack it into large files: headrace pack."
COPY_ELSEWHERE = "Copy the data to a faster disk before the training."
PLACES: dict[str, tuple[str, Judgement, str]] = {
    "local": ("", "good", ""),
    "memory": ("in memory", "good", ""),
    "network": ("over the network", "note", f"Each open and read waits for the server. {COPY_HERE}"),
    "host": ("shared by the host", "note", f"Each open and read is a request to the host. {COPY_HERE}"),
    "fuse": ("by a program, FUSE", "note", f"Each open and read goes through another process. {COPY_HERE}"),
    "layers": ("the container's layers", "note", f"Data belongs into a volume: {IN_VOLUME}."),
}


def cores_finding(cores: Cores) -> Finding:
    """A note if fewer cores are usable than visible, or other processes use them."""
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
    """Bad if a forked worker per core and its batches don't fit, a note if spawned ones don't."""
    batches = cores * PREFETCH * BATCH_BYTES
    forked, spawned = cores * FORKED_WORKER + batches, cores * SPAWNED_WORKER + batches
    value = f"{size(memory.available)} available of {size(memory.limit or memory.total)}"
    if memory.limit is not None:
        value += f" (cgroup limit; the host has {size(memory.total)})"
    judgement, remedy = _judged(memory.available, forked, spawned), ""
    if judgement == "bad":
        remedy = f"{cores} workers with their batches need {size(forked)}: fewer workers, or more memory."
    elif judgement == "note":
        remedy = (
            f"{cores} workers started by spawn or forkserver need {size(spawned)}:"
            ' multiprocessing_context="fork", or fewer workers.'
        )
    return Finding("memory", value, judgement, remedy, asdict(memory))


def shared_memory_finding(shared: Space | None, cores: int) -> Finding:
    """Bad if the batches of a worker per core don't fit, a note if those of two per core don't.

    A worker that finds no room there dies of a bus error.
    """
    name = "shared memory"
    if shared is None:
        remedy = "mount -t tmpfs tmpfs /dev/shm, or num_workers=0: workers need it."
        return Finding(name, "no /dev/shm", "bad", remedy)
    one, two = cores * PREFETCH * BATCH_BYTES, 2 * cores * PREFETCH * BATCH_BYTES
    judgement, remedy = _judged(shared.free, one, two), ""
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
    """Bad if a worker per core needs more files than may be open, a note if two per core do.

    Beyond it torch says "Too many open files", or "received 0 items of ancdata".
    """
    one, two = (OWN_FILES + workers * FILES_PER_WORKER for workers in (cores, 2 * cores))
    judgement, remedy = _judged(math.inf if limit.soft is None else limit.soft, one, two), ""
    if judgement != "good":
        wanted = max(65536, two)
        remedy = f"ulimit -n {wanted}"
        if limit.hard is not None and limit.hard < wanted:
            remedy = f"docker run --ulimit nofile={wanted}, or nofile in /etc/security/limits.conf"
            remedy += f" (the hard limit, {limit.hard:,}, has to go up too)"
        remedy += f", before the training starts: {2 * cores} workers need {two:,}."
    hard = "" if limit.hard == limit.soft else f" (may be raised to {_number(limit.hard)})"
    return Finding("open files", f"{_number(limit.soft)} a process{hard}", judgement, remedy, asdict(limit))


def decoding_findings(decoding: Decoding) -> tuple[Finding, ...]:
    """The rates of Pillow, which torchvision's datasets use, and of Headrace if it is installed."""
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
        gpus: number of NVIDIA GPUs that the system has device files for.
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


def storage_findings(
    storage: Storage, decoding: Decoding, cores: float, available: int
) -> tuple[Finding, ...]:
    """The file system, the number of files, and how fast they are read.

    Random reads are bad if many in flight deliver fewer bytes than `cores` cores decode with Pillow, a note
    if they deliver fewer than those decode with Headrace, or if the files fit into the available memory.
    """
    findings = [_mount_finding(storage.mount), _files_finding(storage, available)]
    if storage.rates is None:
        return tuple(findings)
    if storage.rates.failures:
        failures = storage.rates.failures
        more = f", and {len(failures) - NAMED:,} more" if len(failures) > NAMED else ""
        value, details = ", ".join(failures[:NAMED]) + more, {"failures": list(failures)}
        remedy = "Permission denied: chmod -R a+rX the folder. Input/output error: the disk or server fails."
        findings.append(Finding("unreadable files", value, "bad", remedy, details))
    if storage.bytes < LEAST_BYTES:
        text = f"only {size(storage.bytes)} to read: too little to measure"
        findings.append(Finding("reads", text, "unknown", "Use the folder of the whole data set."))
    else:
        findings.append(_reads_finding(storage, storage.rates, decoding, cores, available))
    return tuple(findings)


def _mount_finding(mount: Mount | None) -> Finding:
    if mount is None:
        return Finding("file system", "unknown", "unknown")
    where, judgement, remedy = PLACES[mount.place]
    value = f"{mount.kind} of {mount.source} at {mount.point}" + (f" ({where})" if where else "")
    return Finding("file system", value, judgement, remedy, {**asdict(mount), "point": str(mount.point)})


def _files_finding(storage: Storage, available: int) -> Finding:
    details = {"files": storage.files, "bytes": storage.bytes, "complete": storage.complete}
    if not storage.files:
        remedy = "Use the data set's own folder."
        return Finding("files", "none of 4 KiB or more", "unknown", remedy, details)
    value = f"{'' if storage.complete else 'more than '}{size(storage.bytes)} in {storage.files:,}"
    value += "; they fit into memory" if _fits(storage, available) else ""
    return Finding("files", value, "good", details=details)


def _reads_finding(
    storage: Storage, rates: Rates, decoding: Decoding, cores: float, available: int
) -> Finding:
    by_pillow = cores * decoding.pillow_per_core * decoding.image_bytes
    by_headrace = cores * (decoding.headrace_per_core or decoding.pillow_per_core) * decoding.image_bytes
    alone, parallel = rates.random, rates.parallel
    kind = "whole files" if storage.bytes / storage.files < RANDOM_READ else "128 KiB each"
    value = (
        f"{parallel.reads / parallel.seconds:,.0f}/s with {IN_FLIGHT} in flight"
        f" ({size(parallel.bytes_per_second)}/s, {kind}), {alone.reads / alone.seconds:,.0f}/s one at a time"
        f" ({duration(alone.seconds / max(1, alone.reads))} each)"
    )
    value += "" if rates.direct else "; the page cache was dropped by request, not bypassed"
    details = {
        "rates": asdict(rates),
        "pillow_bytes_per_second": by_pillow,
        "headrace_bytes_per_second": by_headrace,
    }
    judgement = _judged(parallel.bytes_per_second, by_pillow, by_headrace)
    if judgement == "good":
        return Finding("random reads", value, "good", details=details)
    decoder, most = ("Pillow", by_pillow) if judgement == "bad" else ("Headrace", by_headrace)
    remedy = f"{cores:g} cores decode {size(most)}/s with {decoder}: reads are the bottleneck."
    if judgement == "bad" and _fits(storage, available):
        remedy += " Only in the first epoch: the files fit into memory."
        return Finding("random reads", value, "note", remedy, details)
    remedy += f" {COPY_ELSEWHERE if storage.bytes / storage.files >= LARGE_FILE else COPY_HERE}"
    return Finding("random reads", value, judgement, remedy, details)


def _fits(storage: Storage, available: int) -> bool:
    """Returns whether all files stay in the page cache from one epoch to the next."""
    return storage.complete and storage.bytes <= FITS * available


def _judged(have: float, least: float, enough: float) -> Judgement:
    """Judges whether there is enough of something."""
    return "bad" if have < least else "note" if have < enough else "good"


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
