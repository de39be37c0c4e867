"""`headrace doctor data`: what is the matter with a data set?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from headrace.cli.progress import BAD_RECORDS, failing, progress_bar

if TYPE_CHECKING:
    from headrace.doctor.records import Checkup
    from headrace.measure.tree import Place


def data(
    path: Annotated[
        Path, typer.Argument(metavar="DIR|PACK", help="A folder of images, or one that headrace pack made.")
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Look at names and sizes; decode nothing.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; default: usable cores + 1.")] = None,
    out: Annotated[
        Path | None, typer.Option("--json", help="Write all findings here, and every name.")
    ] = None,
) -> None:
    """Says why a data set isn't found, and which of its files are bad.

    Looks at what ImageFolder and ImageNet of torchvision look at: the level of
    the folder, splits, classes, extensions, permissions and links. Then decodes
    every image, and tells damaged ones, formats, sizes and equal files.

    Exit codes: 0 all is well; 1 something is bad; 2 wrong usage.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    from headrace.doctor.text import print_checkup
    from headrace.measure.machine import usable_cores
    from headrace.measure.tree import look_at, with_surroundings

    console = Console(stderr=True)
    with failing("doctor data", console):
        if out is not None:
            out.touch()  # an hour later would be late to find that it can't be written
        place = with_surroundings(look_at(str(path), IMG_EXTENSIONS), IMG_EXTENSIONS)
        examine = _of_pack if place.kind == "pack" else _of_folder
        checkup = examine(place, quick, workers or usable_cores() + 1, console)
        if out is not None:
            out.write_text(json.dumps(checkup.to_json(), indent=1) + "\n")
    print_checkup(Console(highlight=False), checkup)
    if not checkup.healthy:
        raise typer.Exit(BAD_RECORDS)


def _of_folder(place: Place, quick: bool, workers: int, console: Console) -> Checkup:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    from headrace.doctor.data import judge_folder
    from headrace.measure.listing import list_split
    from headrace.measure.tree import split_of
    from headrace.packs.decoding import decode_all
    from headrace.packs.ilsvrc import known_wnids

    splits = []
    for name, leaf in place.leaves(split_of(Path(place.path).resolve().name)):
        if leaf.kind in ("classes", "pictures"):
            with progress_bar(f"listing {leaf.path}", console) as progress:
                flat = leaf.kind == "pictures"
                splits.append(
                    list_split(name, leaf.path, IMG_EXTENSIONS, flat=flat, workers=workers, progress=progress)
                )
    if not quick:
        with progress_bar("decoding", console) as progress:
            decode_all(splits, workers=workers, progress=progress)
    return judge_folder(place, splits, decoded=not quick, known_wnids=known_wnids(place.path))


def _of_pack(place: Place, quick: bool, workers: int, console: Console) -> Checkup:
    from headrace.doctor.data import judge_pack
    from headrace.packs.decoding import decode_pack, open_pack
    from headrace.packs.verify import verify

    with progress_bar("verifying", console) as progress:
        verdict = verify(place.path, workers=workers, progress=progress)
    index, split = open_pack(place.path)
    if not quick:
        with progress_bar("decoding", console) as progress:
            decode_pack(index, split, workers=workers, progress=progress)
    problems = [str(problem) for problem in verdict.problems]
    return judge_pack(place.path, split, problems, verdict.notes, decoded=not quick)
