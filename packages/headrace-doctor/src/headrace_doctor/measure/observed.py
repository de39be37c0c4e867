"""What an examination of a training script records, as plain data; to a file and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# The phases of an examination; supplies with other settings are named by these: "supply num_workers=8".
ACTUAL = "actual"
DEMAND = "demand"
SUPPLY = "supply"
LOOP = "loop"  # the supply of another loader
PARTS = "parts"  # the step alone, sampled closely
KEPT_BATCHES = 4  # that are given again and again while the step is alone
# Times as fast; a gain below this can't be told from noise.
GAIN_THAT_COUNTS = 1.1
# Steps that wait for less than this share of their time aren't starved: TensorFlow's profiler, too, calls a
# program input-bound from 5 % on.
STALL_THAT_MATTERS = 0.05
OBSERVED = "observed.json"
EXAMINED = "examined"


@dataclass
class Phase:
    """What one phase measured, step by step.

    Attributes:
        name: ACTUAL, DEMAND or SUPPLY, with the settings that differ, if any do: "actual num_workers=8".
        settings: that differ from the script's own; see `measure.subject`.
        began, ended: seconds since the examination began.
        waits: seconds in next(), of each step but the first of an epoch.
        computes: seconds from a batch until the next call of next(), of the same steps, without loops over
            other loaders; 0 in supplies.
        samples: in the batch of each step.
        startups: seconds from iter() to the first batch, of each epoch started.
        steps_at: when each step began, in seconds since the examination began.
        cpu_seconds: processor time of the training process, all its threads.
        worker_cpu_seconds: processor time of its worker processes, including those that ended.
        epochs_ended: epochs that ended in the phase.
        worker_memory: bytes of the worker processes' own (USS) when the phase began and ended; only of the
            actual phase and the supply.
        others: cores that other processes used meanwhile, of those that the script may use.
        load: the machine's load average when the phase ended.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    began: float = 0.0
    ended: float = 0.0
    waits: list[float] = field(default_factory=list)
    computes: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    startups: list[float] = field(default_factory=list)
    steps_at: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    worker_cpu_seconds: float = 0.0
    epochs_ended: int = 0
    worker_memory: list[int] = field(default_factory=list)
    others: float = 0.0
    load: float = 0.0

    @property
    def seconds(self) -> float:
        """The time of all steps counted."""
        return sum(self.waits) + sum(self.computes)

    @property
    def samples_per_second(self) -> float:
        """The rate without start-ups; 0 if nothing was measured."""
        return sum(self.samples) / self.seconds if self.seconds > 0 else 0.0

    @property
    def stall(self) -> float:
        """Share of the steps' time that they waited, 0 to 1."""
        return sum(self.waits) / self.seconds if self.seconds > 0 else 0.0


@dataclass
class LoaderFacts:
    """The loader that was examined.

    Attributes:
        kind: "torch" or "headrace".
        code: as a call: "DataLoader(ImageFolder(2000), batch_size=64, num_workers=4)".
        where: "train.py:41", where the script iterates over it.
        arguments: num_workers, prefetch_factor, persistent_workers, pin_memory, batch_size, in_order, …
        batches: of an epoch, or None if not known.
        batch_nbytes: of the tensors of one batch.
        samples: of the dataset, or None if not known.
        first_batch_seconds: from the first iter() to its first batch.
        stages: of Headrace's own loader: name → [samples, thread seconds, threads], in the supply phase.
    """

    kind: str
    code: str
    where: str
    arguments: dict[str, Any]
    batches: int | None
    batch_nbytes: int
    samples: int | None
    first_batch_seconds: float = 0.0
    stages: dict[str, list[float]] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        """Number of worker processes; with 0 the training thread makes the samples itself."""
        return int(self.arguments.get("num_workers") or 0)


