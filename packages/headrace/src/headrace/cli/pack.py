"""`headrace pack`: a dataset in a few large files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from headrace.cli.progress import INTERRUPTED, failing, progress_bar
from headrace.errors import printable
from headrace.packs import DEFAULT_SHARD_SIZE

if TYPE_CHECKING:
    from headrace.packs.build import PackSummary

MB = 1_000_000
# Unchanged images that are listed; the index has the rest.
NAMED = 20


def pack(
    src: Annotated[
        str, typer.Argument(help="ImageFolder tree or pack (or its URL), ILSVRC2012 tar, WebDataset, LMDB.")
    ],
    dest: Annotated[str, typer.Argument(help="The folder to create, or its URL (s3://, gs://, az://).")],
    format_: Annotated[
        Literal["tar", "lmdb"], typer.Option("--format", help="tar: WebDataset shards.")
    ] = "tar",
    optimize: Annotated[
        bool, typer.Option("--optimize", help="Rewrite JPEGs losslessly: smaller, with restart markers.")
    ] = False,
    strip: Annotated[
        bool, typer.Option("--strip", help="With --optimize: drop EXIF, ICC profiles and comments.")
    ] = False,
    reencode: Annotated[
        Literal["png", "jpeg"] | None,
        typer.Option(help="Re-encode images that are not JPEGs; jpeg is LOSSY. Default: keep."),
    ] = None,
    max_side: Annotated[
        int | None, typer.Option(min=1, help="LOSSY: scale images down to this longer side, in pixels.")
    ] = None,
    quality: Annotated[
        int | None,
        typer.Option(min=1, max=100, help="LOSSY: JPEG quality of re-encoded images. Default: 95."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Threads. Default: usable cores + 1. With --ray: cores per shard."),
    ] = None,
    shard_size: Annotated[
        int, typer.Option(min=1, help="MB of source files per shard, at most.")
    ] = DEFAULT_SHARD_SIZE // MB,
    shuffle: Annotated[
        int | None, typer.Option(help="Seed of a random order in which to store the samples.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Build shards on a Ray cluster: auto, local, or its address."),
    ] = None,
) -> None:
    """Packs a dataset into a few large files with an index, without changing a byte of its images.

    Writes tar shards that any WebDataset reader can open, and index.arrow, to DEST;
    read them with headrace.PackedDataset. If it is interrupted, even by kill -9, run
    the same command again: it continues after the last finished shard. DEST
    exists only once it is complete.

    Exit codes: 0 packed, or already up to date; 2 wrong usage, or a file that cannot be
    read or written; 130 interrupted by Ctrl-C.
    """
    from headrace.packs.pack import pack as run

    console = Console(stderr=True)
    with failing("pack", console), kept(console), progress_bar("packing", console) as progress:
        summary = run(
            src,
            dest,
            format=format_,
            optimize=optimize,
            strip=strip,
            reencode=reencode,
            max_side=max_side,
            quality=quality,
            workers=workers,
            shard_size=shard_size * MB,
            shuffle=shuffle,
            ray=ray,
            progress=progress,
        )
    _report(summary, console)


@contextmanager
def kept(console: Console) -> Iterator[None]:
    """Reports at Ctrl-C that finished work is kept."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("Interrupted: finished shards are kept. Run the same command again to continue.")
        raise typer.Exit(INTERRUPTED) from None


def _report(summary: PackSummary, console: Console) -> None:
    state = " is up to date" if summary.up_to_date else ""
    reused = f" ({summary.reused:,} of an earlier run)" if summary.reused and not state else ""
    typer.echo(
        f"{summary.path}{state}: {summary.samples:,} samples in {summary.shards:,} shards{reused},"
        f" {summary.pack_bytes / 1e6:,.1f} MB, {summary.pack_bytes / max(1, summary.source_bytes):.1%} of the"
        " source's bytes"
    )
    for note in summary.notes:
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)
    if summary.kept:
        console.print(f"{len(summary.kept):,} images are kept unchanged:", style="yellow", highlight=False)
        for key, why in summary.kept[:NAMED]:
            console.print(printable(f"  {key}: {why}"), markup=False, highlight=False, soft_wrap=True)
        if len(summary.kept) > NAMED:
            console.print(
                f"  and {len(summary.kept) - NAMED:,} more: headrace info lists all of them", highlight=False
            )
