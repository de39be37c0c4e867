"""Which torch this is, and whether it reaches a device."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch.

    Attributes:
        version: "2.15.0+cu132".
        cuda: CUDA that it was built for: (13, 2); None: a build without CUDA.
        hip: ROCm that it was built for; None: without.
        devices: accelerators that it reaches.
        accelerator: their kind: "cuda", "xpu", "mps"; "": none.
        reason: what torch says of why it reaches none; "" where it does, or says nothing.
        visible: CUDA_VISIBLE_DEVICES; None: not set.
    """

    version: str
    cuda: tuple[int, int] | None
    hip: str | None
    devices: int
    accelerator: str
    reason: str = ""
    visible: str | None = None


def torch_build() -> TorchBuild:
    """Imports torch and asks it; a CUDA context is made only to learn why there is no device."""
    import torch

    # It says by warnings why it finds no device.
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = torch.accelerator.is_available()
    reason = "; ".join(str(warning.message) for warning in said)
    kind = torch.accelerator.current_accelerator() if available else None
    if kind is None and not reason and torch.version.cuda is not None:
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except (RuntimeError, AssertionError) as error:
            reason = str(error)
    return TorchBuild(
        version=torch.__version__,
        cuda=_parse(torch.version.cuda),
        hip=torch.version.hip,
        devices=torch.accelerator.device_count() if kind is not None else 0,
        accelerator="" if kind is None else kind.type,
        reason=reason.partition("\n")[0],
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _parse(version: str | None) -> tuple[int, int] | None:
    if version is None:
        return None
    major, minor = version.split(".")[:2]
    return int(major), int(minor)
