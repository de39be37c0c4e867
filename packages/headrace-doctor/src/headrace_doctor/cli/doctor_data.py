"""`headrace doctor data`: why a dataset is not found, and which of its files are bad."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace_doctor.cli.progress import (
    BAD_RECORDS,
    JsonFile,
    check_outputs,
    failing,
    give_json,
    progress_bar,
)


def data(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of images.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Check names and permissions only, without decoding.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads. Default: usable cores + 1.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Explains why a dataset is not found, and lists its bad files.

    Checks what torchvision's ImageFolder and ImageNet depend on: the level of the
    folder, splits, classes, extensions, permissions and links. Then decodes every
    image, and reports those that are truncated, damaged or misnamed.

    Exit codes: 0 no problems; 1 something is bad; 2 wrong usage.
    """
    from headrace_doctor.doctor.data import judge_folder
    from headrace_doctor.doctor.text import print_checkup
    from headrace_doctor.machine import usable_cores
    from headrace_doctor.measure.images import decode_all, list_split, look_at, split_of

    check_outputs(json_file)
    console, workers = Console(stderr=True), workers or usable_cores() + 1
    with failing("doctor data", console):
        place = look_at(str(path))
        splits = []
        for name, leaf in place.leaves(split_of(path.resolve().name)):
            if leaf.kind in ("classes", "images"):
                flat = leaf.kind == "images"
                with progress_bar(f"listing {leaf.path}", console) as bar:
                    split = list_split(name, leaf.path, flat=flat, workers=workers, progress=bar)
                splits.append(split)
        if not quick:
            with progress_bar("decoding", console) as bar:
                decode_all(splits, workers=workers, progress=bar)
        checkup = judge_folder(place, splits, decoded=not quick)
        report = give_json(checkup.to_json(), json_file)
    if report:
        print_checkup(Console(highlight=False), checkup)
    if not checkup.healthy:
        raise typer.Exit(BAD_RECORDS)
