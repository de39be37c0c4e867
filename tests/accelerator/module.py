"""`torch.simulated`: what torch asks of an accelerator's module, and how the accelerator is to behave."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

COUNT = 2
CAPACITY = 4 << 30

_ops = torch.ops.simulated


def configure(
    seed: int = 0, mean_delay: float = 0.0, copy_bytes_per_second: float = 0.0, forgetful: bool = False
) -> None:
    """Waits for all streams, then delays entries of streams by `mean_delay` seconds on average, at random.

    Args:
        seed: of the delays, the same for the same calls.
        mean_delay: over all streams; some are much quicker than others. 0 is no random delay.
        copy_bytes_per_second: to and from the device; 0 is no limit.
        forgetful: page-locked memory is used again as soon as it is freed, even if copies are queued that
            read it: as memory that others have locked, which torch's own allocator doesn't watch.
    """
    _ops.configure(seed, mean_delay, copy_bytes_per_second, forgetful)


def busy(seconds: float) -> None:
    """Keeps the current stream busy, as a kernel does."""
    _ops.busy(seconds)


def take_error() -> str:
    """The first error on a stream that nobody has seen yet, or ""."""
    return str(_ops.take_error())


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return COUNT


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device: int | torch.device) -> None:
    torch.accelerator.set_device_index(_index(device))


@contextmanager
def device(device: int | torch.device) -> Iterator[None]:
    before = current_device()
    set_device(device)
    try:
        yield
    finally:
        set_device(before)


def synchronize(device: int | torch.device | None = None) -> None:
    torch.accelerator.synchronize(_index(device))


def mem_get_info(device: int | torch.device | None = None) -> tuple[int, int]:
    return CAPACITY - int(_ops.used_bytes(_index(device))), CAPACITY


def max_memory_allocated(device: int | torch.device | None = None) -> int:
    return int(_ops.peak_bytes(_index(device), False))


def reset_peak_memory_stats(device: int | torch.device | None = None) -> None:
    _ops.peak_bytes(_index(device), True)


def get_device_name(device: int | torch.device | None = None) -> str:
    return "simulated accelerator"


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def manual_seed(seed: int) -> None:
    _ops.manual_seed(current_device(), _signed(seed))


def manual_seed_all(seed: int) -> None:
    for device in range(COUNT):
        _ops.manual_seed(device, _signed(seed))


def get_rng_state(device: int | str | torch.device = "simulated") -> torch.Tensor:
    state: torch.Tensor = _ops.get_rng_state(_index(device))
    return state


def set_rng_state(state: torch.Tensor, device: int | str | torch.device = "simulated") -> None:
    _ops.set_rng_state(_index(device), state)


def _lazy_init() -> None:
    """Nothing is left to do. Without this, torch 2.7 takes no device for initialized, and waits for none."""


def _is_in_bad_fork() -> bool:
    return bool(_ops.was_forked_in_use())


def _index(device: int | str | torch.device | None) -> int:
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return current_device() if index is None else index


def _signed(seed: int) -> int:
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _autocast(names: tuple[str, ...], dtype: Callable[[], torch.dtype]) -> None:
    """Registers what autocast does before the operations `names`: it casts floating-point tensors."""

    def cast(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type != "simulated":
            return value
        return value.to(dtype()) if value.is_floating_point() and value.itemsize < 8 else value

    def register(name: str) -> None:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, packet), overload or "default")

        def kernel(*arguments: Any, **options: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
                return op(*map(cast, arguments), **{name: cast(value) for name, value in options.items()})

        _library.impl(name, kernel)

    for name in names:
        register(name)


_AUTOCAST = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, "AutocastPrivateUse1"))  # noqa: B009
_library = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
_autocast(("conv2d", "linear", "matmul", "mm", "addmm"), lambda: torch.get_autocast_dtype("simulated"))
_autocast(
    ("cross_entropy_loss", "nll_loss", "log_softmax.int", "softmax.int", "group_norm", "layer_norm"),
    lambda: torch.float32,
)


@atexit.register
def _finish() -> None:
    """Lets no stream run anything while the interpreter and its libraries end."""
    if not _is_in_bad_fork():
        configure()
