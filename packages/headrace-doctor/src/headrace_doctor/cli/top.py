"""`headrace top`: watches the loaders of a running job from outside."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import psutil
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace_doctor.cli.progress import JsonFile, check_outputs, failing, give_json
from headrace_doctor.errors import ConfigError, printable, size
from headrace_doctor.measure.processes import cores_of, family

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
) | {"length": None, "state": "new"}
# What is shown as it was published.
COPIED = (
    *("number", "dataset", "batch_size", "samples", "waiting_seconds", "memory_used", "memory_allowed"),
    *("skipped", "replaced"),
)


def top(
    pid: Annotated[int | None, typer.Argument(help="Process ID of the training, or of torchrun.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    json_file: JsonFile = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Refresh interval in seconds.")] = 1.0,
) -> None:
    """Shows the loaders of a running job: throughput, stall, queue, epoch. Ctrl-C ends it.

    Without PID it shows your only running job, or a list if there are several.

    Exit codes: 0 shown; 2 wrong usage, or no such job.
    """
    check_outputs(json_file)
    console = Console(highlight=False)
    with failing("top", Console(stderr=True)):
        chosen = choose(pid)
        if isinstance(chosen, list):
            print_jobs(console, chosen, json_file)
            return
        watch = Watch(chosen)
    if not (json_file or once) and sys.stdin.isatty() and console.is_terminal:
        if show(console, watch, interval):
            console.print(f"Process {chosen} has ended.")
        return
    with failing("top", Console(stderr=True)):
        time.sleep(interval)
        frame = watch.frame()
        if frame is None:
            raise ConfigError(f"process {chosen} has ended.")
    if give_json(frame, json_file):
        console.print(draw(frame))


def running(known: Mapping[str, Job]) -> list[Job]:
    """This user's processes that can be asked about their loaders, or none if Headrace isn't installed."""
    try:
        from headrace.export import jobs
    except ModuleNotFoundError:
        return []
    return jobs(known)


def roots(running: Iterable[Job]) -> list[int]:
    """The numbers of jobs: of the launcher of ranks, or of a process that isn't part of another."""
    pids, found = {job.pid: job for job in running}, []
    for pid, job in pids.items():
        with suppress(psutil.NoSuchProcess):
            parents = [one.pid for one in psutil.Process(pid).parents()]  # nearest first
            if pids.keys() & set(parents):
                continue
            answer = job.ask()
            is_rank = answer is not None and answer["world_size"] not in (None, "1") and parents
            found.append(parents[0] if is_rank else pid)
    return list(dict.fromkeys(found))


def choose(pid: int | None) -> int | list[int]:
    """The job to show, or those to choose from."""
    if pid is not None:
        return pid
    pids = roots(running({}))
    if not pids:
        raise ConfigError(
            "no running Headrace jobs found for this user. headrace top PID shows what can be seen of any"
            " job from outside."
        )
    return pids[0] if len(pids) == 1 else pids


def print_jobs(console: Console, pids: list[int], json_file: Path | None) -> None:
    """Lists jobs to choose from, or gives them as JSON."""
    rows = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            rows.append((pid, time.time() - process.create_time(), " ".join(process.cmdline())))
    if not give_json([{"pid": p, "uptime": up, "command": command} for p, up, command in rows], json_file):
        return
    for number, uptime, command in rows:
        console.print(f"{number:>8} {duration(uptime):>9}  {printable(command)}", markup=False, no_wrap=True)
    console.print("Several jobs: headrace top PID shows one.")


class Watch:
    """One job: a process and all its descendants, any of which may have loaders."""

    def __init__(self, pid: int) -> None:
        try:
            self._root = psutil.Process(pid)
        except psutil.NoSuchProcess:
            raise ConfigError(f"there is no process {pid}.") from None
        self._jobs: dict[str, Job] = {}
        self._before = (time.perf_counter(), 0.0, dict[int, Json]())
        self.frame()

    def frame(self) -> Json | None:
        """The job since the last call, as `headrace top --json` prints it, or None once it has ended.

        Of "ranks", the processes with loaders, each loader has what it publishes, with "samples_per_second",
        "left_seconds" of the epoch and "stall" (the share of the steps' time that they waited, or None).
        """
        processes = family(self._root)
        if not processes:
            return None
        self._jobs = {job.name: job for job in running(self._jobs)}
        answers = {job.pid: job.ask() for job in self._jobs.values() if job.pid in processes}
        known = {pid: answer for pid, answer in answers.items() if answer is not None}
        clock, cpu = time.perf_counter(), sum(one.cpu_seconds for one in processes.values())
        (clock_before, cpu_before, answers_before), self._before = self._before, (clock, cpu, known)
        ranks = [_rank(pid, answers_before.get(pid), answer) for pid, answer in known.items()]
        root, seconds = processes[self._root.pid], max(1e-9, clock - clock_before)
        return {
            "seconds": seconds,
            "pid": self._root.pid,
            "command": root.command,
            "uptime": time.time() - root.started,
            "processes": len(processes),
            "cpu": max(0.0, cpu - cpu_before) / seconds,
            "cores": cores_of(self._root.pid),
            "memory": sum(one.memory for one in processes.values()),
            "ranks": sorted(ranks, key=lambda one: (one["rank"] is None, one["rank"] or 0, one["pid"])),
            "silent": [pid for pid in answers.keys() - known.keys() if os.path.exists(f"/proc/{pid}")],
        }


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
            frame = watch.frame()
            if frame is None:
                return True
            live.update(draw(frame), refresh=True)
            pause = interval
    return False


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
    state = "starting" if epoch["state"] == "running" and not epoch["batches"] else epoch["state"]
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


