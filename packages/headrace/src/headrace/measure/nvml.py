"""GPUs and their driver, by NVML: `pip install "headrace[gpu]"`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Link(NamedTuple):
    """A PCIe connection: generation and number of lanes."""

    generation: int
    width: int


@dataclass(frozen=True)
class Gpu:
    """One GPU at one moment.

    Attributes:
        index: its number for NVML and nvidia-smi, which count in PCI order, CUDA_VISIBLE_DEVICES or not.
        name: its model.
        uuid: "GPU-…", by which torch's order and NVML's are matched.
        memory, memory_used: bytes, of all processes.
        busy: share of the last moments (1/6 s to 1 s) in which some kernel ran, 0 to 1; 0 if unknown.
        pids: processes that compute on it, as far as NVML tells; inside a container often none.
        link: PCIe connection now; idle GPUs lower the generation.
        link_most: the best connection that this GPU can have in this machine; None: unknown (MIG, virtual
            GPUs, NVLink only).
    """

    index: int
    name: str
    uuid: str
    memory: int
    memory_used: int
    busy: float = 0.0
    pids: tuple[int, ...] = ()
    link: Link | None = None
    link_most: Link | None = None


@dataclass(frozen=True)
class Gpus:
    """The GPUs that NVML knows.

    Attributes:
        missing: why NVML can't be asked; "" where it can.
        driver: the driver's version, "580.65.06"; "" where NVML can't be asked.
        cuda: the newest CUDA that the driver runs: (13, 0); None where NVML can't be asked.
        gpus: in NVML's order.
    """

    missing: str = ""
    driver: str = ""
    cuda: tuple[int, int] | None = None
    gpus: tuple[Gpu, ...] = ()


def gpus() -> Gpus:
    """This machine's GPUs; never an exception."""
    try:
        import pynvml
    except ImportError:
        return Gpus(missing="nvidia-ml-py is not installed: pip install 'headrace[gpu]'")
    return ask(pynvml)


def ask(nvml: Any) -> Gpus:
    """The same of `nvml`, the module pynvml or one with its functions."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Gpus(missing=f"no NVIDIA driver: {error}")
    try:
        version = nvml.nvmlSystemGetCudaDriverVersion_v2()  # 13020 is 13.2
        return Gpus(
            driver=nvml.nvmlSystemGetDriverVersion(),
            cuda=(version // 1000, version % 1000 // 10),
            gpus=tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())),
        )
    except nvml.NVMLError as error:
        return Gpus(missing=f"NVML can't tell: {error}")
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def tell(function: Callable[..., Any]) -> Any:
        """None where this GPU, or this driver, doesn't tell."""
        try:
            return function(handle)
        except nvml.NVMLError:
            return None

    def link(generation: Callable[..., Any], width: Callable[..., Any]) -> Link | None:
        found = tell(generation), tell(width)
        return Link(*found) if all(found) else None  # 0: no PCIe

    memory, rates = tell(nvml.nvmlDeviceGetMemoryInfo), tell(nvml.nvmlDeviceGetUtilizationRates)
    return Gpu(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        uuid=nvml.nvmlDeviceGetUUID(handle),
        memory=int(memory.total) if memory else 0,
        memory_used=int(memory.used) if memory else 0,
        busy=rates.gpu / 100 if rates else 0.0,
        pids=tuple(one.pid for one in tell(nvml.nvmlDeviceGetComputeRunningProcesses) or ()),
        link=link(nvml.nvmlDeviceGetCurrPcieLinkGeneration, nvml.nvmlDeviceGetCurrPcieLinkWidth),
        link_most=link(nvml.nvmlDeviceGetMaxPcieLinkGeneration, nvml.nvmlDeviceGetMaxPcieLinkWidth),
    )
