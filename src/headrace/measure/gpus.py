"""How busy this machine's GPUs are, as NVML says; needs the package nvidia-ml-py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuLook:
    """One GPU, at one moment.

    Attributes:
        index: as NVML and nvidia-smi count them.
        name: its model.
        busy: 0 to 1: of the last moments (1/6 s to 1 s), how long some kernel ran.
        memory_used, memory_total: bytes, of all processes.
        pids: processes that compute on it, as far as NVML tells; inside a container often none.
    """

    index: int
    name: str
    busy: float
    memory_used: int
    memory_total: int
    pids: tuple[int, ...]


def gpus() -> tuple[tuple[GpuLook, ...], str]:
    """All of them, and why none is known where none is."""
    try:
        import pynvml
    except ImportError:
        return (), "not known without nvidia-ml-py: pip install 'headrace[gpu]'"
    try:
        pynvml.nvmlInit()
        try:
            return tuple(_look(index) for index in range(pynvml.nvmlDeviceGetCount())), "none"
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return (), f"NVML: {error}"


def _look(index: int) -> GpuLook:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    name = pynvml.nvmlDeviceGetName(handle)
    return GpuLook(
        index=index,
        name=name if isinstance(name, str) else name.decode(),
        busy=pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        memory_used=int(memory.used),
        memory_total=int(memory.total),
        pids=tuple(process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    )
