"""The speed of a loader and a training step together, from what each costs alone.

The model is that of operational analysis (Denning and Buzen, 1978; for input pipelines Kuchnik et al.,
Plumber, MLSys 2022): in the long run a sample takes as long as the busiest of what it needs: the step, the
loader, and the cores that both compute on. Where they don't overlap, it takes as long as both.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, replace

from headrace_doctor.doctor.records import StageCost
from headrace_doctor.measure.observed import ACTUAL, DEMAND, PARTS, SUPPLY, Observation, Phase

# In the order in which a sample goes through them.
PLACES = (
    *("read thread", "native thread", "collating thread", "copying thread"),
    *("worker", "worker's other threads", "main", "pin thread"),
)
# Parts of the step that not each batch needs.
IRREGULAR = ("compile", "checkpoint", "logging", "gc")
PART_NAMES = {
    "compile": "compiling the model",
    "checkpoint": "writing checkpoints",
    "backward": "the backward pass",
    "forward": "the forward pass",
    "optimizer": "the optimizer",
    "read-back": "reading values back (.item(), .cpu())",
    "gc": "Python's garbage collector",
    "step": "other code of the step",
}
# Stages of Headrace's own loader that may have threads of their own, beside those that make samples.
OWN_THREADS = {"read": "read thread", "collate": "collating thread", "transfer": "copying thread"}
CALLING_TRANSFORMS = "transform:"  # the key of a stage between two transforms
# Stages that aren't work on samples.
IDLE = ("idle", "start", "wait")


@dataclass(frozen=True)
class Costs:
    """Costs of one sample: seconds and processor seconds of the step alone (demand) and of the loader alone
    (supply), the cores that may be used, and whether the loader works while the step does.
    """

    demand: float
    supply: float
    demand_cpu: float
    supply_cpu: float
    cores: int
    overlaps: bool

    @property
    def seconds(self) -> float:
        """Seconds that both together take for a sample."""
        return self.together(1.0)

    @property
    def loading(self) -> float:
        """Seconds that the loader, or the cores that it shares with the step, take for a sample."""
        if not self.overlaps:
            return self.supply
        return max(self.supply, (self.demand_cpu + self.supply_cpu) / self.cores)

    def together(self, slowdown: float) -> float:
        """Seconds of both if loading takes `slowdown` times as long during the step as alone."""
        loading = slowdown * self.loading
        return max(self.demand, loading) if self.overlaps else self.demand + loading

    def slowdown(self, seconds: float) -> float:
        """Ratio of loading during the step to loading alone if a sample takes `seconds`; at least 1."""
        if not self.overlaps:
            return max(1.0, (seconds - self.demand) / self.supply)
        return max(1.0, seconds / self.loading) if self.loading >= self.demand else 1.0

    @property
    def busy_cores(self) -> float:
        """Cores that step and loader compute on at the speed of the slower of them."""
        return (self.demand_cpu + self.supply_cpu) / max(self.demand, self.supply)

    def with_supply(self, phase: Phase) -> Costs:
        """Costs with another loader, as it was measured, that works while the step does."""
        supply, cpu = per_sample(phase)
        return replace(self, supply=supply, supply_cpu=cpu, overlaps=True)

    def with_demand(self, phase: Phase) -> Costs:
        """Costs with another step, as it was measured."""
        demand, cpu = per_sample(phase)
        return replace(self, demand=demand, demand_cpu=cpu)


def costs_of(observation: Observation) -> Costs | None:
    """Costs of the script as it is, or None if too little was measured."""
    actual, supply = observation.phase(ACTUAL), observation.phase(SUPPLY)
    if actual is None or supply is None or observation.loader is None:
        return None
    demand = observation.phase(DEMAND)
    if demand is None:
        computing = sum(actual.computes)
        if computing <= 0:  # another thread's loop over a loader took the time of all steps
            return None
        demand_seconds, demand_cpu = computing / sum(actual.samples), 0.0
    else:
        demand_seconds, demand_cpu = per_sample(demand)
    supply_seconds, supply_cpu = per_sample(supply)
    overlaps = observation.loader.kind == "headrace" or observation.loader.workers > 0
    return Costs(demand_seconds, supply_seconds, demand_cpu, supply_cpu, observation.cores, overlaps)


def bursts(phase: Phase, workers: int) -> list[tuple[float, int]]:
    """(seconds, samples) of each burst: as many steps in a row as there are workers. Their batches come
    together, so that single steps are either long or nothing.

    Args:
        phase: whose settings may have another number of workers.
        workers: of the loader as it is.
    """
    size = max(1, int(phase.settings.get("loader", {}).get("num_workers", workers)))
    seconds = [wait + compute for wait, compute in zip(phase.waits, phase.computes, strict=True)]
    starts = range(0, len(seconds), size)
    return [(sum(seconds[i : i + size]), sum(phase.samples[i : i + size])) for i in starts]


def standard_error(phase: Phase, workers: int) -> float:
    """Standard error of a sample's seconds, from burst to burst, or infinity if there is one burst only."""
    times = [seconds / samples for seconds, samples in bursts(phase, workers)]
    return statistics.stdev(times) / len(times) ** 0.5 if len(times) > 1 else float("inf")


