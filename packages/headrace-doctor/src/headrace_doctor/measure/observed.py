"""The record of an examination: plain data, to a file and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# The phases of an examination; supplies with other settings are named by these: "supply num_workers=8".
ACTUAL = "actual"
DEMAND = "demand"
SUPPLY = "supply"
LOOP = "loop"  # the supply of another loader
PARTS = "parts"  # the step alone, sampled closely
BETWEEN = "between"  # two epochs of the actual phase: stacks only
KEPT_BATCHES = 4  # that are given again and again while the step is alone
# Times as fast; a gain below this can't be distinguished from noise.
GAIN_THAT_COUNTS = 1.1
# Steps that wait for less than this share of their time aren't starved: TensorFlow's profiler, too, calls a
# program input-bound from 5 % on.
STALL_THAT_MATTERS = 0.05
# Share of the time of all samples that those that take over ten times as long as the median one must hold.
SLOW_THAT_MATTER = 0.2
OBSERVED = "observed.json"
EXAMINED = "examined"


@dataclass
class Phase:
    """The measurements of one phase, step by step."""

    name: str  # ACTUAL, DEMAND, PARTS, SUPPLY or LOOP, and settings that differ: "supply num_workers=8"
    settings: dict[str, Any] = field(default_factory=dict)  # that differ; see `measure.subject`
    began: float = 0.0  # in seconds since the examination began
    ended: float = 0.0
    waits: list[float] = field(default_factory=list)  # seconds in next(), but for the first step of an epoch
    computes: list[float] = field(default_factory=list)  # until the next next(), without other loops
    samples: list[int] = field(default_factory=list)  # in the batch of each step
    startups: list[float] = field(default_factory=list)  # seconds from iter() to the first batch of an epoch
    steps_at: list[float] = field(default_factory=list)  # when each step began, as `began`
    cpu_seconds: float = 0.0  # processor time of the training process, all its threads
    worker_cpu_seconds: float = 0.0  # of its worker processes, including those that ended
    epochs_ended: int = 0
    between: list[float] = field(default_factory=list)  # seconds between epochs, without other loops
    worker_memory: list[int] = field(default_factory=list)  # workers' own bytes (USS), at begin and end
    others: float = 0.0  # cores that other processes used, of those that the script may use
    throttled: float = 0.0  # share of the periods in which the cgroup's quota of processor time was used up

    def add(self, began: float, wait: float, compute: float, samples: int) -> None:
        """Adds a step."""
        self.steps_at.append(began)
        self.waits.append(wait)
        self.computes.append(compute)
        self.samples.append(samples)

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
    """The loader that was examined."""

    kind: str  # "torch" or "headrace"
    code: str  # as a call: "DataLoader(ImageFolder of 2,000, batch_size=64, num_workers=4)"
    where: str  # "train.py:41 in fit", where the script iterates over it
    arguments: dict[str, Any]  # num_workers, prefetch_factor, persistent_workers, pin_memory, batch_size, …
    batches: int | None  # of an epoch, also if the script leaves it early, or None if not known
    samples: int | None  # of the dataset, or None if not known
    batch_nbytes: int = 0  # of the tensors of one batch
    most_bytes: str = ""  # the part of a batch that has most of its bytes, or "" if none has
    first_batch_seconds: float = 0.0  # from the first iter() to its first batch
    trainer: bool = False  # whether the Trainer of transformers made it
    remade: int = 0  # loaders that the script made later at the same place, as for each epoch
    # Headrace's own, in the supply phase: name → [samples, thread seconds, threads].
    stages: dict[str, list[float]] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        """Number of worker processes; with 0 the training thread makes the samples itself."""
        return int(self.arguments.get("num_workers") or 0)


@dataclass
class Loop:
    """The loops over another loader of the script, as for validation, during the actual phase."""

    where: str  # this and the next two as in `LoaderFacts`
    code: str
    arguments: dict[str, Any]
    loops: int = 0  # number of loops started
    batches: int = 0
    samples: int = 0
    waits: float = 0.0  # seconds until batches were received, the starts of loops included
    computes: float = 0.0  # seconds that the script spent on batches
    gradients: bool = False  # whether they were enabled
    # Number of workers → seconds and processor seconds per sample of the loader alone.
    supplies: dict[str, list[float]] = field(default_factory=dict)
    # With batches as large as the training's: their size, seconds and processor seconds per sample of the
    # loader alone, and seconds of its start; empty if not tried.
    batched: list[float] = field(default_factory=list)

    def add(self, later: Loop) -> None:
        """Adds loops that followed."""
        for name in ("loops", "batches", "samples", "waits", "computes"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.gradients |= later.gradients

    @property
    def seconds(self) -> float:
        """The time of waiting and computing."""
        return self.waits + self.computes


@dataclass
class DeviceFacts:
    """The device during a few profiled steps; all but memory is per step."""

    busy_seconds: float = 0.0  # in which it computed or copied
    synchronisations: dict[str, float] = field(default_factory=dict)  # calls that waited for it, by name
    synchronise_seconds: float = 0.0  # that the training thread spent in these
    pageable_bytes: float = 0.0  # copied to the device from such memory
    pinned_bytes: float = 0.0
    blocking_copy_seconds: float = 0.0  # that the training thread spent in copies to the device
    memory_peak: int = 0  # bytes of the device
    memory_total: int = 0


@dataclass
class Observation:
    """The measurements of one script."""

    command: list[str]  # the script and its arguments
    cores: int  # that may be used
    threads: int  # of the training process's operators
    loader: LoaderFacts | None = None  # the one that was examined, or None without any
    loops: list[Loop] = field(default_factory=list)  # over its other loaders
    phases: list[Phase] = field(default_factory=list)  # in the order in which they ran
    looks: list[dict[str, Any]] = field(default_factory=list)  # `measure.sampler.Counts` by process and phase
    usage: list[dict[str, Any]] = field(default_factory=list)  # fields of `Usage`, every second
    device: DeviceFacts | None = None  # or None if there is no device or it wasn't profiled
    # Bytes: those of `measure.outside`, and after the first batch those of the training process and of all
    # workers, "main_at_first" and "workers_at_first".
    memory: dict[str, Any] = field(default_factory=dict)
    watching: float = 0.0  # processor seconds per second that watching from outside took
    began: float = 0.0  # the moment that times count from, by `time.perf_counter()`
    ended: str = "script ended"  # before all was measured, or EXAMINED, or the error that ended it
    notes: list[str] = field(default_factory=list)  # measurements that failed, and why
    refused: bool = False  # whether the settings to be tried could not be applied; the notes say why

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


def sample_durations(looks: Iterable[dict[str, Any]], name: str) -> dict[str, Any]:
    """Returns how long single samples took in a phase, over all processes.

    Returns:
        "count", "seconds": of all; "median": seconds, within half an octave; "slow_count", "slow_seconds":
        of samples that took over ten times the median; "slowest": [[seconds, index], …], longest first.
    """
    bins: dict[float, int] = {}
    slowest: list[list[Any]] = []
    for look in looks:
        if look["phase"] != name:
            continue
        for edge, count in look["samples"]["bins"]:
            bins[float("inf") if edge is None else edge] = bins.get(edge, 0) + count
        slowest += look["samples"]["slowest"]
    count = sum(bins.values())
    median = _median_of(bins)
    slow = {edge: n for edge, n in bins.items() if edge > 10 * median * 2**0.5}
    middle = 2**-0.25  # of a bin of half an octave, from its upper edge
    return {
        "count": count,
        "seconds": sum(min(edge, 200.0) * middle * n for edge, n in bins.items()),
        "median": median * middle,
        "slow_count": sum(slow.values()),
        "slow_seconds": sum(min(edge, 200.0) * middle * n for edge, n in slow.items()),
        "slowest": sorted(slowest, key=lambda row: -row[0])[:10],
    }


def is_uneven(durations: dict[str, Any], phase: Phase) -> bool:
    """Returns whether few samples, by `sample_durations`, hold much of the time of all, and of the phase."""
    least = max(SLOW_THAT_MATTER * durations["seconds"], STALL_THAT_MATTERS * phase.seconds)
    return bool(durations["slow_count"]) and durations["slow_seconds"] >= least


def _median_of(bins: dict[float, int]) -> float:
    half, seen = sum(bins.values()) / 2, 0
    for edge in sorted(bins):
        seen += bins[edge]
        if seen >= half:
            return edge
    return 0.0
