"""`headrace top`: watches a running job from outside."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
import typer
from rich.console import Console

from headrace_doctor.cli.progress import JsonFile, check_outputs, failing, give_json
from headrace_doctor.errors import ConfigError, printable
from headrace_doctor.measure.processes import look

if TYPE_CHECKING:
    from headrace.export import Job


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
    from headrace_doctor.cli.top_view import Watch, draw, show

    check_outputs(json_file)
    console = Console(highlight=False)
    with failing("top", Console(stderr=True)):
        chosen = choose(pid)
        if isinstance(chosen, list):
            print_jobs(console, chosen, json_file)
            return
        watch = Watch(chosen)
        if not watch.look():
            raise ConfigError(f"there is no process {chosen}.")
    if not (json_file or once) and sys.stdin.isatty() and console.is_terminal:
        if show(console, watch, interval):
            console.print(f"Process {chosen} has ended.")
        return
    time.sleep(interval)
    watch.look()
    if give_json(watch.frame(), json_file):
        console.print(draw(watch.frame()))


def roots(found: Iterable[Job]) -> dict[int, list[int]]:
    """The numbers of jobs, each with those of its processes that publish: ranks that one launcher has started
    are one job, and a process's descendants are part of it."""
    pids = {job.pid: job for job in found}
    parents = {pid: _ancestors(pid) for pid in pids}
    own = [pid for pid in pids if not pids.keys() & set(parents[pid])]
    launchers = {}
    for pid in own:
        answer = pids[pid].ask()
        if answer is not None and answer["world_size"] not in (None, "1") and parents[pid]:
            launchers[pid] = parents[pid][0]
    shared = list(launchers.values())
    jobs_of: dict[int, list[int]] = {}
    for pid in own:
        launcher = launchers.get(pid)
        root = launcher if launcher is not None and shared.count(launcher) > 1 else pid
        jobs_of.setdefault(root, []).append(pid)
    return jobs_of


def _ancestors(pid: int) -> list[int]:
    """Nearest first."""
    try:
        return [one.pid for one in psutil.Process(pid).parents()]
    except psutil.NoSuchProcess:
        return []


def choose(pid: int | None) -> int | list[int]:
    """The job to show, or those to choose from."""
    if pid is not None:
        with suppress(OSError):
            user = os.stat(f"/proc/{pid}").st_uid
            if user != os.geteuid():
                Console(stderr=True).print(
                    f"Process {pid} runs as user {user}, the only one who may read its loaders' metrics: sudo"
                    f" -u '#{user}' headrace top {pid}",
                    soft_wrap=True,
                )
        return pid
    from headrace_doctor.cli.top_view import running

    found = list(roots(running({})))
    if not found:
        raise ConfigError(
            "no running Headrace jobs found for this user. headrace top PID shows what can be seen of any"
            " job from outside."
        )
    return found[0] if len(found) == 1 else found


def print_jobs(console: Console, pids: list[int], json_file: Path | None) -> None:
    """Lists jobs to choose from, or gives them as JSON."""
    from headrace_doctor.cli.top_view import duration

    trees = [(pid, look(pid).processes) for pid in pids]
    rows = [(pid, time.time() - tree[0].started, tree[0].command) for pid, tree in trees if tree]
    if not give_json([{"pid": p, "uptime": up, "command": command} for p, up, command in rows], json_file):
        return
    for number, uptime, command in rows:
        console.print(f"{number:>8} {duration(uptime):>9}  {printable(command)}", markup=False, no_wrap=True)
    console.print("Several jobs: headrace top PID shows one.")
