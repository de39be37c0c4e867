"""The checkup of a machine: cores, memory, limits, decoding, GPUs, and whether torch reaches them."""

from __future__ import annotations

from dataclasses import asdict

from headrace._machine import FileLimit, Space
from headrace.doctor.records import Checkup, Finding, Judgement
from headrace.doctor.storage import storage_findings
from headrace.errors import size
from headrace.measure.nvml import Gpu, Gpus, Link
from headrace.measure.survey import Copies, Cores, Decoding, Machine, Memory, TorchBuild

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
NO_SIMD = (
    "This processor reports no AVX2 or NEON, so scalar code is used. In a virtual machine, pass the host's"
    " processor through (-cpu host)."
)
# Two hyperthreads do 1.2 to 1.3 times the work of one, so busy cores should each reach 60 %.
TOGETHER = 0.5
# Bytes per second of a lane, by PCIe generation, after line coding (PCI-SIG: 2.5, 5, 8, 16, 32, 64 GT/s).
LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# Pinned copies reach 80 % and more of it; below half of it something is wrong: another NUMA node, an IOMMU, a
# slot shared with other devices.
LEAST_OF_LINK = 0.5
# The first driver that runs each major version of CUDA, with every minor version of it
# (NVIDIA, CUDA Compatibility, "Minor Version Compatibility").
DRIVERS = {11: 450, 12: 525, 13: 580}


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


def decoding_findings(decoding: Decoding, cores: float) -> tuple[Finding, ...]:
    """By Pillow, as torchvision's datasets do it; by Headrace on `cores`; what both are built with."""
    details = {key: value for key, value in asdict(decoding).items() if not key.startswith("native")}
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
    native, remedy = decoding.native, ""
    if native is None:
        return (pillow, Finding("Headrace", "no usable native library", "bad", decoding.native_missing))
    value = f"{native.per_core:,.0f} per second and core, {native.together:,.0f} by {cores:g} together"
    share = native.together / (native.per_core * cores)
    if share < TOGETHER:
        remedy = (
            f"Together the cores reach {share:.0%} of their rates alone: they are busy otherwise, or shared."
        )
    details = {**asdict(native), "cores": cores}
    ours = Finding("Headrace", value, "note" if remedy else "good", remedy, details)
    value = f"{native.simd_active} in use, of {', '.join(native.simd)}; libjpeg-turbo {native.libjpeg_turbo}"
    scalar = native.simd_active == "scalar"
    simd = Finding("SIMD", value, "note" if scalar else "good", NO_SIMD if scalar else "")
    return (pillow, ours, simd)


def _number(limit: int | None) -> str:
    return "unlimited" if limit is None else f"{limit:,}"


def gpu_sections(
    build: TorchBuild, known: Gpus, copies: tuple[Copies, ...], copies_failed: str
) -> tuple[tuple[str, tuple[Finding, ...]], ...]:
    """Sections: torch and its driver; each GPU."""
    first = [torch_finding(build, known)]
    if known.missing:
        # Without a GPU there is nothing that NVML could add.
        judgement: Judgement = "unknown" if build.accelerator else "note"
        first.append(Finding("GPUs by NVML", known.missing, judgement))
    by_uuid = {copy.uuid: copy for copy in copies}
    unmatched = [copy for copy in copies if copy.uuid not in {gpu.uuid for gpu in known.gpus}]
    first += [copies_finding(copy, None, f"copies to device {copy.device}") for copy in unmatched]
    if copies_failed:
        text = f"failed: {copies_failed}"
        first.append(Finding("copies", text, "unknown", "See nvidia-smi: is the device full, or in use?"))
    sections = [("torch and GPU", tuple(first))]
    for number, gpu in enumerate(known.gpus):
        findings = [link_finding(gpu)]
        if gpu.uuid in by_uuid:
            findings.append(copies_finding(by_uuid[gpu.uuid], gpu.link, "copies"))
        used = f"{size(gpu.memory_used)} of {size(gpu.memory)} in use"
        sections.append((f"GPU {number}: {gpu.name}, {used}", tuple(findings)))
    return tuple(sections)


def torch_finding(build: TorchBuild, known: Gpus) -> Finding:
    """Bad where there is a GPU that torch doesn't reach."""
    value = f"torch {build.version}"
    if known.cuda is not None:
        value += f"; driver {known.driver} runs CUDA {_dotted(known.cuda)}"
    details = {
        "torch": build.version,
        "torch_cuda": _dotted(build.cuda),
        "torch_hip": build.hip,
        "driver": known.driver,
        "driver_cuda": _dotted(known.cuda),
        "devices": build.devices,
        "gpus": len(known.gpus),
        "reason": build.reason,
    }
    name = "torch and driver"
    if build.accelerator:
        value += f"; reaches {build.devices} of kind {build.accelerator}"
        judgement, remedy = _reached(build, known)
        return Finding(name, value, judgement, remedy, details)
    if not known.gpus:
        why = f"; {build.reason}" if build.reason else "; no GPU"
        remedy = "If this machine has a GPU: install its driver; in a container, docker run --gpus all."
        return Finding(name, value + why, "note", remedy, details)
    return Finding(name, f"{value}; reaches no GPU", "bad", _why_unreached(build, known), details)


