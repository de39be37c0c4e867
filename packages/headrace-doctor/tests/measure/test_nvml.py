"""What NVML says, and how it fails, on a stand-in that answers like nvidia-ml-py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_doctor.measure.nvml import Gpu, ask, gpus


class NVMLError(Exception):
    pass


# Of two GPUs; of the machine, where there is one answer.
ANSWERS: dict[str, tuple[Any, ...]] = {
    "nvmlDeviceGetCount": (2,),
    "nvmlDeviceGetMemoryInfo": (SimpleNamespace(total=150, used=7),) * 2,
    "nvmlDeviceGetUtilizationRates": (SimpleNamespace(gpu=25), SimpleNamespace(gpu=50)),
    "nvmlDeviceGetComputeRunningProcesses": ([SimpleNamespace(pid=42)], []),
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
    assert ask(nvml) == (Gpu(7, 0.25, (42,)), Gpu(7, 0.5, ()))
    assert not nvml.running


def test_what_a_gpu_does_not_tell_is_nothing() -> None:
    silent = (
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetComputeRunningProcesses",
    )
    assert ask(Nvml(silent=silent))[0] == Gpu(0, 0.0, ())


def test_without_a_driver_or_the_library_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(Nvml(driver=False)) == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus() == ()


def test_a_driver_that_fails_later_is_let_go() -> None:
    nvml = Nvml(silent=("nvmlDeviceGetCount",))
    assert ask(nvml) == ()
    assert not nvml.running


def test_the_stand_in_has_no_name_that_the_library_lacks() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = [*ANSWERS, *(name for name in vars(Nvml) if name.startswith(("nvml", "NVML")))]
    assert [name for name in names if not hasattr(pynvml, name)] == []
