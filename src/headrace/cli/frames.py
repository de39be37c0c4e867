"""From two looks at a job to what `headrace top` shows: rates are differences, and nothing is asked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.measure.gpus import GpuLook
from headrace.measure.processes import ProcessLook, TreeLook

Json = dict[str, Any]

# Native threads share these, so that together they supply less than the least of them. Reading has threads
# of its own once reads wait.
NATIVE = ("read", "parse", "decode", "resize", "store")


@dataclass(frozen=True)
class Look:
    """Everything that is known of a job at one moment.

    Attributes:
        tree: the job's processes.
        said: by process number, what those that can be asked answered; see `headrace.export.live`.
        silent: processes that can be asked and didn't answer.
        gpus: that the job computes on; all of the machine where NVML doesn't tell.
        no_gpus: why none is known.
    """

    tree: TreeLook
    said: Mapping[int, Json]
    silent: tuple[int, ...]
    gpus: tuple[GpuLook, ...]
    no_gpus: str


@dataclass(frozen=True)
class StageFrame:
    """One stage of a loader, or all native ones together.

    Attributes:
        name: as in `stats()`; "native" for all native ones together.
        supply: samples per second that its threads could do of it alone; 0: not known.
        load: what the training step asks for as a share of that; above 1 the stage can't keep up. None: not
            known.
    """

    name: str
    supply: float
    load: float | None


@dataclass(frozen=True)
class RemoteFrame:
    """What a process fetches for a dataset of URLs; rates and shares are of now.

    Attributes:
        bytes_per_second: fetched.
        requests_per_second, retries_per_second: sent to stores; those of them that were tried again.
        concurrency, latency_seconds: see `headrace.records.RemoteStats`.
        found: share of the records asked for that the node's cache held; None: none was asked for.
        evictions_per_second: records removed from the cache by this process.
        cache_bytes, cache_capacity: of the cache.
        retries: since the job began.
    """

    bytes_per_second: float
    requests_per_second: float
    retries_per_second: float
    concurrency: int
    latency_seconds: float
    found: float | None
    evictions_per_second: float
    cache_bytes: int
    cache_capacity: int
    retries: int


@dataclass(frozen=True)
class LoaderFrame:
    """One loader. Shares are 0 to 1; "now" is the time between the two looks.

    Attributes:
        number: in the order in which the process first iterated over its loaders.
        dataset, batch_size: of the loader.
        state: "starting" (no batch yet), "running", "finished", "stopped", or "new".
        epoch: its number.
        batches, length: received of this epoch, the part before a state that it went on from included; of the
            whole epoch, None: not known.
        left_seconds: until the epoch's end, at the rate of now; None: not known.
        samples, epoch_samples: received since the loader was made, and in this epoch.
        samples_per_second, epoch_samples_per_second: now, and over the epoch.
        stall, epoch_stall: what steps waited, of the time after the start-up; None: there was no step.
        waiting_seconds: for how long the loop has been in next() by now.
        ready, depth: batches ready when a step asked, and how many may be in flight (0: not known).
        memory_used, memory_allowed: bytes of batches, and the budget.
        transfer: bytes per second sent to the device now.
        stages: all native ones together first.
        skipped, replaced: samples that couldn't be loaded.
        remote: None: the dataset is on the job's machine.
    """

    number: int
    dataset: str
    batch_size: int | None
    state: str
    epoch: int
    batches: int
    length: int | None
    left_seconds: float | None
    samples: int
    epoch_samples: int
    samples_per_second: float
    epoch_samples_per_second: float
    stall: float | None
    epoch_stall: float
    waiting_seconds: float
    ready: float
    depth: int
    memory_used: int
    memory_allowed: int
    transfer: float
    stages: tuple[StageFrame, ...]
    skipped: int
    replaced: int
    remote: RemoteFrame | None

    @property
    def active(self) -> bool:
        """It is being iterated over."""
        return self.state in ("starting", "running")


@dataclass(frozen=True)
class ProcessFrame:
    """One process: `look`, and per second since the look before: seconds of CPU, bytes really read."""

    look: ProcessLook
    cpu: float
    read: float | None


@dataclass(frozen=True)
class RankFrame:
    """A process with loaders. Ranks are those of torchrun's environment; None: it has none."""

    pid: int
    rank: int | None
    local_rank: int | None
    world_size: int | None
    loaders: tuple[LoaderFrame, ...]

    @property
    def stall(self) -> float:
        """Of its loader that waits most."""
        return max((one.stall or 0.0 for one in self.loaders if one.active), default=0.0)


