"""The load of GPUs, by NVML: `pip install "headrace-doctor[gpu]"`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple


class Gpu(NamedTuple):
    """One GPU at one moment.

    Attributes:
        memory_used: bytes, of all processes.
        busy: share of the last moments (1/6 s to 1 s) in which some kernel ran, 0 to 1; 0 if unknown.
        pids: processes that compute on it, as far as NVML reports them; inside a container often none.
    """

    memory_used: int = 0
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
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        try:
            return tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        finally:
            nvml.nvmlShutdown()
    return ()


def _gpu(nvml: Any, index: int) -> Gpu:
    handle, gpu = nvml.nvmlDeviceGetHandleByIndex(index), Gpu()
    # A GPU, or its driver, may lack any of them.
    with suppress(nvml.NVMLError):
        gpu = gpu._replace(memory_used=int(nvml.nvmlDeviceGetMemoryInfo(handle).used))
    with suppress(nvml.NVMLError):
        gpu = gpu._replace(busy=nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
    with suppress(nvml.NVMLError):
        gpu = gpu._replace(pids=tuple(one.pid for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)))
    return gpu
