"""`headrace verify`: whether a pack contains what was packed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from headrace.cli.progress import BAD_RECORDS, JsonFile, check_outputs, failing, give_json, progress_bar

if TYPE_CHECKING:
    from headrace.packs.verify import Verdict


def verify(
    pack: Annotated[str, typer.Argument(help="A folder written by headrace pack, or its URL.")],
    against: Annotated[
        str | None, typer.Option(help="The source that it was made from: compare with it.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads. Default: usable cores.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Reads a whole pack and reports every record that differs from what was packed.

    Sizes of shards, offsets and checksums of all images, and labels are compared
    with the index; with --against, keys, labels and fields also with the
    source, and images byte for byte, or pixel for pixel if the pack was made
    with --optimize or --reencode png.

    Exit codes: 0 no problems; 1 bad records were found, one line each; 2 wrong
    usage, or an index or source that cannot be read.
    """
    check_outputs(json_file)
    console = Console(stderr=True)
    with failing("verify", console), progress_bar("verifying", console) as progress:
        from headrace.packs.verify import verify as run

        verdict = run(pack, against=against, workers=workers, progress=progress)
    if give_json(asdict(verdict), json_file):
        _report(pack, verdict, console)
    if verdict.problems:
        raise typer.Exit(BAD_RECORDS)


def _report(pack: str, verdict: Verdict, console: Console) -> None:
    for problem in verdict.problems:
        typer.echo(str(problem))
    for note in verdict.notes:
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)
    typer.echo(f"{pack}: {verdict.samples:,} samples, {len(verdict.problems):,} problems")