@dataclass(frozen=True)
class Frame:
    """What is shown.

    Attributes:
        seconds: between the looks.
        uptime: seconds that the job has run.
        processes: the job itself first.
        cores: that it may use.
        ranks: those that can be asked, by rank.
        silent: processes that can be asked and didn't answer.
        gpus, no_gpus: see `Look`.
    """

    seconds: float
    uptime: float
    processes: tuple[ProcessFrame, ...]
    cores: float
    ranks: tuple[RankFrame, ...]
    silent: tuple[int, ...]
    gpus: tuple[GpuLook, ...]
    no_gpus: str

    @property
    def slowest(self) -> RankFrame | None:
        """The rank whose steps wait most for their loader: ranks that train together go at its pace."""
        return max(self.ranks, key=lambda rank: rank.stall, default=None)


def frame(before: Look, now: Look, time: float) -> Frame:
    """Of two looks at one job; the later one has processes. `time`: seconds since 1970, now."""
    seconds = now.tree.clock - before.tree.clock
    old = {(one.pid, one.started): one for one in before.tree.processes}
    ranks = [_rank(pid, before.said.get(pid), said) for pid, said in now.said.items()]
    return Frame(
        seconds=seconds,
        uptime=time - now.tree.processes[0].started,
        processes=tuple(_process(old.get((p.pid, p.started)), p, seconds) for p in now.tree.processes),
        cores=now.tree.cores,
        ranks=tuple(sorted(ranks, key=lambda one: (one.rank is None, one.rank or 0, one.pid))),
        silent=now.silent,
        gpus=now.gpus,
        no_gpus=now.no_gpus,
    )


def _process(before: ProcessLook | None, now: ProcessLook, seconds: float) -> ProcessFrame:
    if before is None or seconds <= 0:
        return ProcessFrame(now, 0.0, None)
    known = now.read_bytes is not None and before.read_bytes is not None
    read = ((now.read_bytes or 0) - (before.read_bytes or 0)) / seconds if known else None
    return ProcessFrame(now, max(0.0, now.cpu_seconds - before.cpu_seconds) / seconds, read)


