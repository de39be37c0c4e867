"""headrace bench: experiments to rerun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from headrace.cli.progress import failing

if TYPE_CHECKING:
    from headrace.bench.amp import Amp

bench = typer.Typer(no_args_is_help=True, help="Experiments that anyone can rerun.")


@bench.command()
def overlap(
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions; medians are shown.")] = 3,
    items: Annotated[int, typer.Option(min=64, help="Items of an epoch, 1.2 MB of memory each.")] = 1024,
    device: Annotated[str, typer.Option(help="Of the model.")] = "cpu",
    out: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
) -> None:
    """What overlapping loading with training brings on items that wait 5 ms each.

    One item after the other, torch's DataLoader and Headrace's with 2 to 16 worker processes, Headrace's with
    threads, which these items may run on, and the floor: all batches ready in memory.
    """
    from headrace.bench import overlap as experiment

    console = Console()
    with console.status("making the items") as status:
        result = experiment.run(
            items, rounds=rounds, device=device, progress=lambda name: status.update(f"running {name}")
        )
    floor = result.rows[0].median
    table = Table(box=None, header_style="bold")
    for heading in ("loader", "seconds", "times the floor", "rounds"):
        table.add_column(heading, justify="left" if heading == "loader" else "right")
    for row in result.rows:
        rounds_text = " ".join(f"{seconds:.3f}" for seconds in row.seconds)
        table.add_row(row.name, f"{row.median:.3f}", f"{row.median / floor:.2f}", rounds_text)
    console.print(table)
    console.print(
        f"\nHeadrace on threads takes {result.over_floor:.2f} times the floor's time,"
        f" and is {result.over_torch:.2f} times as fast as torch's best.\n{result.plan}",
        highlight=False,
        soft_wrap=True,
    )
    if out is not None:
        out.write_text(json.dumps(result.to_json(), indent=1) + "\n")


@bench.command()
def amp(
    arch: Annotated[str, typer.Option(help="A classifier of torchvision, or timm/NAME.")] = "resnet50",
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    size: Annotated[int, typer.Option(min=32, help="Pixels of a picture's side.")] = 224,
    steps: Annotated[int, typer.Option(min=1, help="Timed, in each precision.")] = 20,
    channels_last: Annotated[bool, typer.Option(help="Memory format.")] = True,
    device: Annotated[str | None, typer.Option(help="Left out: the accelerator, or the CPU.")] = None,
    out: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
) -> None:
    """What mixed precision brings here: memory and speed of a training step in fp32, bf16 and fp16.

    The claim to measure: half the memory, a fifth faster.
    """
    from headrace.bench import amp as experiment

    console = Console()
    with failing("bench amp", Console(stderr=True)):
        if out is not None:
            out.touch()  # minutes later would be late to find that it can't be written
        with console.status("making the model") as status:
            result = experiment.run(
                arch,
                batch_size,
                size,
                steps,
                channels_last,
                device,
                lambda name: status.update(f"running {name}"),
            )
    where = f"{result.device}, {result.threads} threads" if result.device == "cpu" else result.device
    console.print(
        f"{arch}, {batch_size} pictures of {size}×{size} a step; {where}; torch {result.torch_version}",
        highlight=False,
    )
    console.print(_amp_table(result))
    for note in experiment.notes(result):
        console.print(note, highlight=False, soft_wrap=True)
    if out is not None:
        out.write_text(json.dumps(result.to_json(), indent=1) + "\n")


def _amp_table(result: Amp) -> Table:
    table = Table(box=None, header_style="bold")
    first = result.rows[0]
    for heading in (
        "precision",
        "images/s",
        "of fp32",
        "activations MB",
        "peak MB",
        "memory of fp32",
        "loss",
    ):
        table.add_column(heading, justify="left" if heading == "precision" else "right")
    for row in result.rows:
        if row.loss is None:
            table.add_row(row.name, "–")
            continue
        table.add_row(
            row.name,
            f"{result.batch_size / row.median:,.1f}",
            f"{first.median / row.median:.2f} ×",
            f"{row.activation_bytes / 1e6:,.0f}",
            "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:,.0f}",
            f"{result.memory(row) / result.memory(first):.2f} ×",
            f"{row.loss:.3f}",
        )
    return table
