"""The verbs' common parts: progress, `--json`, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace_doctor.errors import printable

# Exit codes besides 0: something bad was found; wrong usage, or files that cannot be read or written; Ctrl-C.
BAD_RECORDS = 1
FAILED = 2
INTERRUPTED = 130  # 128 + SIGINT, as in shells
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write the result to this file as JSON; - prints it instead of the report.",
    ),
]
STANDARD_OUTPUT = Path("-")
# Settings of verbs that take a script: options that follow it are its own.
OF_SCRIPTS = {"allow_interspersed_args": False, "ignore_unknown_options": True}


def check_outputs(*paths: Path | None) -> None:
    """Ends the command immediately if a result could not be written after minutes of work."""
    for path in paths:
        try:
            if path is not None and path != STANDARD_OUTPUT:
                path.touch()
        except OSError as error:
            raise typer.BadParameter(f"{path} can't be written: {error.strerror}.") from error


def give_json(value: Any, path: Path | None) -> bool:
    """Writes `value` to the file given by `--json`. Returns whether a report is to be printed, too."""
    if path is not None:
        text = json.dumps(value, indent=1) + "\n"
        if path == STANDARD_OUTPUT:
            typer.echo(text, nl=False)
            return False
        path.write_text(text, encoding="utf-8")
    return True


@contextmanager
def progress_bar(doing: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar with count and remaining time. Yields a function to call with (done, total)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def failing(verb: str, console: Console) -> Iterator[None]:
    """Ends the command with exit code 2 and a message if the body raises an error that a user can fix."""
    try:
        yield
    except (OSError, ValueError) as error:
        text = str(error)
        if isinstance(error, OSError) and isinstance(error.filename, str) and error.strerror:
            text = f"{error.filename}: {error.strerror}"
        message = "\n".join(map(printable, f"headrace {verb}: {text}".split("\n")))
        console.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(FAILED) from None
