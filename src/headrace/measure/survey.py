"""All numbers about a machine that matter to feeding its GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from headrace.measure import machine
from headrace.measure.accelerators import Accelerators, accelerators
from headrace.measure.copies import Copies, measure_copies
from headrace.measure.jpeg import Decoding, measure_decoding
from headrace.measure.storage import Storage, measure_storage
from headrace.measure.torch_build import TorchBuild, torch_build

# Seconds for which the machine is watched before it is made to work.
QUIET = 0.5


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
    accelerators: Accelerators
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
    busy = psutil.cpu_percent(interval=QUIET) / 100
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
        total=psutil.virtual_memory().total,
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
        accelerators=accelerators(),
        copies=copies,
        copies_failed=failed,
    )


def _copies(build: TorchBuild) -> tuple[tuple[Copies, ...], str]:
    try:
        return tuple(measure_copies(device) for device in range(build.devices)), ""
    except RuntimeError as error:  # no memory left on a device, or one in an error state
        return (), str(error).partition("\n")[0]
