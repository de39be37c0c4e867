"""GPUs and their driver, by NVML: `pip install "headrace[gpu]"`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Of nvml.h, nvmlClocksEventReason*: why clocks are lower than they could be. Idle (1) is left out.
CLOCK_REASONS = {
    0x2: "clocks set by the user",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "kept in step with other GPUs",
    0x20: "too hot (driver)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}


@dataclass(frozen=True)
class Link:
    """A PCIe connection: generation and number of lanes."""

    generation: int
    width: int


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: its model.
        uuid: "GPU-…", by which torch's order and NVML's are matched.
        memory: bytes.
        memory_used: bytes, by all processes.
        link: now; idle GPUs lower the generation.
        link_most: what this GPU can have in this machine; None: not told (MIG, virtual GPUs, NVLink only).
        clock_reasons: bits of `CLOCK_REASONS`.
        temperature: °C.
    """

    name: str
    uuid: str
    memory: int
    memory_used: int
    link: Link | None
    link_most: Link | None
    clock_reasons: int | None
    temperature: int | None


@dataclass(frozen=True)
class Accelerators:
    """What NVML tells.

    Attributes:
        missing: why it tells nothing: "" where it does.
        driver: its version, "580.65.06".
        cuda: the newest CUDA that the driver runs: (13, 0).
        gpus: in NVML's order, which is PCI order; CUDA_VISIBLE_DEVICES doesn't matter here.
    """

    missing: str = ""
    driver: str = ""
    cuda: tuple[int, int] | None = None
    gpus: tuple[Gpu, ...] = ()


def accelerators() -> Accelerators:
    """What NVML tells of this machine's GPUs; never an exception."""
    try:
        import pynvml
    except ImportError:
        return Accelerators(missing='nvidia-ml-py is not installed: pip install "headrace[gpu]"')
    return ask(pynvml)


def ask(nvml: Any) -> Accelerators:
    """The same of `nvml`, the module pynvml or one that answers like it."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Accelerators(missing=f"no NVIDIA driver: {error}")
    try:
        version = nvml.nvmlSystemGetCudaDriverVersion_v2()  # 13020 is 13.2
        return Accelerators(
            driver=_text(nvml.nvmlSystemGetDriverVersion()),
            cuda=(version // 1000, version % 1000 // 10),
            gpus=tuple(
                _gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(nvml.nvmlDeviceGetCount())
            ),
        )
    except nvml.NVMLError as error:
        return Accelerators(missing=f"NVML can't tell: {error}")
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> Gpu:
    def tell(function: Callable[..., Any], *arguments: Any) -> Any:
        """None where this GPU, or this driver, doesn't tell."""
        try:
            return function(handle, *arguments)
        except nvml.NVMLError:
            return None

    def link(generation: Callable[..., Any], width: Callable[..., Any]) -> Link | None:
        found = tell(generation), tell(width)
        return Link(*found) if all(found) else None  # 0: no PCIe

    memory = tell(nvml.nvmlDeviceGetMemoryInfo)
    return Gpu(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        memory=memory.total if memory else 0,
        memory_used=memory.used if memory else 0,
        link=link(nvml.nvmlDeviceGetCurrPcieLinkGeneration, nvml.nvmlDeviceGetCurrPcieLinkWidth),
        link_most=link(nvml.nvmlDeviceGetMaxPcieLinkGeneration, nvml.nvmlDeviceGetMaxPcieLinkWidth),
        # The name of before 2023, which all versions of the library have.
        clock_reasons=tell(nvml.nvmlDeviceGetCurrentClocksThrottleReasons),
        temperature=tell(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
    )


def _text(name: str | bytes) -> str:
    """Bytes in versions of the library before 11.515."""
    return name if isinstance(name, str) else name.decode()