def _waited(answer: Json) -> tuple[float, float]:
    """Seconds waited by steps, and for first batches, with a wait that still lasts."""
    first = answer["epoch"] is not None and not answer["epoch"]["batches"]
    lasting = answer["waiting_seconds"]
    return answer["stall_seconds"] + (0 if first else lasting), answer["startup_seconds"] + first * lasting


def draw(frame: Json) -> Group:
    """The whole view, for 80 columns and more."""
    title = Text(f"headrace top  pid {frame['pid']}, up {duration(frame['uptime'])}  ", style="bold")
    program, _, arguments = printable(frame["command"]).partition(" ")  # which others choose
    title.append(f"{program.rpartition('/')[2]} {arguments}", style="not bold dim").no_wrap = True
    others = f", {frame['processes'] - 1} more processes" if frame["processes"] > 1 else ""
    used = f"cpu {frame['cpu']:.2f} of {frame['cores']:g} cores; {size(frame['memory'])} resident{others}"
    lines: list[RenderableType] = [title, Text(used)]
    rows = [(rank, loader) for rank in frame["ranks"] for loader in rank["loaders"]]
    rows.sort(key=lambda row: (row[1]["state"] not in ("starting", "running"), -(row[1]["stall"] or 0.0)))
    if rows:
        lines += ["", _table(rows[:ROWS])]
    elif not frame["silent"]:
        lines += ["", NOT_PUBLISHED]
    if len(rows) > ROWS:
        lines.append(Text(f"and {len(rows) - ROWS} more loaders", style="dim"))
    for rank, loader in rows[:ROWS]:
        waits = loader["waiting_seconds"]
        parts = [f"{loader[what]:,} samples {what}" for what in ("skipped", "replaced") if loader[what]]
        if loader["state"] in ("starting", "running") and waits >= LONG_SECONDS:
            parts.append(f"a batch has been awaited for {waits:.1f} s")
        if parts:
            lines.append(Text(f"process {rank['pid']}: {', '.join(parts)}", style="yellow"))
    lines += [Text(f"process {pid} doesn't answer", style="yellow") for pid in frame["silent"]]
    return Group(*lines)


def _table(rows: list[tuple[Json, Json]]) -> Table:
    """A row for each loader; those whose steps wait most come first."""
    table = Table(box=None, padding=(0, 1), header_style="bold", pad_edge=False)
    for name in ("rank", "pid", "samples/s", "stall", "ready", "epoch", "left", "loader"):
        justify: Literal["left", "right"] = "left" if name in ("epoch", "loader") else "right"
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")
    for rank, loader in rows:
        number = "" if rank["rank"] is None else str(rank["rank"])
        running = loader["state"] == "running"
        rate = loader["samples_per_second" if running else "epoch_samples_per_second"]
        share = loader["stall"] if running else loader["epoch_stall"]
        style = "" if share is None else "red" if share > SLOW else "yellow" if share >= LATE else "green"
        stall = Text("" if share is None else f"{share:.1%}", style=style)
        queue = f"{loader['ready']:.1f} of {loader['depth']}" if loader["depth"] else ""
        dataset = Text(f"{loader['number']}: {printable(loader['dataset'])}")
        left = "" if loader["left_seconds"] is None else duration(loader["left_seconds"])
        epoch = "not started" if loader["state"] == "new" else f"{loader['epoch']} {loader['state']}"
        if running:
            whole = "" if loader["length"] is None else f" of {loader['length']:,}"
            epoch = f"{loader['epoch']}, batch {loader['batches']:,}{whole}"
        cells = (number, str(rank["pid"]), f"{rate:,.0f}", stall, queue, epoch, left, dataset)
        table.add_row(*cells, style="" if running else "dim")
    return table


def duration(seconds: float) -> str:
    """A duration as 1:02:33, or 0:07."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
