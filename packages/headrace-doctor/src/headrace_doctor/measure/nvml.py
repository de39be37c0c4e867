"""How busy GPUs are, by NVML: `pip install "headrace[gpu]"`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One GPU at one moment.

    Attributes:
        memory_used: bytes, of all processes.
        busy: share of the last moments (1/6 s to 1 s) in which some kernel ran, 0 to 1; 0 if unknown.
        pids: processes that compute on it, as far as NVML tells; inside a container often none.
    """

    memory_used: int
    busy: float = 0.0
    pids: tuple[int, ...] = ()


def gpus() -> tuple[Gpu, ...]:
    """This machine's GPUs, or none if NVML can't be asked; never an exception."""
    try:
        import pynvml
    except ImportError:
        return ()
    return ask(pynvml)


def ask(nvml: Any) -> tuple[Gpu, ...]:
    """The same of `nvml`, the module pynvml or one with its functions."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        return tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError:
        return ()
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def tell(function: Callable[..., Any]) -> Any:
        """None if this GPU, or this driver, doesn't tell."""
        try:
            return function(handle)
        except nvml.NVMLError:
            return None

    memory, rates = tell(nvml.nvmlDeviceGetMemoryInfo), tell(nvml.nvmlDeviceGetUtilizationRates)
    return Gpu(
        memory_used=int(memory.used) if memory else 0,
        busy=rates.gpu / 100 if rates else 0.0,
        pids=tuple(one.pid for one in tell(nvml.nvmlDeviceGetComputeRunningProcesses) or ()),
    )
