"""Checkups and diagnoses as plain data: drawn by the renderers, turned into JSON by `to_json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Judgement = Literal["good", "note", "bad", "unknown"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: what, as a short title: "shared memory", "empty classes".
        value: what was found, with its unit: "64 MB free at /dev/shm".
        judgement: "good"; "note": worth knowing; "bad": something to fix; "unknown": not measurable here.
        remedy: what to do, as the user would type or write it; empty if there is nothing to do.
        details: the same as numbers and names, for programs; JSON types only.
    """

    name: str
    value: str
    judgement: Judgement
    remedy: str = ""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkup:
    """Findings of one subject, in the order in which to read them.

    Attributes:
        subject: "machine", or the folder or pack that was looked at.
        sections: (heading, its findings).
    """

    subject: str
    sections: tuple[tuple[str, tuple[Finding, ...]], ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them."""
        return tuple(finding for _, findings in self.sections for finding in findings)

    @property
    def healthy(self) -> bool:
        """Nothing is bad."""
        return all(finding.judgement != "bad" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class Rate:
    """The speed of something in one phase of the examination.

    Attributes:
        name: "supply": the loader alone; "demand": the step alone, on repeated batches; "actual": both.
        samples_per_second: the mean over the phase, start-up left out.
        low, high: bounds of the mean with 95 % confidence.
        batches, seconds: that it was measured over.
    """

    name: str
    samples_per_second: float
    low: float
    high: float
    batches: int
    seconds: float


@dataclass(frozen=True)
class StageCost:
    """The costs of one stage of loading.

    Attributes:
        kind: "read", "lock", "decode", "transform", "dataset", "code", "collate", "sampler", "send",
            "receive", "pin".
        name: the kind, a class of a transform or sampler, or a function of the user's as "name (file.py:12)".
        place: where it runs, one of `doctor.model.PLACES`: "worker", "main" (the training thread).
        seconds_per_sample: wall time of one worker.
        waiting: share of that in which it was blocked (reads, sleep) rather than computing, 0 to 1.
        samples_per_second: throughput of all workers together if this stage were the only one.
        evidence: number of stack samples, or 0 if it was timed directly.
        line: the user's line that was executed most often in it, "file.py:41 function: text", with
            " → Class.function" of a library if it has called one; "" if none was seen.
        line_share: share of the stage that this line takes, 0 to 1.
    """

    kind: str
    name: str
    place: str
    seconds_per_sample: float
    waiting: float
    samples_per_second: float
    evidence: int
    line: str = ""
    line_share: float = 0.0


@dataclass(frozen=True)
class Cause:
    """Something that holds the training up, or may.

    Attributes:
        kind: one of `verdicts.KINDS`.
        sentence: what it is, with the figures that show it.
        evidence: what was measured, a line each.
        cost: 0 to 1: the share of the step's time that would go away without it, as far as is known.
        margin: 0 to 1: how far the verdict is ahead of the next cause, by what speaks for them; 0 if there is
            no other, and for the others.
    """

    kind: str
    sentence: str
    evidence: tuple[str, ...]
    cost: float
    margin: float = 0.0


@dataclass(frozen=True)
class TimeShare:
    """A part of the time of the actual phase.

    Attributes:
        name: "waiting for data", a part of the step, or the loop over another loader.
        share: of the phase's time, 0 to 1.
    """

    name: str
    share: float


@dataclass(frozen=True)
class Advice:
    """One change, ready to be made.

    Attributes:
        cause: the kind of cause that it answers.
        summary: one line: "num_workers=4 → 12".
        diff: lines as in a unified diff of the user's call, each starting with "-", "+" or " ".
        predicted: times as fast as now at most; 1.0 if it saves memory, and 0.0 if nothing is known.
        settings: how `--try` applies it: {"loader": {"num_workers": 12}}, {"threads": 2},
            {"worker_threads": 1}, {"headrace": true}; empty if only the user can.
        measured: speed-up measured by `--try`, or None if it was not tried.
        where, loader: "train.py:60 in validate", where the loader that it changes is iterated over, and that
            loader as code, or "" for the examined loader.
        expected: times as fast with the settings as they were measured; without settings, if what it names
            cost nothing and all else as much as now; 0 if not estimated.
    """

    cause: str
    summary: str
    diff: tuple[str, ...]
    predicted: float
    settings: dict[str, Any] = field(default_factory=dict)
    measured: float | None = None
    where: str = ""
    loader: str = ""
    expected: float = 0.0

    def applied_to(self, diagnosis: Diagnosis) -> dict[str, Any]:
        """Fields of `examine.Job` that make it run the script with this change."""
        where, loader = self.where or diagnosis.where, self.loader or diagnosis.loader
        return {"settings": self.settings, "subject": where, "loader": loader}


@dataclass(frozen=True)
class Step:
    """One step of the training, on the timeline.

    Attributes:
        phase: in which it was taken: "actual", "demand".
        start: seconds since the script began.
        wait: seconds in next().
        compute: seconds from the batch to the next call of next().
    """

    phase: str
    start: float
    wait: float
    compute: float


@dataclass(frozen=True)
class Usage:
    """The machine at one moment, of the script and its workers.

    Attributes:
        time: seconds since the script began.
        phase: of the examination, "" outside of all.
        cpu: cores in use, by its processes: 1.7.
        disk_read: bytes per second that its processes had read from storage, not from the page cache.
        memory: bytes resident (USS) of all of them.
        workers_memory: bytes (USS) of the workers alone.
    """

    time: float
    phase: str
    cpu: float
    disk_read: float
    memory: int
    workers_memory: int


@dataclass(frozen=True)
class Diagnosis:
    """The causes that starve the training step, and what to change.

    Attributes:
        command: that was examined.
        loader: which of its loaders, as code: "DataLoader(ImageFolder, batch_size=64, num_workers=4)".
        where: "train.py:41 in fit", where it is iterated over.
        causes: likeliest and dearest first; the first is the verdict.
        advice: by predicted gain.
        rates: supply, demand, actual, in this order, then supplies with other settings.
        stall: 0 to 1: of the step's time, what it waited in next().
        time: parts of the actual phase's time, in their order.
        stages: of loading, in their order.
        cores: that may be used.
        seconds_per_sample: as the script is, starts of epochs included.
        memory: findings on memory.
        steps, usage: over time.
        watching: share of the cores' time that watching took in the actual phase, in all processes.
        others: cores that other processes of the machine used, on average.
        notes: what couldn't be measured, and why.
    """

    command: tuple[str, ...]
    loader: str
    where: str
    causes: tuple[Cause, ...]
    advice: tuple[Advice, ...]
    rates: tuple[Rate, ...]
    stall: float
    stages: tuple[StageCost, ...]
    cores: int
    time: tuple[TimeShare, ...] = ()
    seconds_per_sample: float = 0.0
    memory: tuple[Finding, ...] = ()
    steps: tuple[Step, ...] = field(default=(), repr=False)
    usage: tuple[Usage, ...] = field(default=(), repr=False)
    watching: float = 0.0
    others: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Cause:
        """The cause to fix first, or "healthy"."""
        return self.causes[0]

    def rate(self, name: str) -> Rate:
        """The rate of "supply", "demand" or "actual"."""
        return next(rate for rate in self.rates if rate.name == name)

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return asdict(self)