def _rank(pid: int, before: Json | None, now: Json) -> RankFrame:
    old = {one["number"]: one for one in before["loaders"]} if before is not None else {}
    seconds = 0.0 if before is None else now["clock"] - before["clock"]
    loaders = [_loader(old.get(one["number"]), one, seconds) for one in now["loaders"]]
    return RankFrame(
        pid=pid,
        rank=_number(now["rank"]),
        local_rank=_number(now["local_rank"]),
        world_size=_number(now["world_size"]),
        loaders=tuple(sorted(loaders, key=lambda one: one.number)),
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _loader(before: Json | None, now: Json, seconds: float) -> LoaderFrame:
    epoch = now["epoch"]
    state = "new" if epoch is None else epoch["state"]
    if state == "running" and not epoch["batches"]:
        state = "starting"
    epoch = epoch or NO_EPOCH
    samples, batches, stall, asked = 0.0, 0.0, None, None
    if before is not None and seconds > 0:
        samples = (now["samples"] - before["samples"]) / seconds
        batches = (now["batches"] - before["batches"]) / seconds
        stalled = _stalled(now) - _stalled(before)
        stepping = seconds - (_starting(now) - _starting(before))
        if state == "running" and stepping > 0:
            stall = min(1.0, max(0.0, stalled / stepping))
            asked = samples * seconds / (stepping - stalled) if stepping > stalled and samples else None
    done, length = epoch["batches"] + epoch["skipped"], epoch["length"]
    going = state == "running" and length is not None and batches > 0
    return LoaderFrame(
        number=now["number"],
        dataset=now["dataset"],
        batch_size=now["batch_size"],
        state=state,
        epoch=epoch["number"],
        batches=done,
        length=length,
        left_seconds=max(0, length - done) / batches if going else None,
        samples=now["samples"],
        epoch_samples=epoch["samples"],
        samples_per_second=samples,
        epoch_samples_per_second=epoch["samples_per_second"],
        stall=stall,
        epoch_stall=epoch["stall_share"],
        waiting_seconds=now["waiting_seconds"],
        ready=epoch["ready"],
        depth=epoch["depth"],
        memory_used=now["memory_used"],
        memory_allowed=now["memory_allowed"],
        transfer=_transfer(before, now, seconds),
        stages=_stages(before, now, asked),
        skipped=now["skipped"],
        replaced=now["replaced"],
        remote=_remote(before, now, seconds),
    )


NO_EPOCH: Json = {
    "number": 0,
    "batches": 0,
    "skipped": 0,
    "length": None,
    "samples": 0,
    "samples_per_second": 0.0,
    "stall_share": 0.0,
    "ready": 0.0,
    "depth": 0,
}


def _waits_for_first(said: Json) -> bool:
    return said["epoch"] is not None and not said["epoch"]["batches"]


def _stalled(said: Json) -> float:
    """The wait that is still going on included."""
    return float(said["stall_seconds"] + (0.0 if _waits_for_first(said) else said["waiting_seconds"]))


def _starting(said: Json) -> float:
    return float(said["startup_seconds"] + (said["waiting_seconds"] if _waits_for_first(said) else 0.0))


def _transfer(before: Json | None, now: Json, seconds: float) -> float:
    if before is None or seconds <= 0:
        return 0.0
    return max(0.0, (_sent(now) - _sent(before)) / seconds)


def _sent(said: Json) -> int:
    return sum(stage["bytes"] for stage in said["stages"] if stage["name"] == "transfer")


def _remote(before: Json | None, now: Json, seconds: float) -> RemoteFrame | None:
    said = now.get("remote")  # a job of an earlier version doesn't say
    if said is None:
        return None
    old = (before or {}).get("remote") or said

    def rate(name: str) -> float:
        return (said[name] - old[name]) / seconds if seconds > 0 else 0.0

    hits, misses = said["cache_hits"] - old["cache_hits"], said["cache_misses"] - old["cache_misses"]
    return RemoteFrame(
        bytes_per_second=rate("bytes_fetched"),
        requests_per_second=rate("requests"),
        retries_per_second=rate("retries"),
        concurrency=said["concurrency"],
        latency_seconds=said["latency_seconds"],
        found=hits / (hits + misses) if hits + misses > 0 else None,
        evictions_per_second=rate("cache_evictions"),
        cache_bytes=said["cache_bytes"],
        cache_capacity=said["cache_capacity"],
        retries=said["retries"],
    )


def _stages(before: Json | None, now: Json, asked: float | None) -> tuple[StageFrame, ...]:
    """Costs of now, or since the loader was made where nothing was done since the look before."""
    old = {one["name"]: one for one in before["stages"]} if before is not None else {}
    costs: dict[str, tuple[float, int]] = {}
    for stage in now["stages"]:
        last = old.get(stage["name"], {"samples": 0, "seconds": 0.0})
        samples, seconds = stage["samples"] - last["samples"], stage["seconds"] - last["seconds"]
        if samples <= 0:
            samples, seconds = stage["samples"], stage["seconds"]
        if samples > 0 and seconds > 0:
            costs[stage["name"]] = (seconds / samples, stage["threads"])
    rows = [_stage(name, cost, threads, asked) for name, (cost, threads) in costs.items()]
    own_readers = now["read_threads"] > 0
    shared = [costs[name] for name in NATIVE if name in costs and not (name == "read" and own_readers)]
    if len(shared) > 1:
        rows.insert(0, _stage("native", sum(cost for cost, _ in shared), shared[-1][1], asked))
    return tuple(rows)


def _stage(name: str, cost: float, threads: int, asked: float | None) -> StageFrame:
    supply = threads / cost
    return StageFrame(name, supply, None if asked is None else asked / supply)
