"""What to do when a step doesn't fit in memory, with figures."""

from __future__ import annotations

import os

import torch
from torch import nn

import headrace
from headrace.recipes.config import Recipe


class OutOfMemory(headrace.HeadraceError):
    """A step didn't fit. The message says how much memory there is, what takes it, and what to change."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed; torch's own on the CPU is a RuntimeError like any other."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "DefaultCPUAllocator" in str(error)


def advice(
    error: BaseException, recipe: Recipe, device: torch.device, world_size: int, model: nn.Module | None
) -> str:
    """What failed, how much memory there is, what takes it, and what helps, cheapest first; without a
    `model`, that itself didn't fit."""
    reason = str(error).partition("\n")[0][:300] or type(error).__name__
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device.type == "cuda":
        total = int(torch.cuda.mem_get_info(device)[1])
    if model is None:
        return (
            f"Out of memory on {device} before the first step: {recipe.arch} doesn't fit into what is free of"
            f" {total / 1e9:.1f} GB.\n  {reason}\nWhat helps: --ema 0; a smaller --arch; ending other"
            " processes that use the memory."
        )
    part, half = recipe.part_size(world_size), recipe.batch_size // 2
    copies = 2 + (2 if recipe.optimizer == "adamw" else 1) + int(recipe.ema > 0)
    fixed = copies * sum(p.numel() * p.element_size() for p in model.parameters())
    lines = [
        f"Out of memory on {device}: {part} images of {recipe.size}×{recipe.size} in one pass of"
        f" {recipe.arch} ({recipe.precision}).",
        f"  There are {total / 1e9:.1f} GB; weights, gradients, optimizer and average take"
        f" {fixed / 1e9:.1f} GB; the rest goes to activations, which grow with the images of a pass.",
        f"  {reason}",
        "What helps, cheapest first:",
    ]
    if recipe.precision == "fp32":
        lines.append("  --precision bf16: halves most activations, and is usually faster")
    if part % 2 == 0:
        lines.append(f"  --accumulate {2 * recipe.accumulate}: {part // 2} images per pass, the same batch")
    if not recipe.checkpointing and not recipe.compile:
        lines.append("  --checkpointing: keeps the inputs of blocks only, and computes the rest twice")
    lines.append(f"  --batch-size {half}: another training; the default learning rate follows it")
    lines.append("  a smaller --size or --arch; ending other processes that use the memory")
    return "\n".join(lines)
