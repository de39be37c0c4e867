"""`headrace top`: watches a running job from outside."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.progress import JsonFile, check_outputs, failing, give_json
from headrace.errors import ConfigError


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
    from headrace.cli.watch import Watch, choose, draw, print_jobs, show

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
