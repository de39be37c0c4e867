"""headrace top: a running job, seen from outside."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

import psutil
import typer
from rich.console import Console

from headrace.cli.progress import failing
from headrace.cli.screen import show
from headrace.cli.top_view import draw, duration, printable
from headrace.cli.watch import Watch, owner, roots
from headrace.errors import ConfigError
from headrace.export.watching import jobs


def top(
    pid: Annotated[int | None, typer.Argument(help="Of the training process, or of torchrun.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one frame as JSON and end.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between looks.")] = 1.0,
) -> None:
    """Watches a running job: throughput, stall, queue, stages, processes, disk, GPUs. q ends it.

    Without PID: the job of yours that uses headrace.DataLoader, or a list of them where there are several.
    Exit codes: 0; 2: there is no such job.
    """
    console = Console(highlight=False)
    with failing("top", Console(stderr=True)):
        chosen = _chosen(pid)
        if isinstance(chosen, list):
            _list(console, chosen, as_json)
            return
        watch = Watch(chosen, interval)
        if not watch.look():
            raise ConfigError(f"there is no process {chosen}.")
    if as_json or once or not (sys.stdin.isatty() and console.is_terminal):
        time.sleep(interval)
        watch.look()
        if as_json:
            print(json.dumps(asdict(watch.frame()), indent=1))  # noqa: T201
        else:
            console.print(draw(watch.frame(), watch.stalls, console.width, sys.maxsize), soft_wrap=True)
        return
    if show(console, watch, interval):
        console.print(f"Process {chosen} has ended.")


def _chosen(pid: int | None) -> int | list[int]:
    """The job to show, or those to choose from."""
    if pid is not None:
        user = owner(pid)
        if user not in (None, os.geteuid()):
            Console(stderr=True).print(
                f"Process {pid} runs as user {user}, who alone may ask for its loaders' figures: sudo -u"
                f" '#{user}' headrace top {pid}",
                soft_wrap=True,
            )
        return pid
    found = list(roots(jobs()))
    if not found:
        raise ConfigError(
            "no running job of yours iterates over a headrace.DataLoader. headrace top PID shows what can be"
            " seen from outside of any job."
        )
    return found[0] if len(found) == 1 else found


def _list(console: Console, pids: list[int], as_json: bool) -> None:
    rows = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):  # it has ended just now
            process = psutil.Process(pid)
            rows.append((pid, time.time() - process.create_time(), " ".join(process.cmdline())))
    if as_json:
        print(json.dumps([{"pid": p, "uptime": up, "command": command} for p, up, command in rows]))  # noqa: T201
        return
    for number, uptime, command in rows:
        console.print(f"{number:>8} {duration(uptime):>9}  {printable(command)}", markup=False, no_wrap=True)
    console.print("Several jobs: headrace top PID shows one.")
