"""What `headrace top` sees of a job, what it computes from two looks at it, and how it shows it."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.errors import printable, size
from headrace.export.live import Job, jobs
from headrace.measure.nvml import Gpu, gpus
from headrace.measure.processes import ProcessLook, TreeLook, look

Json = dict[str, Any]
# Native threads share these, so that together they supply less than the least of them. Reading has threads
# of its own once reads wait.
NATIVE = ("read", "parse", "decode", "resize", "store")
# Shares of waited time from which on a loader is called late, and too slow; see docs/stats.md.
LATE, SLOW = 0.05, 0.20
# "Now" is the mean over so many seconds; the mean stall goes back a minute.
NOW_SECONDS, MINUTE = 5.0, 60.0
FIRST_SECONDS = 0.5  # until the first frame, where the interval is longer
LONG_SECONDS = 2.0  # a step that has waited this long gets a line of its own
PROCESSES = 8
NOT_PUBLISHED = (
    "Throughput, stall and queue are known of headrace.DataLoader only, once it is iterated over. For torch's"
    " DataLoader: headrace doctor run SCRIPT"
)
NO_EPOCH: Json = dict.fromkeys(
    ("number", "batches", "skipped", "samples", "samples_per_second", "stall_share", "ready", "depth"), 0
) | {"length": None}
# What is shown as it was published.
COPIED = (
    *("number", "dataset", "batch_size", "samples", "waiting_seconds", "memory_used", "memory_allowed"),
    *("skipped", "replaced"),
)


@dataclass(frozen=True)
class Look:
    """Everything known of a job at one moment.

    Attributes:
        tree: the job's processes.
        said: by process number, answers of those that publish; see `headrace.export.live`.
        silent: numbers of processes that publish and didn't answer.
        gpus: that the job computes on; all of the machine where NVML doesn't tell.
        no_gpus: why no GPU is known.
    """

    tree: TreeLook
    said: Mapping[int, Json]
    silent: tuple[int, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    no_gpus: str = "none"


class Watch:
    """One job: a process and all its descendants, any of which may have loaders.

    Args:
        pid: number of the process.
        interval: between looks, in seconds.

    Attributes:
        stalls: between looks, of the loader that waited most, 0 to 1; oldest first, None where there was no
            step.
    """

    def __init__(self, pid: int, interval: float) -> None:
        self._pid = pid
        self._started: float | None = None
        self._looks: deque[Look] = deque(maxlen=1 + max(1, round(NOW_SECONDS / interval)))
        self._jobs: dict[str, Job] = {}
        self.stalls: deque[float | None] = deque(maxlen=max(1, round(MINUTE / interval)))

    def look(self) -> bool:
        """Looks; returns False once the job has ended."""
        tree = look(self._pid)
        # Another process may have its number by now.
        if not tree.processes or self._started not in (None, tree.processes[0].started):
            return False
        self._started = tree.processes[0].started
        self._jobs = {job.name: job for job in jobs(self._jobs)}
        pids = {one.pid for one in tree.processes}
        said = {job.pid: job.ask() for job in self._jobs.values() if job.pid in pids}
        known = {pid: answer for pid, answer in said.items() if answer is not None}
        silent = tuple(pid for pid in said.keys() - known.keys() if os.path.exists(f"/proc/{pid}"))
        nvml = gpus()
        used = tuple(gpu for gpu in nvml.gpus if pids & set(gpu.pids)) or nvml.gpus
        self._looks.append(Look(tree, known, silent, used, nvml.missing or "none"))
        if len(self._looks) > 1:
            rank = slowest(frame(self._looks[-2], self._looks[-1], time.time()))
            stalls = [one["stall"] for one in (rank["loaders"] if rank else ()) if one["stall"] is not None]
            self.stalls.append(max(stalls, default=None))
        return True

    def frame(self) -> Json:
        """The job over the last seconds."""
        return frame(self._looks[0], self._looks[-1], time.time())


def show(console: Console, watch: Watch, interval: float) -> bool:
    """Draws until Ctrl-C or SIGTERM (False), or the job's end (True); restores the terminal."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pause = min(interval, FIRST_SECONDS)
    with (
        suppress(KeyboardInterrupt),
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while True:
            time.sleep(pause)
            if not watch.look():
                return True
            live.update(draw(watch.frame(), watch.stalls), refresh=True)
            pause = interval
    return False


def frame(before: Look, now: Look, at: float) -> Json:
    """The job between two looks, as `headrace top --json` prints it.

    Args:
        before, now: the looks.
        at: time of the second one, in seconds since 1970.

    Returns:
        A dict of JSON types. Rates are those between the looks. "ranks" are the processes with loaders, by
        rank; each of their loaders has what it publishes, with "samples_per_second", "left_seconds" of the
        epoch, "stall" (the share of the steps' time that they waited; None: there was no step), "transfer"
        (bytes per second to the device) and for each stage "supply" (samples per second that its threads
        could do of it alone) and "load" (what the step asks for, as a share of that).
    """
    seconds = now.tree.clock - before.tree.clock
    old = {(one.pid, one.started): one for one in before.tree.processes}
    ranks = [_rank(pid, before.said.get(pid), said) for pid, said in now.said.items()]
    return {
        "seconds": seconds,
        "uptime": at - now.tree.processes[0].started,
        "processes": [_process(old.get((p.pid, p.started)), p, seconds) for p in now.tree.processes],
        "cores": now.tree.cores,
        "ranks": sorted(ranks, key=lambda one: (one["rank"] is None, one["rank"] or 0, one["pid"])),
        "silent": list(now.silent),
        "gpus": [
            {"index": g.index, "name": g.name, "busy": g.busy, "memory_used": g.memory_used}
            | {"memory_total": g.memory, "pids": list(g.pids)}
            for g in now.gpus
        ],
        "no_gpus": now.no_gpus,
    }


def _process(before: ProcessLook | None, now: ProcessLook, seconds: float) -> Json:
    if before is None or seconds <= 0:
        return {"look": asdict(now), "cpu": 0.0, "read": None}
    unknown = now.read_bytes is None or before.read_bytes is None
    read = None if unknown else ((now.read_bytes or 0) - (before.read_bytes or 0)) / seconds
    cpu = max(0.0, now.cpu_seconds - before.cpu_seconds) / seconds
    return {"look": asdict(now), "cpu": cpu, "read": read}


def _rank(pid: int, before: Json | None, now: Json) -> Json:
    old = {one["number"]: one for one in before["loaders"]} if before is not None else {}
    seconds = 0.0 if before is None else now["clock"] - before["clock"]
    loaders = [_loader(old.get(one["number"]), one, seconds) for one in now["loaders"]]
    numbers = {
        name: int(now[name]) if (now[name] or "").isdecimal() else None
        for name in ("rank", "local_rank", "world_size")
    }
    return {"pid": pid, **numbers, "loaders": sorted(loaders, key=lambda one: int(one["number"]))}


def _loader(before: Json | None, now: Json, seconds: float) -> Json:
    epoch = now["epoch"] or NO_EPOCH
    state = "new" if now["epoch"] is None else epoch["state"]
    state = "starting" if state == "running" and not epoch["batches"] else state
    then, seconds = (before, seconds) if before is not None and seconds > 0 else (now, 1.0)
    samples, batches = ((now[name] - then[name]) / seconds for name in ("samples", "batches"))
    stall, asked = None, None
    if then is not now and state == "running":
        (stalled, started), (stalled_then, started_then) = _waited(now), _waited(then)
        stepping, stalled = seconds - (started - started_then), stalled - stalled_then
        if stepping > 0:
            stall = min(1.0, max(0.0, stalled / stepping))
            asked = samples * seconds / (stepping - stalled) if stepping > stalled and samples else None
    done, length = epoch["batches"] + epoch["skipped"], epoch["length"]
    left = max(0, length - done) / batches if state == "running" and length and batches > 0 else None
    return {
        **{name: now[name] for name in COPIED},
        "state": state,
        "epoch": epoch["number"],
        "batches": done,
        "length": length,
        "left_seconds": left,
        "samples_per_second": samples,
        "stall": stall,
        "epoch_samples": epoch["samples"],
        "epoch_samples_per_second": epoch["samples_per_second"],
        "epoch_stall": epoch["stall_share"],
        "ready": epoch["ready"],
        "depth": epoch["depth"],
        "transfer": max(0.0, _sent(now) - _sent(then)) / seconds,
        "stages": _stages(before, now, asked),
        "remote": _remote(then.get("remote"), now.get("remote"), seconds),
    }


def _waited(said: Json) -> tuple[float, float]:
    """Seconds waited by steps, and for first batches; a wait that still lasts included."""
    first = said["epoch"] is not None and not said["epoch"]["batches"]
    lasting = said["waiting_seconds"]
    return said["stall_seconds"] + (0 if first else lasting), said["startup_seconds"] + first * lasting


def _sent(said: Json) -> int:
    return sum(stage["bytes"] for stage in said["stages"] if stage["name"] == "transfer")


def _remote(before: Json | None, now: Json | None, seconds: float) -> Json | None:
    """Rates of what a process fetches for a dataset of URLs; None: it isn't one, or an older version."""
    if now is None:
        return None
    passed = {name: now[name] - (before or now)[name] for name in now}
    hits, misses = passed["cache_hits"], passed["cache_misses"]
    return {
        "bytes_per_second": passed["bytes_fetched"] / seconds,
        "requests_per_second": passed["requests"] / seconds,
        "retries_per_second": passed["retries"] / seconds,
        "evictions_per_second": passed["cache_evictions"] / seconds,
        "found": hits / (hits + misses) if hits + misses > 0 else None,
        **{name: now[name] for name in ("concurrency", "latency_seconds", "cache_bytes", "cache_capacity")},
        "retries": now["retries"],
    }


def _stages(before: Json | None, now: Json, asked: float | None) -> list[Json]:
    """Costs between the looks, or since the loader was made where nothing was done in between."""
    old = {one["name"]: one for one in before["stages"]} if before is not None else {}
    costs: dict[str, tuple[float, int]] = {}
    for stage in now["stages"]:
        last = old.get(stage["name"], {"samples": 0, "seconds": 0.0})
        samples, seconds = stage["samples"] - last["samples"], stage["seconds"] - last["seconds"]
        if samples <= 0:
            samples, seconds = stage["samples"], stage["seconds"]
        if samples > 0 and seconds > 0:
            costs[stage["name"]] = (seconds / samples, stage["threads"])
    native = NATIVE[1:] if now["read_threads"] else NATIVE
    shared = [costs[name] for name in native if name in costs]
    if len(shared) > 1:
        costs = {"native": (sum(cost for cost, _ in shared), shared[-1][1]), **costs}
    return [
        {"name": name, "supply": threads / cost, "load": None if asked is None else asked * cost / threads}
        for name, (cost, threads) in costs.items()
    ]


def rank_stall(rank: Json) -> float:
    """Of the rank's loader that waits most."""
    return max((one["stall"] or 0.0 for one in rank["loaders"] if _active(one)), default=0.0)


def _active(loader: Json) -> bool:
    return loader["state"] in ("starting", "running")


def slowest(found: Json) -> Json | None:
    """The rank whose steps wait most for their loader: ranks that train together go at its pace."""
    return max(found["ranks"], key=rank_stall, default=None)


def draw(found: Json, stalls: Sequence[float | None] = ()) -> Group:
    """The whole view, for 80 columns and more.

    Args:
        stalls: shares of the steps' time waited, of the loader that waits most, oldest first; None: no step.
    """
    root, ranks, shown = found["processes"][0]["look"], found["ranks"], slowest(found)
    title = Text(f"headrace top  pid {root['pid']}, up {duration(found['uptime'])}  ", style="bold")
    title.append(_command(root["command"]), style="not bold dim").no_wrap = True
    lines: list[RenderableType] = [title, _machine(found)]
    if not ranks:
        lines += ["", _processes(found), *([] if found["silent"] else ["", NOT_PUBLISHED])]
    elif len(ranks) > 1:
        assert shown is not None
        lines += ["", _ranks(ranks, shown), "", Text(f"▶ waits most: process {shown['pid']}", style="bold")]
    # Those that are iterated over first: the others take a line each.
    loaders = shown["loaders"] if shown else ()
    for loader in sorted(loaders, key=lambda one: (not _active(one), one["number"])):
        lines += ["", *_shown(loader, stalls)] if _active(loader) else [_idle(loader)]
    lines += [Text(f"process {pid} doesn't answer", style="yellow") for pid in found["silent"]]
    return Group(*lines)


def duration(seconds: float) -> str:
    """As 1:02:33, or 0:07."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def _command(command: str) -> str:
    """Without the program's folder, and without what would steer the terminal: others choose it."""
    program, _, arguments = printable(command).partition(" ")
    return f"{program.rpartition('/')[2]} {arguments}"


def _style(share: float) -> str:
    return "red" if share > SLOW else "yellow" if share >= LATE else "green"


def _grid(rows: Sequence[tuple[str, float | None, str | Text]]) -> Table:
    """Rows of (name, share to draw as a bar or None, text)."""
    grid = Table.grid(padding=(0, 1))
    for width in (9, 20):
        grid.add_column(width=width, no_wrap=True)
    for name, share, text in rows:
        if share is None:
            grid.add_row(name, "", text)
        else:
            style = "red" if share > 1 else "bar.complete"
            grid.add_row(name, ProgressBar(1.0, min(1.0, share), width=20, complete_style=style), text)
    return grid


def _machine(found: Json) -> Table:
    main, *others = found["processes"]
    cpu = sum(one["cpu"] for one in found["processes"])
    text = f"{cpu:.2f} of {found['cores']:g} cores"
    if others:
        waiting = sum(one["look"]["state"] == "disk-sleep" for one in others)
        text += f", main {main['cpu']:.2f}; {len(others)} more processes"
        text += f", {waiting} wait for the disk" if waiting else ""
    reads = [one["read"] for one in found["processes"] if one["read"] is not None]
    resident = size(sum(one["look"]["memory"] for one in found["processes"]))
    disk = f"{size(sum(reads))}/s read" if reads else "unknown"
    rows = [("cpu", cpu / found["cores"], text), ("memory", None, f"{resident} resident; disk: {disk}")]
    for gpu in found["gpus"]:
        used = f"{size(gpu['memory_used'])} of {size(gpu['memory_total'])}"
        rows.append((f"gpu {gpu['index']}", gpu["busy"], f"{gpu['busy']:.0%} busy, {used}  {gpu['name']}"))
    return _grid(rows if found["gpus"] else [*rows, ("gpu", None, found["no_gpus"])])


def _table(*columns: str) -> Table:
    """A table whose last column is aligned to the left, and cut off where it is too long."""
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    for name in columns[:-1]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(columns[-1])
    return table


def _processes(found: Json) -> Table:
    table = _table("pid", "state", "cpu", "memory", "read/s", "command")
    main, *others = found["processes"]
    shown = [main, *sorted(others, key=lambda one: -float(one["cpu"]))]
    for one in shown[:PROCESSES]:
        look, read = one["look"], "" if one["read"] is None else size(one["read"])
        cells = (str(look["pid"]), look["state"], f"{one['cpu']:.2f}", size(look["memory"]), read)
        table.add_row(*cells, Text(_command(look["command"]), no_wrap=True, overflow="ellipsis"))
    if len(shown) > PROCESSES:
        table.add_row("", "", "", "", "", f"and {len(shown) - PROCESSES} more")
    return table


def _ranks(ranks: Sequence[Json], shown: Json) -> Table:
    table = _table("rank", "pid", "samples/s", "stall now", "epoch")
    for rank in ranks:
        running = [one for one in rank["loaders"] if _active(one)]
        name = f"{'▶ ' if rank is shown else ''}{'' if rank['rank'] is None else rank['rank']}"
        rate = sum(one["samples_per_second"] for one in running)
        stall = Text(f"{rank_stall(rank):.1%}", style=_style(rank_stall(rank)))
        place = _place(running[0]) if running else "no loader runs"
        table.add_row(name, str(rank["pid"]), f"{rate:,.0f}", stall, place)
    return table


def _name(loader: Json) -> str:
    batch = "not batched" if loader["batch_size"] is None else f"batches of {loader['batch_size']}"
    return f"loader {loader['number']}: {printable(loader['dataset'])}, {batch}"


def _place(loader: Json) -> str:
    whole = "" if loader["length"] is None else f" of {loader['length']:,}"
    return f"{loader['epoch']}, batch {loader['batches']:,}{whole}"


def _idle(loader: Json) -> Text:
    text = f"{_name(loader)}: epoch {loader['epoch']} {loader['state']}, "
    text += f"{loader['epoch_samples_per_second']:,.0f}/s, stall {loader['epoch_stall']:.1%}"
    return Text(f"{_name(loader)}: not started" if loader["state"] == "new" else text, style="dim")


def _shown(loader: Json, stalls: Sequence[float | None]) -> list[RenderableType]:
    waits = loader["waiting_seconds"]
    rows: list[tuple[str, float | None, str | Text]] = []
    lines: list[RenderableType] = [Text(_name(loader), style="bold")]
    if loader["state"] == "starting":
        rows.append(("epoch", None, f"{loader['epoch']}: first batch awaited for {waits:.1f} s"))
    else:
        left = "" if loader["left_seconds"] is None else f", {duration(loader['left_seconds'])} left"
        share = loader["batches"] / loader["length"] if loader["length"] else None
        rows.append(("epoch", share, f"{'' if share is None else f'{share:4.0%}  '}{_place(loader)}{left}"))
        speed = f"{loader['samples_per_second']:,.0f} samples/s now, "
        speed += f"{loader['epoch_samples_per_second']:,.0f} in the epoch"
        sent = f"; {size(loader['transfer'])}/s to the device" if loader["transfer"] else ""
        known = [stall for stall in stalls if stall is not None]
        minute = f", {sum(known) / len(known):.1%} over a minute" if known else ""
        now = "unknown" if loader["stall"] is None else f"{loader['stall']:.1%}"
        stall = Text(f"{now} now{minute}, {loader['epoch_stall']:.1%} in the epoch")
        stall.stylize(_style(loader["stall"] or 0.0))
        rows += [("speed", None, speed + sent), ("stall", loader["stall"], stall)]
    if loader["depth"]:
        ready = f"{loader['ready']:.1f} of {loader['depth']} ready"
        rows.append(("queue", loader["ready"] / loader["depth"], ready))
    if loader["memory_used"] and loader["memory_allowed"]:
        of = f"{size(loader['memory_used'])} of {size(loader['memory_allowed'])} allowed"
        rows.append(("memory", loader["memory_used"] / loader["memory_allowed"], of))
    rows += _remote_rows(loader["remote"]) if loader["remote"] is not None else []
    for stage in loader["stages"]:
        load = "" if stage["load"] is None else f", {stage['load']:.0%} of it asked for"
        load += ", together" if stage["name"] == "native" else ""
        rows.append((stage["name"], stage["load"] or 0.0, f"supplies {stage['supply']:,.0f}/s{load}"))
    lines.append(_grid(rows))
    if loader["state"] == "running" and waits >= LONG_SECONDS:
        lines.append(Text(f"the step has been waiting for its batch for {waits:.1f} s", style="bold red"))
    bad = [f"{loader[what]:,} samples {what}" for what in ("skipped", "replaced") if loader[what]]
    return lines + ([Text(", ".join(bad), style="yellow")] if bad else [])


def _remote_rows(remote: Json) -> list[tuple[str, float | None, str]]:
    fetched = f"{size(remote['bytes_per_second'])}/s by {remote['requests_per_second']:,.0f} requests/s, "
    fetched += f"{remote['concurrency']} at a time, {1e3 * remote['latency_seconds']:,.0f} ms"
    if remote["retries_per_second"] > 0:
        fetched += f", {remote['retries_per_second'] / max(1e-9, remote['requests_per_second']):.0%} retried"
    elif remote["retries"]:
        fetched += f", {remote['retries']:,} retries so far"
    held, capacity = remote["cache_bytes"], remote["cache_capacity"]
    cache = f"{size(held)} of {size(capacity)}"
    cache += "" if remote["found"] is None else f", {remote['found']:.0%} found"
    evicted = remote["evictions_per_second"]
    cache += f", {evicted:,.0f}/s evicted" if evicted > 0 else ""
    return [("remote", None, fetched), ("cache", held / capacity if capacity else 0.0, cache)]