def _reached(build: TorchBuild, known: Gpus) -> tuple[Judgement, str]:
    if build.accelerator == "cuda" and 0 < build.devices < len(known.gpus):
        by = f"CUDA_VISIBLE_DEVICES={build.visible}" if build.visible is not None else "something"
        return "note", f"The machine has {len(known.gpus)} GPUs: {by} hides the others."
    if build.cuda and known.cuda and build.cuda > known.cuda:
        return (
            "note",
            f"torch was built for CUDA {_dotted(build.cuda)}. It runs on this older driver, but what is"
            " compiled while it runs (PTX) may not: update the driver.",
        )
    return "good", ""


def _why_unreached(build: TorchBuild, known: Gpus) -> str:
    driver = known.cuda
    if build.visible is not None and build.visible.strip() in ("", "-1", "NoDevFiles"):
        return f"unset CUDA_VISIBLE_DEVICES: it is {build.visible!r}, which hides all GPUs."
    if build.cuda is None:
        runs = f" (any cu{driver[0]}… wheel runs on this driver)" if driver else ""
        return f"This torch was built without CUDA: install one with it, as https://pytorch.org says{runs}."
    if driver is not None and build.cuda[0] > driver[0]:
        least = DRIVERS.get(build.cuda[0])
        newer = f"{least} or newer" if least else f"for CUDA {build.cuda[0]}"
        return (
            f"torch needs a driver for CUDA {build.cuda[0]}: update it ({newer}),"
            f" or install a torch for CUDA {driver[0]}, as https://pytorch.org says."
        )
    return build.reason or "torch says no reason: python -c 'import torch; torch.cuda.init()'"


def link_finding(gpu: Gpu) -> Finding:
    """Fewer lanes than both ends have are bad; a lower generation may be an idle GPU's: a note."""
    name = "PCIe"
    now, most = gpu.link, gpu.link_most
    if now is None or most is None:
        return Finding(name, "not told", "unknown")
    details = {**now._asdict(), **{f"{name}_most": value for name, value in most._asdict().items()}}
    value = f"generation {now.generation} × {now.width} now, {most.generation} × {most.width} at most"
    if now.width < most.width:
        remedy = (
            f"{now.width} of {most.width} lanes: reseat the card, use another slot, or see the firmware's"
            " setting for shared lanes (bifurcation)."
        )
        return Finding(name, value, "bad", remedy, details)
    if now.generation < most.generation:
        remedy = (
            "Idle GPUs slow their connection down, but this was read right after copying to it: compare the"
            " copies' rate; if it is low too, see the slot and the firmware's setting for its speed."
        )
        return Finding(name, value, "note", remedy, details)
    return Finding(name, value, "good", "", details)


def copies_finding(copies: Copies, link: Link | None, name: str) -> Finding:
    """Bad where pinned copies get less than half of what the connection carries."""
    value = f"{size(copies.pinned)}/s pinned, {size(copies.pageable)}/s pageable"
    details = {"pinned": copies.pinned, "pageable": copies.pageable}
    if link is None or link.generation not in LANE:
        return Finding(name, value, "note", "", details)
    carries = LANE[link.generation] * link.width
    if copies.pinned < LEAST_OF_LINK * carries:
        remedy = (
            f"The connection carries {size(carries)}/s. Run on the cores beside the GPU (nvidia-smi topo -m,"
            " numactl --cpunodebind); look for other copies at the same time."
        )
        return Finding(name, value, "bad", remedy, details)
    return Finding(name, f"{value}; the connection carries {size(carries)}/s", "good", "", details)


def _dotted(version: tuple[int, int] | None) -> str | None:
    return None if version is None else f"{version[0]}.{version[1]}"


def examine(machine: Machine) -> Checkup:
    """The checkup of what `headrace.measure.survey` measured."""
    cores, worth, decoding = machine.cores.usable, machine.cores.worth, machine.decoding
    of_cores = (
        cores_finding(machine.cores),
        memory_finding(machine.memory, cores),
        shared_memory_finding(machine.shared, cores),
        files_finding(machine.files, cores),
    )
    sections = [(machine.cores.processor, of_cores), ("decoding", decoding_findings(decoding, worth))]
    for one in machine.storages:
        sections.append((str(one.path), storage_findings(one, decoding, worth, machine.memory.available)))
    gpus = gpu_sections(machine.torch, machine.gpus, machine.copies, machine.copies_failed)
    return Checkup("machine", (*sections, *gpus))
