"""Finds the device that is meant, and checks that it is there."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from headrace import _torch_compat
from headrace.errors import ConfigError

CPU = torch.device("cpu")


def check_device(device: str | torch.device | None) -> torch.device:
    """The device that `device` names, or the CPU for None. An accelerator named without an index stays so.
    Raises ConfigError if torch knows no such device, or this machine or process hasn't got it."""
    try:
        asked = CPU if device is None else torch.device(device)
    except (RuntimeError, TypeError):
        raise ConfigError(
            f"device ({device!r}) isn't one that torch knows: name it as in 'cuda', 'cuda:0' or 'cpu'."
        ) from None
    if asked.type == "cpu":
        return CPU
    kind, count = _accelerators()
    if asked.type != kind or (asked.index or 0) >= count:
        there = ", ".join(f"{kind}:{i}" for i in range(count)) or "none besides the CPU"
        raise ConfigError(
            f"device ({str(asked)!r}) isn't there; this process has {there}. Name one that is, or leave"
            " device out for batches on the CPU."
        )
    if _torch_compat.was_forked_in_use(_module(asked)):
        raise ConfigError(
            f"device ({str(asked)!r}) can't be used in this process: it was forked from one that had used it"
            " already. Start it by spawn: torch.multiprocessing.get_context('spawn')."
        )
    return asked


def resolve_device(device: str | torch.device | None) -> torch.device:
    """`check_device`, an accelerator without an index being the one that is current in this thread."""
    asked = check_device(device)
    if asked.type == "cpu" or asked.index is not None:
        return asked
    return torch.device(asked.type, torch.accelerator.current_device_index())


@cache
def pinning_helps() -> bool:
    """Returns whether there is an accelerator to whose own memory page-locked memory is copied faster.

    Asks the driver once, which takes as long as the rest of what creates a loader."""
    return _accelerators()[1] > 0


def _accelerators() -> tuple[str, int]:
    """The kind of accelerator that this torch is built for, and how many of it there are."""
    built = torch.accelerator.current_accelerator()
    # The module's count, unlike torch.accelerator's, needs no driver, and leaves CUDA usable after a fork.
    return ("", 0) if built is None else (built.type, int(_module(built).device_count()))


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
