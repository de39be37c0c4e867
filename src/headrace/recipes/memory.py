"""What to do when a step doesn't fit in memory, with figures."""

from __future__ import annotations

import os
import resource

import torch
from torch import nn

import headrace
from headrace.recipes.config import Recipe


class OutOfMemory(headrace.HeadraceError):
    """A step didn't fit. The message says how much memory there is, what takes it, and what to change."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; torch's own on the CPU is a RuntimeError like any other."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)


def used_bytes(device: torch.device) -> int:
    """Most bytes that torch's allocator took on `device`; on the CPU, those of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def advice(
    error: BaseException, recipe: Recipe, device: torch.device, world_size: int, model: nn.Module | None
) -> str:
    """What was tried, what memory there is, and what helps, cheapest first.

    Args:
        model: None: the model itself didn't fit.
    """
    if device.type == "cuda":
        total, looks = int(torch.cuda.mem_get_info(device)[1]), "nvidia-smi"
    else:
        total, looks = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "top"
    reason = f"  {str(error).splitlines()[0][:300] if str(error) else type(error).__name__}"
    if model is None:
        return (
            f"Out of memory on {device} before the first step: {recipe.arch} doesn't fit into what is free of"
            f" {total / 1e9:.1f} GB.\n{reason}\nWhat helps: another process may hold memory, as {looks}"
            " shows;"
            f"{' --ema 0;' if recipe.ema > 0 else ''} a smaller --arch."
        )
    part = recipe.part_size(world_size)
    copies = 2 + (2 if recipe.optimizer == "adamw" else 1) + int(recipe.ema > 0)
    fixed = copies * sum(p.numel() * p.element_size() for p in model.parameters())
    lines = [
        f"Out of memory on {device}: {part} images of {recipe.size}×{recipe.size} in one pass of"
        f" {recipe.arch} ({recipe.precision}).",
        f"  There are {total / 1e9:.1f} GB; weights, gradients, optimizer and average take"
        f" {fixed / 1e9:.1f} GB; the rest goes to activations, which grow with the images of a pass.",
        reason,
        "What helps, cheapest first:",
    ]
    if recipe.precision == "fp32":
        lines.append("  --precision bf16: halves most activations, and is usually faster")
    more = next((k for k in range(2, part + 1) if part % k == 0), None)
    if more is not None:
        lines.append(
            f"  --accumulate {recipe.accumulate * more}: {part // more} images a pass, the same batch"
        )
    if not recipe.checkpointing and not recipe.compile:
        lines.append("  --checkpointing: keeps the inputs of blocks only, and computes the rest twice")
    half = recipe.batch_size // 2
    if half >= world_size * recipe.accumulate:
        lines.append(f"  --batch-size {half}: another training; the default learning rate follows it")
    lines.append(f"  a smaller --size or --arch; {looks} shows whether another process holds memory")
    return "\n".join(lines)
