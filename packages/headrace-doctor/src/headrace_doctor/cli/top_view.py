"""What `headrace top` computes from two looks at a job, and how it draws it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace_doctor.errors import printable, size
from headrace_doctor.measure.processes import TreeLook, look

if TYPE_CHECKING:
    from headrace.export import Job

Json = dict[str, Any]
# Shares of waited time from which on a loader is called late, and too slow; see docs/stats.md.
LATE, SLOW = 0.05, 0.20
ROWS = 12  # loaders that are shown: those that wait most
FIRST_SECONDS = 0.5  # until the first frame, if the interval is longer
LONG_SECONDS = 2.0  # a step that has waited this long gets a line of its own
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
    """

    tree: TreeLook
    said: Mapping[int, Json]
    silent: tuple[int, ...] = ()


def running(known: Mapping[str, Job]) -> list[Job]:
    """This user's processes that can be asked about their loaders, or none if Headrace isn't installed."""
    try:
        from headrace.export import jobs
    except ModuleNotFoundError:
        return []
    return jobs(known)


class Watch:
    """One job: a process and all its descendants, any of which may have loaders.

    Args:
        pid: number of the process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._started: float | None = None
        self._before: Look | None = None
        self._now: Look | None = None
        self._jobs: dict[str, Job] = {}

    def look(self) -> bool:
        """Looks; returns False once the job has ended."""
        tree = look(self._pid)
        # Another process may have its number by now.
        if not tree.processes or self._started not in (None, tree.processes[0].started):
            return False
        self._started = tree.processes[0].started
        self._jobs = {job.name: job for job in running(self._jobs)}
        pids = {one.pid for one in tree.processes}
        said = {job.pid: job.ask() for job in self._jobs.values() if job.pid in pids}
        known = {pid: answer for pid, answer in said.items() if answer is not None}
        silent = tuple(pid for pid in said.keys() - known.keys() if os.path.exists(f"/proc/{pid}"))
        self._before, self._now = self._now, Look(tree, known, silent)
        return True

    def frame(self) -> Json:
        """The job between the last two looks."""
        assert self._before is not None
        assert self._now is not None
        return frame(self._before, self._now, time.time())


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
            live.update(draw(watch.frame()), refresh=True)
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
        epoch and "stall" (the share of the steps' time that they waited; None if there was no step).
    """
    seconds = now.tree.clock - before.tree.clock
    root = now.tree.processes[0]
    old = {(one.pid, one.started): one.cpu_seconds for one in before.tree.processes}
    spent = [
        max(0.0, one.cpu_seconds - old[one.pid, one.started])
        for one in now.tree.processes
        if (one.pid, one.started) in old
    ]
    ranks = [_rank(pid, before.said.get(pid), said) for pid, said in now.said.items()]
    return {
        "seconds": seconds,
        "pid": root.pid,
        "command": root.command,
        "uptime": at - root.started,
        "processes": len(now.tree.processes),
        "cpu": sum(spent) / seconds if seconds > 0 else 0.0,
        "cores": now.tree.cores,
        "memory": sum(one.memory for one in now.tree.processes),
        "ranks": sorted(ranks, key=lambda one: (one["rank"] is None, one["rank"] or 0, one["pid"])),
        "silent": list(now.silent),
    }


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
    stall = None
    if then is not now and state == "running":
        (stalled, started), (stalled_then, started_then) = _waited(now), _waited(then)
        stepping = seconds - (started - started_then)
        stall = min(1.0, max(0.0, (stalled - stalled_then) / stepping)) if stepping > 0 else None
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
    }


def _waited(said: Json) -> tuple[float, float]:
    """Seconds waited by steps, and for first batches; a wait that still lasts included."""
    first = said["epoch"] is not None and not said["epoch"]["batches"]
    lasting = said["waiting_seconds"]
    return said["stall_seconds"] + (0 if first else lasting), said["startup_seconds"] + first * lasting


def draw(found: Json) -> Group:
    """The whole view, for 80 columns and more."""
    title = Text(f"headrace top  pid {found['pid']}, up {duration(found['uptime'])}  ", style="bold")
    title.append(_command(found["command"]), style="not bold dim").no_wrap = True
    others = f", {found['processes'] - 1} more processes" if found["processes"] > 1 else ""
    used = f"cpu {found['cpu']:.2f} of {found['cores']:g} cores; {size(found['memory'])} resident{others}"
    lines: list[RenderableType] = [title, Text(used)]
    rows = [(rank, loader) for rank in found["ranks"] for loader in rank["loaders"]]
    rows.sort(key=lambda row: (row[1]["state"] not in ("starting", "running"), -(row[1]["stall"] or 0.0)))
    if rows:
        lines += ["", _table(rows[:ROWS])]
    elif not found["silent"]:
        lines += ["", NOT_PUBLISHED]
    if len(rows) > ROWS:
        lines.append(Text(f"and {len(rows) - ROWS} more loaders", style="dim"))
    lines += [_remark(rank, loader) for rank, loader in rows[:ROWS] if _remark(rank, loader)]
    lines += [Text(f"process {pid} doesn't answer", style="yellow") for pid in found["silent"]]
    return Group(*lines)


def _table(rows: list[tuple[Json, Json]]) -> Table:
    """A row for each loader; those whose steps wait most come first."""
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    for name in ("rank", "pid", "samples/s", "stall", "ready"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("epoch", no_wrap=True)
    table.add_column("left", justify="right", no_wrap=True)
    table.add_column("loader", no_wrap=True, overflow="ellipsis")
    for rank, loader in rows:
        number = "" if rank["rank"] is None else str(rank["rank"])
        running = loader["state"] == "running"
        rate = loader["samples_per_second" if running else "epoch_samples_per_second"]
        share = loader["stall"] if running else loader["epoch_stall"]
        style = "" if share is None else "red" if share > SLOW else "yellow" if share >= LATE else "green"
        stall = Text("" if share is None else f"{share:.1%}", style=style)
        queue = f"{loader['ready']:.1f} of {loader['depth']}" if loader["depth"] else ""
        name = f"{loader['number']}: {printable(loader['dataset'])}"
        left = "" if loader["left_seconds"] is None else duration(loader["left_seconds"])
        cells = (number, str(rank["pid"]), f"{rate:,.0f}", stall, queue, _place(loader), left, Text(name))
        table.add_row(*cells, style="" if running else "dim")
    return table


def _place(loader: Json) -> str:
    if loader["state"] == "new":
        return "not started"
    if loader["state"] != "running":
        return f"{loader['epoch']} {loader['state']}"
    whole = "" if loader["length"] is None else f" of {loader['length']:,}"
    return f"{loader['epoch']}, batch {loader['batches']:,}{whole}"


def _remark(rank: Json, loader: Json) -> Text:
    """What is wrong with a loader; empty if nothing is."""
    waits = loader["waiting_seconds"]
    parts = [f"{loader[what]:,} samples {what}" for what in ("skipped", "replaced") if loader[what]]
    if loader["state"] in ("starting", "running") and waits >= LONG_SECONDS:
        parts.append(f"a batch has been awaited for {waits:.1f} s")
    return Text(f"process {rank['pid']}: {', '.join(parts)}" if parts else "", style="yellow")


def duration(seconds: float) -> str:
    """As 1:02:33, or 0:07."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def _command(command: str) -> str:
    """Without the program's folder, and without what would steer the terminal: others choose it."""
    program, _, arguments = printable(command).partition(" ")
    return f"{program.rpartition('/')[2]} {arguments}"
