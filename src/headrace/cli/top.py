"""`headrace top`: watches a running job from outside; `top_view` draws it."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from headrace.cli.progress import JsonFile, check_outputs, failing, give_json
from headrace.cli.top_view import Json, Look, draw, duration, frame, slowest
from headrace.errors import ConfigError, printable, require
from headrace.export.live import Job, jobs
from headrace.measure.nvml import gpus
from headrace.measure.processes import look

# "Now" is the mean over so many seconds; the mean stall goes back a minute.
NOW_SECONDS, MINUTE = 5.0, 60.0
FIRST_SECONDS = 0.5  # until the first frame, where the interval is longer


def top(
    pid: Annotated[int | None, typer.Argument(help="Process ID of the training, or of torchrun.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    json_file: JsonFile = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Refresh interval in seconds.")] = 1.0,
) -> None:
    """Shows a running job: throughput, stall, queue, stages, processes, disk, GPUs. Press q to quit.

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
        watch = Watch(chosen, interval)
        if not watch.look():
            raise ConfigError(f"there is no process {chosen}.")
    if not (json_file or once) and sys.stdin.isatty() and console.is_terminal:
        if show(console, watch, interval):
            console.print(f"Process {chosen} has ended.")
        return
    time.sleep(interval)
    watch.look()
    if give_json(watch.frame(), json_file):
        console.print(draw(watch.frame(), watch.stalls))


class Watch:
    """One job: a process and all its descendants, any of which may have loaders.

    Args:
        pid: of the process.
        interval: between looks, in seconds.

    Attributes:
        stalls: between looks, of the loader that waited most; oldest first, None where there was no step.
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


@contextmanager
def keys() -> Iterator[Callable[[float], bool]]:
    """Keys reach this program as they are pressed, and aren't shown. Ctrl-C stays.

    Yields:
        A function that waits for so many seconds, and returns True at once if q is pressed or the terminal
        goes away.
    """
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def quit_within(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0]:
            try:
                pressed = os.read(terminal, 64)
            except OSError:
                return True  # nobody is there any more
            if not pressed or b"q" in pressed.lower():
                return True
        return False

    tty.setcbreak(terminal)
    try:
        yield quit_within
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def show(console: Console, watch: Watch, interval: float) -> bool:
    """Draws until q, Ctrl-C or SIGTERM (False), or the job's end (True); restores the terminal."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pause = min(interval, FIRST_SECONDS)
    with (
        suppress(KeyboardInterrupt),
        keys() as quit_within,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while not quit_within(pause):
            if not watch.look():
                return True
            live.update(draw(watch.frame(), watch.stalls), refresh=True)
            pause = interval
    return False


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
    psutil = require("psutil", "cli")
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
    found = list(roots(jobs()))
    if not found:
        raise ConfigError(
            "no running Headrace jobs found for this user. headrace top PID shows what can be seen of any"
            " job from outside."
        )
    return found[0] if len(found) == 1 else found


def print_jobs(console: Console, pids: list[int], json_file: Path | None) -> None:
    """Lists jobs to choose from, or gives them as JSON."""
    trees = [(pid, look(pid).processes) for pid in pids]
    rows = [(pid, time.time() - tree[0].started, tree[0].command) for pid, tree in trees if tree]
    if not give_json([{"pid": p, "uptime": up, "command": command} for p, up, command in rows], json_file):
        return
    for number, uptime, command in rows:
        console.print(f"{number:>8} {duration(uptime):>9}  {printable(command)}", markup=False, no_wrap=True)
    console.print("Several jobs: headrace top PID shows one.")