def per_sample(phase: Phase) -> tuple[float, float]:
    """Seconds and processor seconds of a sample."""
    samples = max(1, sum(phase.samples))
    # Processor time was counted over all of the phase, its steps may be a part.
    share = min(1.0, phase.seconds / max(1e-9, phase.ended - phase.began))
    return phase.seconds / samples, share * (phase.cpu_seconds + phase.worker_cpu_seconds) / samples


def stage_costs(observation: Observation, name: str = SUPPLY) -> list[StageCost]:
    """Stages of loading in a phase, in the order in which a sample passes through them."""
    phase, loader = observation.phase(name), observation.loader
    if phase is None or loader is None:
        return []
    if loader.stages:
        return _stages_of_headrace(loader.stages)
    rows: dict[tuple[str, str], list[float]] = {}
    for look in observation.looks:
        for kind, stages in look["stages"].items() if look["phase"] == name else ():
            for key, (looks, _, seconds, waiting) in stages.items():
                place = place_of(look["role"], kind, key)
                if place and seconds:
                    row = rows.setdefault((key, place), [0.0, 0.0, 0.0])
                    row[:] = row[0] + looks, row[1] + seconds, row[2] + waiting
    _share_out(rows)
    samples = max(1.0, sum(phase.samples))
    if name == SUPPLY:  # stacks are sampled over the whole phase, of which its steps may be a part
        samples *= max(1.0, (phase.ended - phase.began) / max(phase.seconds, 1e-9))
    found = []
    for (key, place), (looks, seconds, waiting) in rows.items():
        kind, _, rest = key.partition(":")
        of_workers = place.startswith("worker")
        rate = (max(1, loader.workers) if of_workers else 1) * samples / seconds
        line = busiest_line(observation, name, "worker" if of_workers else "main", key)
        each = seconds / samples
        found.append(StageCost(kind, rest or kind, place, each, waiting / seconds, rate, int(looks), *line))
    return sorted(found, key=lambda s: (PLACES.index(s.place), _rank(s.kind), -s.seconds_per_sample))


def busiest_line(observation: Observation, phase: str, role: str, key: str) -> tuple[str, float]:
    """The user's line that was executed most often in a stage, and its share of the stage, or ("", 0)."""
    lines: Counter[str] = Counter()
    for look in observation.looks:
        if (look["phase"], look["role"]) == (phase, role):
            lines.update(look["lines"].get(key, {}))
    return next(((line, count / lines.total()) for line, count in lines.most_common(1)), ("", 0.0))


