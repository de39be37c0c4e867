"""`headrace run` and `headrace explain`: a training command with Headrace in place of torch's DataLoader."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import headrace
from headrace import replacement
from headrace.cli.progress import failing

Command = Annotated[list[str], typer.Argument(help="A script or a program, and its arguments.")]
Module = Annotated[bool, typer.Option("-m", help="Run a library module as a script, like `python -m`.")]


def run(
    command: Command,
    module: Module = False,
    compare: Annotated[
        float | None,
        typer.Option(
            min=0.5,
            metavar="SECONDS",
            help="Compare each loader with torch's for so many seconds instead of training.",
        ),
    ] = None,
    plans: Annotated[
        bool, typer.Option("--explain", help="Print the whole plan of each loader in the report.")
    ] = False,
) -> None:
    """Runs a training command with Headrace in place of torch's DataLoader, without changing a line of it.

    The command is a Python script, a module (-m) or any program that starts Python,
    such as torchrun or accelerate launch. In all processes that it starts,
    torch.utils.data.DataLoader creates Headrace's loaders. When it ends, what each
    loader did is printed to standard error, with the line to change to keep it.
    Nothing is written anywhere. Exit code, signals and output are the command's.
    """
    report = "report plans" if plans else "report"
    with failing("run", Console(stderr=True)):
        _execute(command, module, report if compare is None else f"compare:{compare}")


def explain(command: Command, module: Module = False) -> None:
    """Prints the plans of all loaders of a training command, without training.

    The command runs with Headrace's loaders, each of which gives a single batch per
    epoch. It ends when it comes for the second epoch of a loader, or for the third
    if it took one batch of the first and asked for no more.
    """
    with failing("explain", Console(stderr=True)):
        _execute(command, module, "explain")


def _execute(command: list[str], module: bool, mode: str) -> None:
    """Replaces this process by the command."""
    startup = str(Path(headrace.__file__).parent / "_startup")
    path = os.pathsep.join(filter(None, (startup, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, replacement.VARIABLE: mode}
    program = _program(command, module)
    sys.stdout.flush()
    os.execve(program[0], program, environment)


def _program(command: list[str], module: bool) -> list[str]:
    """The command with the path of the program to execute."""
    if command[0].startswith("-"):
        raise typer.BadParameter(
            f"{command[0]} is no option of this verb; the script's options come after its name."
        )
    if module:
        return [sys.executable, "-m", *command]
    if Path(command[0]).is_file() and (command[0].endswith(".py") or not os.access(command[0], os.X_OK)):
        return [sys.executable, *command]
    program = shutil.which(command[0])
    if program is None:
        raise typer.BadParameter(
            f"{command[0]} is neither a script nor a program on PATH; for a module give -m."
        )
    return [program, *command[1:]]
