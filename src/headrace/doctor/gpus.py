"""Opinions on GPUs, their connection, and whether torch reaches them."""

from __future__ import annotations

from headrace.doctor.records import Finding, Judgement
from headrace.errors import size
from headrace.measure.nvml import CLOCK_REASONS, Gpu, Gpus, Link
from headrace.measure.survey import Copies, TorchBuild

# Bytes per second of a lane, by PCIe generation, after line coding (PCI-SIG: 2.5, 5, 8, 16, 32, 64 GT/s).
LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# Pinned copies reach 80 % and more of it; below half of it something is wrong: another NUMA node, an IOMMU, a
# slot shared with other devices.
LEAST_OF_LINK = 0.5
# The first driver that runs each major version of CUDA, with every minor version of it
# (NVIDIA, CUDA Compatibility, "Minor Version Compatibility").
DRIVERS = {11: 450, 12: 525, 13: 580}
# Bits of CLOCK_REASONS that point at heat or power supply, not at a setting.
FAULTS = 0x8 | 0x20 | 0x40 | 0x80


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
        findings = [link_finding(gpu), clocks_finding(gpu)]
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
    details = {
        "generation": now.generation,
        "width": now.width,
        "generation_most": most.generation,
        "width_most": most.width,
    }
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


def clocks_finding(gpu: Gpu) -> Finding:
    """Heat and power supply are bad, limits that somebody set a note."""
    name = "clocks"
    if gpu.clock_reasons is None:
        return Finding(name, "not told", "unknown")
    reasons = [text for bit, text in CLOCK_REASONS.items() if gpu.clock_reasons & bit]
    warm = f"{gpu.temperature} °C" if gpu.temperature is not None else ""
    details = {"reasons": reasons, "temperature": gpu.temperature}
    if not reasons:
        return Finding(name, ", ".join(part for part in ("not throttled", warm) if part), "good", "", details)
    value = f"lowered: {', '.join(reasons)}" + (f"; {warm}" if warm else "")
    if gpu.clock_reasons & FAULTS:
        remedy = "See to its cooling and power supply: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER."
        return Finding(name, value, "bad", remedy, details)
    return Finding(name, value, "note", "Set by somebody: nvidia-smi -q -d CLOCK,POWER.", details)


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
