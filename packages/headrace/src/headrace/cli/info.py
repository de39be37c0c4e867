"""`headrace info`: what a pack contains."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from headrace.cli.progress import JsonFile, check_outputs, failing, give_json
from headrace.errors import printable

if TYPE_CHECKING:
    from headrace.packs.info import Histogram, PackInfo

# Entries of `made` that aren't options.
NOT_OPTIONS = ("checksum", "kept", "records", "state")
BAR = 30  # characters of the longest bar of a histogram


def info(
    pack: Annotated[str, typer.Argument(help="A folder written by headrace pack, or its URL.")],
    json_file: JsonFile = None,
) -> None:
    """Describes what a pack contains and how it was made.

    Exit codes: 0 described; 2 wrong usage, or an index that cannot be read.
    """
    check_outputs(json_file)
    with failing("info", Console(stderr=True)):
        from headrace.packs.info import info as run

        contents = run(pack)
    if not give_json({**asdict(contents), "path": str(contents.path)}, json_file):
        return
    console = Console(highlight=False, soft_wrap=True)
    for name, value in _facts(contents):
        console.print(printable(f"{name:<16} {value}"), markup=False)
    _print_histogram(console, "longer side, pixels", contents.sides)
    _print_histogram(console, "image, bytes", contents.sizes)
    for key, why in contents.made.get("kept", ()):
        console.print(printable(f"kept unchanged: {key}: {why}"), markup=False)


def _facts(contents: PackInfo) -> list[tuple[str, str]]:
    from headrace._native.decoders import missing_formats

    formats = ", ".join(f"{name or 'none'} {count:,}" for name, count in contents.formats)
    options = sorted((name, value) for name, value in contents.made.items() if name not in NOT_OPTIONS)
    made = ", ".join(f"{name}={value}" for name, value in options if value not in (None, False))
    overhead = (contents.shard_bytes + contents.index_bytes) / max(1, contents.image_bytes) - 1
    return [
        ("samples", f"{contents.samples:,} ({contents.labelled:,} with a label)"),
        ("classes", f"{len(contents.classes):,}" if contents.classes else "unknown"),
        ("shards", f"{contents.shards:,} ({contents.kind})"),
        ("bytes", f"{contents.shard_bytes:,}, and {contents.index_bytes:,} of the index"),
        ("of images", f"{contents.image_bytes:,} (the pack is {overhead:+.1%})"),
        ("formats", f"{formats}; {missing}" if (missing := missing_formats()) else formats),
        ("entry points", f"{contents.with_entries:,} samples"),
        ("made", made),
    ]


def _print_histogram(console: Console, title: str, histogram: Histogram) -> None:
    console.print(f"\n{title}")
    most = max((count for _, count in histogram), default=1)
    for limit, count in histogram:
        name = f"≤ {limit:,}" if limit else "unknown"
        console.print(f"{name:>14} {count:>12,} {'█' * round(BAR * count / most)}")
