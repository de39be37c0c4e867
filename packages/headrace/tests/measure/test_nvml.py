"""What NVML says, and how it fails, on a stand-in that answers like nvidia-ml-py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.measure.nvml import Gpu, Gpus, Link, ask, gpus


class NVMLError(Exception):
    pass


# Of two GPUs; of the machine, where there is one answer.
ANSWERS: dict[str, tuple[Any, ...]] = {
    "nvmlSystemGetDriverVersion": ("580.65.06",),
    "nvmlSystemGetCudaDriverVersion_v2": (13020,),
    "nvmlDeviceGetCount": (2,),
    "nvmlDeviceGetName": ("NVIDIA H200", "Tesla T4"),
    "nvmlDeviceGetUUID": ("GPU-0", "GPU-1"),
    "nvmlDeviceGetMemoryInfo": (SimpleNamespace(total=150, used=7),) * 2,
    "nvmlDeviceGetUtilizationRates": (SimpleNamespace(gpu=25), SimpleNamespace(gpu=50)),
    "nvmlDeviceGetComputeRunningProcesses": ([SimpleNamespace(pid=42)], []),
    "nvmlDeviceGetCurrPcieLinkGeneration": (5, 1),
    "nvmlDeviceGetCurrPcieLinkWidth": (16, 8),
    "nvmlDeviceGetMaxPcieLinkGeneration": (5, 3),
    "nvmlDeviceGetMaxPcieLinkWidth": (16, 16),
}


class Nvml:
    """Answers as nvidia-ml-py does; `silent`: functions that aren't supported."""

    NVMLError = NVMLError

    def __init__(self, *, silent: tuple[str, ...] = (), driver: bool = True) -> None:
        self.silent = silent
        self.driver = driver
        self.running = False

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.running = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.running = False

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(handle: int = 0, *arguments: int) -> Any:
            assert self.running
            if name in self.silent:
                raise NVMLError("Not Supported")
            return ANSWERS[name][handle]

        return answer


def test_each_gpu_with_its_own_figures() -> None:
    nvml = Nvml()
    assert ask(nvml) == Gpus(
        driver="580.65.06",
        cuda=(13, 2),
        gpus=(
            Gpu(0, "NVIDIA H200", "GPU-0", 150, 7, 0.25, (42,), Link(5, 16), Link(5, 16)),
            Gpu(1, "Tesla T4", "GPU-1", 150, 7, 0.5, (), Link(1, 8), Link(3, 16)),
        ),
    )
    assert not nvml.running


def test_what_a_gpu_does_not_tell_is_none() -> None:
    silent = (
        "nvmlDeviceGetMaxPcieLinkWidth",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetComputeRunningProcesses",
    )
    found = ask(Nvml(silent=silent)).gpus[0]
    assert found == Gpu(0, "NVIDIA H200", "GPU-0", 0, 0, 0.0, (), Link(5, 16))


def test_without_a_driver_the_reason_is_kept() -> None:
    assert ask(Nvml(driver=False)) == Gpus(missing="no NVIDIA driver: Driver Not Loaded")


def test_a_driver_that_fails_later_is_let_go() -> None:
    nvml = Nvml(silent=("nvmlDeviceGetCount",))
    assert ask(nvml) == Gpus(missing="NVML can't tell: Not Supported")
    assert not nvml.running


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus().missing == "nvidia-ml-py is not installed: pip install 'headrace[gpu]'"


def test_the_stand_in_has_no_name_that_the_library_lacks() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = [*ANSWERS, *(name for name in vars(Nvml) if name.startswith(("nvml", "NVML")))]
    assert [name for name in names if not hasattr(pynvml, name)] == []