def _stages_of_headrace(stages: dict[str, list[float]]) -> list[StageCost]:
    """Stages as Headrace's loader counted them; see `LoaderFacts.stages`."""
    making = max((row[2] for key, row in stages.items() if key not in OWN_THREADS), default=0)
    found = []
    for key, (samples, seconds, threads) in stages.items():
        if samples and seconds:
            place = "native thread" if threads == making else OWN_THREADS.get(key, "native thread")
            rate = threads * samples / seconds
            found.append(StageCost(key, key, place, seconds / samples, 0.0, rate, 0))
    return sorted(found, key=lambda stage: PLACES.index(stage.place))


def _share_out(rows: dict[tuple[str, str], list[float]]) -> None:
    """Adds what calling transforms takes, as in a Compose, to these, by what they take themselves."""
    for key, place in [row for row in rows if row[0] == CALLING_TRANSFORMS]:
        named = [row for (other, at), row in rows.items() if at == place and is_transform(other)]
        whole = sum(row[1] for row in named)
        for row in named:
            share = row[1] / whole
            row[:] = [mine + share * more for mine, more in zip(row, rows[key, place], strict=True)]
        if named:
            del rows[key, place]


def is_transform(key: str) -> bool:
    """Returns whether the key of a stage names one transform."""
    return key.startswith(CALLING_TRANSFORMS) and key != CALLING_TRANSFORMS


def step_parts(observation: Observation, name: str) -> dict[str, float]:
    """Share of a phase's time by part of the step, as named by `measure.stages`, and in "gc".

    Parts that each batch needs divide as in the close look at the step alone, which has more samples.
    """
    parts, close = parts_looked_at(observation, name), parts_looked_at(observation, PARTS)
    rest = {key: share for key, share in close.items() if key not in IRREGULAR}
    if not sum(rest.values()):  # too few samples: drawn again, they may be none
        return parts
    found = {key: share for key, share in parts.items() if key in IRREGULAR}
    scale = (sum(parts.values()) - sum(found.values())) / sum(rest.values())
    return found | {key: scale * share for key, share in rest.items()}


def part_name(key: str) -> str:
    """The name of a part of the step for readers."""
    return PART_NAMES.get(key, key.removeprefix("code:"))


def parts_looked_at(observation: Observation, name: str) -> dict[str, float]:
    """Shares from the stack samples of that phase only; empty if there are none."""
    looks = [look for look in observation.looks if look["phase"] == name and look["role"] == "main"]
    whole = sum(look["seconds"] for look in looks)
    parts: dict[str, float] = {}
    for look in looks:
        for key, row in look["stages"].get("step", {}).items():
            parts[key] = parts.get(key, 0.0) + row[2] / whole
    # The collector runs within whatever code allocates: what it takes is not that code's. One long collection
    # may be the only one for many steps.
    phase = observation.phase(name)
    wall = max(whole, phase.ended - phase.began) if phase else whole
    collecting = sum(look.get("gc_seconds", 0.0) - look.get("gc_longest", 0.0) for look in looks)
    collecting = collecting / wall if wall else 0.0
    if collecting:
        rest = max(0.0, 1 - collecting / max(collecting, sum(parts.values())))
        parts = {key: share * rest for key, share in parts.items()} | {"gc": collecting}
    return parts


def place_of(role: str, kind: str, key: str) -> str:
    """Returns where a stage ran, for readers, or "" if it is no work on samples."""
    if key in IDLE or kind == "step":
        return ""
    if kind == "pin":
        return "pin thread"
    if key.startswith("code:_bootstrap"):
        return ""  # a thread that is just beginning, or ending
    if role == "worker":
        return "worker" if kind == "fetch" else "worker's other threads"
    return "main" if kind in ("fetch", "wait") or kind.startswith("other:") else ""


def _rank(kind: str) -> int:
    order = (
        "sampler",
        "read",
        "lock",
        "decode",
        "dataset",
        "code",
        "transform",
        "collate",
        "send",
        "receive",
        "pin",
    )
    return order.index(kind) if kind in order else len(order)
