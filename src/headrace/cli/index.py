"""`headrace index`: entry points for an image folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from headrace.packs.entry_index import DEFAULT_EVERY, build_entry_index


def index(
    folder: Annotated[Path, typer.Argument(help="The folder that ImageFolder gets.")],
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; default: the usable cores.")] = None,
    every: Annotated[int, typer.Option(min=0, help="MCUs between entry points; 0: by size.")] = DEFAULT_EVERY,
) -> None:
    """Makes crops of FOLDER's JPEGs cheaper, without changing a byte of them.

    Writes one file, .headrace-entry-points.arrow, into FOLDER (into the user's cache where FOLDER can't be
    written to). Loaders find it by themselves. Run it again when files have changed: only those are read.
    """
    columns = (TextColumn("indexing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    try:
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=None)
            summary = build_entry_index(
                folder,
                workers=workers,
                every=every,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except OSError as error:
        console.print(f"headrace index: {error}", style="red", markup=False)
        raise typer.Exit(2) from None
    share = summary.index_bytes / max(1, summary.data_bytes)
    typer.echo(
        f"{summary.path}: {summary.indexed:,} of {summary.files:,} files have entry points"
        f" ({summary.reused:,} reused), {summary.index_bytes / 1e6:,.1f} MB, {share:.1%} of the files' bytes"
    )
