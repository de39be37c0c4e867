"""`headrace doctor data`: problems of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from headrace.cli.progress import BAD_RECORDS, JsonFile, check_outputs, failing, give_json, progress_bar

if TYPE_CHECKING:
    from headrace.doctor.records import Checkup
    from headrace.measure.images import Progress, Split
    from headrace.measure.tree import Place
    from headrace.sources.pack_index import PackIndex


def data(
    path: Annotated[Path, typer.Argument(metavar="DIR|PACK", help="A folder of images, or a pack.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Check names and sizes only, without decoding.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads. Default: usable cores + 1.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Explains why a dataset is not found, and lists its bad files.

    Checks what torchvision's ImageFolder and ImageNet depend on: the level of the
    folder, splits, classes, extensions, permissions and links. Then decodes every
    image, and reports damage, formats, sizes and duplicates.

    Exit codes: 0 no problems; 1 something is bad; 2 wrong usage.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    from headrace._machine import usable_cores
    from headrace.doctor.text import print_checkup
    from headrace.measure.tree import look_at, with_surroundings

    check_outputs(json_file)
    console = Console(stderr=True)
    with failing("doctor data", console):
        place = with_surroundings(look_at(str(path), IMG_EXTENSIONS), IMG_EXTENSIONS)
        examine = _of_pack if place.kind == "pack" else _of_folder
        checkup = examine(place, quick, workers or usable_cores() + 1, console)
        report = give_json(checkup.to_json(), json_file)
    if report:
        print_checkup(Console(highlight=False), checkup)
    if not checkup.healthy:
        raise typer.Exit(BAD_RECORDS)


def _of_folder(place: Place, quick: bool, workers: int, console: Console) -> Checkup:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    from headrace.doctor.data import judge_folder
    from headrace.measure.decoding import decode_all
    from headrace.measure.images import list_split
    from headrace.measure.tree import split_of
    from headrace.packs.ilsvrc import known_wnids

    splits = []
    for name, leaf in place.leaves(split_of(Path(place.path).resolve().name)):
        if leaf.kind in ("classes", "images"):
            flat, extensions = leaf.kind == "images", IMG_EXTENSIONS
            with progress_bar(f"listing {leaf.path}", console) as bar:
                split = list_split(name, leaf.path, extensions, flat=flat, workers=workers, progress=bar)
            splits.append(split)
    if not quick:
        with progress_bar("decoding", console) as progress:
            decode_all(splits, workers=workers, progress=progress)
    return judge_folder(place, splits, decoded=not quick, known_wnids=known_wnids(place.path))


def _of_pack(place: Place, quick: bool, workers: int, console: Console) -> Checkup:
    from headrace.doctor.data import judge_pack
    from headrace.packs.verify import verify

    with progress_bar("verifying", console) as progress:
        verdict = verify(place.path, workers=workers, progress=progress)
    index, split = open_pack(place.path)
    if not quick:
        with progress_bar("decoding", console) as progress:
            decode_pack(index, split, workers=workers, progress=progress)
    problems = [str(problem) for problem in verdict.problems]
    return judge_pack(place.path, split, problems, verdict.notes, decoded=not quick)


def open_pack(path: str) -> tuple[PackIndex, Split]:
    """The index of the pack in the folder `path`, and its images as a split that is not decoded yet.

    Raises:
        PackError: it is missing or damaged.
    """
    import numpy as np

    from headrace.measure.images import Images, Split
    from headrace.sources.pack_index import FILE_NAME, PackIndex

    index = PackIndex(Path(path) / FILE_NAME)
    keys, extensions = (index.checked(index.batch[name]).to_pylist() for name in ("key", "extension"))
    names = [f"{key}.{extension}" for key, extension in zip(keys, extensions, strict=True)]
    labels, sizes = index.numbers("label").astype(np.int32), index.numbers("size").astype(np.int64)
    images = Images(names, labels, sizes, np.zeros(len(index), np.uint8))
    images.widths = index.numbers("width").astype(np.uint32)
    images.heights = index.numbers("height").astype(np.uint32)
    classes = index.about.classes or tuple(str(label) for label in range(int(labels.max(initial=-1)) + 1))
    return index, Split("", path, classes, images)


def decode_pack(index: PackIndex, split: Split, *, workers: int, progress: Progress | None = None) -> None:
    """Fills in what decoding shows; see `headrace.measure.decoding`. An unreadable record stays unseen."""
    from headrace.measure.decoding import decode_all
    from headrace.packs.stored import StoredPack

    pack = StoredPack(index)

    def read(split: Split, row: int) -> bytes | None:
        try:
            return pack.image(row)
        except (OSError, IndexError, ValueError, OverflowError, MemoryError) as error:  # as verify reports
            split.images.reasons[row] = str(error)
            return None

    decode_all([split], workers=workers, progress=progress, read=read)
