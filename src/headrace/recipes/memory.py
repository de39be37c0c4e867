"""What to do when a step doesn't fit in memory, with figures."""

from __future__ import annotations

import psutil
import torch
from torch import nn

import headrace
from headrace.recipes.config import Recipe


class OutOfMemory(headrace.HeadraceError):
    """A step didn't fit. The message says how much there is, what takes it, and what to change."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is an allocation that failed: the device's, or the CPU's, which torch doesn't tell
    apart from other RuntimeErrors."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def used_bytes(device: torch.device) -> int:
    """The most that torch's allocator took on `device` so far; on the CPU what the process has now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def total_bytes(device: torch.device) -> int:
    """Of `device`; the machine's for the CPU."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return int(psutil.virtual_memory().total)


def fixed_bytes(model: nn.Module, optimizer: str, *, ema: bool) -> int:
    """What training takes whatever the batch: weights, gradients, the optimizer's state, the average."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return weights * (2 + (2 if optimizer == "adamw" else 1) + int(ema))


def advice(
    error: BaseException, recipe: Recipe, model: nn.Module, device: torch.device, world_size: int
) -> str:
    """Says what was tried, what memory there is, and the remedies, cheapest first."""
    part = recipe.part_size(world_size)
    fixed = fixed_bytes(model, recipe.optimizer, ema=recipe.ema > 0)
    lines = [
        f"Out of memory on {device}: {part} pictures of {recipe.size}×{recipe.size} in one pass of"
        f" {recipe.arch} ({recipe.precision}).",
        f"  There are {_gb(total_bytes(device))}; weights, gradients, optimizer and average take"
        f" {_gb(fixed)}; the rest goes to activations, which grow with the pictures of a pass.",
        _reason(error),
        "What helps, cheapest first:",
    ]
    if recipe.precision == "fp32":
        lines.append(
            "  --precision bf16 (fp16 on devices without it): halves most activations, and is usually faster"
        )
    more = next((k for k in range(2, part + 1) if part % k == 0), None)
    if more is not None:
        lines.append(
            f"  --accumulate {recipe.accumulate * more}: {part // more} pictures a pass, the same batch of"
            f" {recipe.batch_size} for the optimizer"
        )
    if not recipe.checkpointing and not recipe.compile:
        lines.append(
            "  --checkpointing: keeps the inputs of blocks only; each step computes the forward pass twice"
        )
    half = recipe.batch_size // 2
    if half >= world_size * recipe.accumulate:
        lines.append(f"  --batch-size {half}: another training; the default learning rate follows it")
    lines.append("  a smaller --size, or a smaller --arch")
    if device.type == "cuda":
        lines.append("  nvidia-smi shows whether another process holds memory of this device")
    return "\n".join(lines)


def advice_before(error: BaseException, recipe: Recipe, device: torch.device) -> str:
    """The same where there isn't room for the model itself."""
    lines = [
        f"Out of memory on {device} before the first step: {recipe.arch} doesn't fit into what is free of"
        f" {_gb(total_bytes(device))}.",
        _reason(error),
        "What helps: another process may hold memory"
        + (" of this device, as nvidia-smi shows;" if device.type == "cuda" else ", as top shows;")
        + (" --ema 0;" if recipe.ema > 0 else "")
        + " a smaller --arch.",
    ]
    return "\n".join(lines)


def _reason(error: BaseException) -> str:
    return f"  {str(error).splitlines()[0][:300] if str(error) else type(error).__name__}"


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"
