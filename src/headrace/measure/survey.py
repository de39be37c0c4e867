"""All numbers about a machine that matter to feeding its GPUs."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import headrace._machine as machine
from headrace.errors import require
from headrace.measure.jpeg import Decoding, measure_decoding
from headrace.measure.nvml import Gpus, gpus
from headrace.measure.storage import Storage, measure_storage

# Seconds for which the machine is watched before it is made to work.
QUIET = 0.5
# A batch of 256 × 3 × 224 × 224 uint8 is 38.5 MB; beyond it the rate grows no more.
COPY_BYTES = 64 << 20
COPIES = 10


@dataclass(frozen=True)
class Cores:
    """How many there are.

    Attributes:
        processor: the model's name.
        host: what `os.cpu_count()` says.
        affinity: that this process may be put on.
        quota: cores' worth of time that the cgroup allows; None: no limit.
        usable: of all this, for workers and threads.
        busy: 0 to 1: of the host's cores, what was in use over half a second before anything was measured.
    """

    processor: str
    host: int
    affinity: int
    quota: float | None
    usable: int
    busy: float

    @property
    def worth(self) -> float:
        """Cores' worth of work: a quota may end within a core."""
        return self.usable if self.quota is None else min(self.usable, self.quota)


@dataclass(frozen=True)
class Memory:
    """Bytes: of the host, the cgroup's limit (None: none below the host's), and what can be taken now."""

    total: int
    limit: int | None
    available: int


@dataclass(frozen=True)
class Copies:
    """Bytes per second from the host to one device.

    Attributes:
        device: its index in torch.
        uuid: "GPU-…" as NVML names it; "": not told.
        pinned: from page-locked memory.
        pageable: from ordinary memory, which the driver copies to a pinned buffer first.
    """

    device: int
    uuid: str
    pinned: float
    pageable: float


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


@dataclass(frozen=True)
class Machine:
    """What was measured.

    Attributes:
        shared: /dev/shm; None: there is none.
        storages: one for each path that was asked for.
        copies: to each device that torch reaches.
        copies_failed: why there are none though there is a device; "" otherwise.
    """

    cores: Cores
    memory: Memory
    shared: machine.Space | None
    files: machine.FileLimit
    decoding: Decoding
    storages: tuple[Storage, ...]
    torch: TorchBuild
    gpus: Gpus
    copies: tuple[Copies, ...]
    copies_failed: str = ""


def survey(paths: Sequence[Path] = (), progress: Callable[[str], None] = lambda _: None) -> Machine:
    """Measures for about five seconds, and two for each path.

    Args:
        paths: files or folders whose storage is measured; only read.
        progress: called with what is being measured.

    Raises:
        OSError: one of the paths isn't there, or can't be listed.
    """
    progress("watching the processor")
    busy = require("psutil", "doctor").cpu_percent(interval=QUIET) / 100
    storages = []
    for path in paths:
        progress(f"reading {path}")
        storages.append(measure_storage(path))
    cores = Cores(
        processor=machine.processor_name(),
        host=os.cpu_count() or 1,
        affinity=machine.affine_cores(),
        quota=machine.cpu_quota(),
        usable=machine.usable_cores(),
        busy=busy,
    )
    memory = Memory(
        total=machine.total_memory(),
        limit=machine.memory_limit(),
        available=machine.available_memory(),
    )
    progress("decoding JPEGs")
    decoding = measure_decoding(cores.usable)
    progress("asking torch")
    build = torch_build()
    progress("copying to the device")
    copies, failed = _copies(build)
    return Machine(
        cores=cores,
        memory=memory,
        shared=machine.shared_memory(),
        files=machine.file_limit(),
        decoding=decoding,
        storages=tuple(storages),
        torch=build,
        # After the copies, as an idle GPU slows its PCIe connection down.
        gpus=gpus(),
        copies=copies,
        copies_failed=failed,
    )


def _copies(build: TorchBuild) -> tuple[tuple[Copies, ...], str]:
    try:
        return tuple(measure_copies(device) for device in range(build.devices)), ""
    except RuntimeError as error:  # no memory left on a device, or one in an error state
        return (), str(error).partition("\n")[0]


def measure_copies(device: int) -> Copies:
    """Copies for well under a second.

    Args:
        device: index of torch's current kind of accelerator, which must be there.

    Raises:
        RuntimeError: no room for 64 MiB on the device, or it fails.
    """
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        raise RuntimeError("torch reaches no accelerator to copy to.")
    target = torch.empty(COPY_BYTES, dtype=torch.uint8, device=torch.device(kind.type, device))
    rates = []
    for pinned in (True, False):
        source = torch.ones(COPY_BYTES, dtype=torch.uint8, pin_memory=pinned)
        target.copy_(source)
        torch.accelerator.synchronize(device)
        begin = time.perf_counter()
        for _ in range(COPIES):
            target.copy_(source, non_blocking=pinned)
        torch.accelerator.synchronize(device)
        rates.append(COPIES * COPY_BYTES / (time.perf_counter() - begin))
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}" if kind.type == "cuda" else ""
    return Copies(device, uuid, *rates)


def torch_build() -> TorchBuild:
    """Imports torch and asks it; a CUDA context is made only to learn why there is no device."""
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
