"""`headrace index`: entry points for an image folder, or an index for WebDataset shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.progress import failing, progress_bar


def index(
    path: Annotated[Path, typer.Argument(help="An image folder, a .tar file, or a folder of .tar files.")],
    workers: Annotated[int | None, typer.Option(min=1, help="Threads. Default: usable cores.")] = None,
    every: Annotated[
        int, typer.Option(min=0, help="For image folders: MCUs between entry points; 0 chooses by file size.")
    ] = 0,
) -> None:
    """Makes crops of the JPEGs in PATH cheaper, without changing a byte of them.

    For an image folder it writes .headrace-entry-points.arrow, which loaders find
    automatically. Run it again when files have changed: only those are read.

    For WebDataset shards it writes index.arrow, for headrace.PackedDataset.

    If the folder is read-only, the file is written to the user cache directory.

    Exit codes: 0 indexed; 2 wrong usage, or a file that cannot be read or written.
    """
    console = Console(stderr=True)
    with failing("index", console), progress_bar("indexing", console) as progress:
        from headrace.packs.index import build_entry_index, build_shard_index
        from headrace.sources.tar_index import LMDB_FILE

        if path.is_file() or any(path.glob("*.tar")) or (path / LMDB_FILE).is_file():
            summary, kind = build_shard_index(path, workers=workers, progress=progress), "samples"
        else:
            summary = build_entry_index(path, workers=workers, every=every, progress=progress)
            kind = f"files ({summary.reused:,} reused)"
    typer.echo(
        f"{summary.path}: {summary.indexed:,} of {summary.samples:,} {kind} have entry points,"
        f" {summary.index_bytes / 1e6:,.1f} MB, {summary.index_bytes / max(1, summary.data_bytes):.1%} of the"
        " data"
    )
