"""What the verbs show while they work, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from headrace.errors import printable

# Exit codes: 0 all is well, 1 bad records were found, 2 wrong usage, or files that can't be read or written.
BAD_RECORDS = 1
FAILED = 2
INTERRUPTED = 130  # by Ctrl-C, as shells have it


class RateColumn(ProgressColumn):
    """Samples per second."""

    def render(self, task: Task) -> Text:
        """The rate over the last seconds; nothing before one is known."""
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f}/s" if speed else "")


@contextmanager
def progress_bar(doing: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar with count, rate and remaining time: call what this gives with (done, total)."""
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), RateColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def failing(verb: str, console: Console) -> Iterator[None]:
    """Ends the command with exit code 2 and a message, where the body raises an error that a user can fix."""
    try:
        yield
    except (OSError, ValueError) as error:
        message = "\n".join(map(printable, f"headrace {verb}: {error}".split("\n")))
        console.print(message, style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(FAILED) from None