@dataclass
class Loop:
    """The loops over another loader of the script, as for validation, during the actual phase.

    Attributes:
        where: "train.py:60", where the script iterates over it.
        code: the loader, as a call.
        arguments: as in `LoaderFacts`.
        loops: number of loops started.
        batches, samples: numbers received.
        waits: seconds until batches were received, the starts of loops included.
        computes: seconds that the script spent on batches.
        supplies: number of workers → seconds and processor seconds per sample of the loader alone.
    """

    where: str
    code: str
    arguments: dict[str, Any]
    loops: int = 0
    batches: int = 0
    samples: int = 0
    waits: float = 0.0
    computes: float = 0.0
    supplies: dict[str, list[float]] = field(default_factory=dict)

    def add(self, later: Loop) -> None:
        """Adds loops that followed."""
        for name in ("loops", "batches", "samples", "waits", "computes"):
            setattr(self, name, getattr(self, name) + getattr(later, name))

    @property
    def seconds(self) -> float:
        """The time of waiting and computing."""
        return self.waits + self.computes


@dataclass
class DeviceFacts:
    """What a few profiled steps did on a device; all per step.

    Attributes:
        name: of the device.
        busy_seconds: in which it computed or copied.
        synchronisations: calls that waited for it, by name: {"aten::item": 1, "cudaStreamSynchronize": 2}.
        synchronise_seconds: that the training thread spent in these.
        pageable_bytes, pinned_bytes: copied to the device from such memory.
        blocking_copy_seconds: that the training thread spent in copies to the device.
        memory_peak, memory_total: bytes of the device.
    """

    name: str
    busy_seconds: float = 0.0
    synchronisations: dict[str, float] = field(default_factory=dict)
    synchronise_seconds: float = 0.0
    pageable_bytes: float = 0.0
    pinned_bytes: float = 0.0
    blocking_copy_seconds: float = 0.0
    memory_peak: int = 0
    memory_total: int = 0


@dataclass
class Observation:
    """All that was measured of one script.

    Attributes:
        command: the script and its arguments.
        cores: that may be used.
        threads: of the training process's operators (`torch.get_num_threads()`).
        loader: the one that was examined, or None if the script iterated over none.
        loops: over its other loaders.
        phases: in the order in which they ran.
        looks: counts of the stack samplers, one dict per process and phase; see `measure.sampler`.
        usage: what was seen from outside, every second: dicts with the fields of `Usage`.
        device: None if there is none, or it wasn't profiled.
        memory: bytes: see `measure.outside`; and, as "main_at_first" and "workers_at_first", of the
            training process and of all workers after the first batch.
        watching: processor seconds per second that watching from outside took.
        began: the moment that times count from, by `time.perf_counter()`.
        ended: EXAMINED; "script ended": before everything was measured; or the error that ended it.
        notes: what couldn't be measured, and why.
        refused: whether the settings that were to be tried could not be applied; the notes say why.
    """

    command: list[str]
    cores: int
    threads: int
    loader: LoaderFacts | None = None
    loops: list[Loop] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    looks: list[dict[str, Any]] = field(default_factory=list)
    usage: list[dict[str, Any]] = field(default_factory=list)
    device: DeviceFacts | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    watching: float = 0.0
    began: float = 0.0
    ended: str = "script ended"
    notes: list[str] = field(default_factory=list)
    refused: bool = False

    def phase(self, name: str) -> Phase | None:
        """The phase of that name that measured anything."""
        return next((phase for phase in self.phases if phase.name == name and phase.seconds > 0), None)

    def others(self, kind: str) -> Iterator[Phase]:
        """Phases of that kind with other settings."""
        return (phase for phase in self.phases if phase.name.startswith(f"{kind} ") and phase.seconds > 0)

    def save(self, folder: Path) -> None:
        """Writes it into the folder, which the parent process reads once this one has ended."""
        (folder / OBSERVED).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, folder: Path) -> Observation | None:
        """The observation saved in the folder, or None if there is none, or only a part of one."""
        try:
            fields = json.loads((folder / OBSERVED).read_text())
        except (FileNotFoundError, ValueError):
            return None
        fields["loader"] = LoaderFacts(**fields["loader"]) if fields["loader"] else None
        fields["device"] = DeviceFacts(**fields["device"]) if fields["device"] else None
        fields["loops"] = [Loop(**loop) for loop in fields["loops"]]
        fields["phases"] = [Phase(**phase) for phase in fields["phases"]]
        return cls(**fields)
