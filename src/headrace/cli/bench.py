"""headrace bench: experiments to rerun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

bench = typer.Typer(no_args_is_help=True, help="Experiments that anyone can rerun.")


@bench.callback()
def _group() -> None:
    # With it, a single experiment is still asked for by its name.
    pass


@bench.command()
def overlap(
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions; medians are shown.")] = 3,
    items: Annotated[int, typer.Option(min=64, help="Items of an epoch, 1.2 MB of memory each.")] = 1024,
    device: Annotated[str, typer.Option(help="Of the model.")] = "cpu",
    out: Annotated[Path | None, typer.Option("--json", help="Write the figures here.")] = None,
) -> None:
    """What overlapping loading with training brings on items that wait 5 ms each.

    One item after the other, torch's DataLoader with 2 to 16 workers, Headrace, and the floor: all batches
    ready in memory.
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
        f"\nHeadrace takes {result.over_floor:.2f} times the floor's time,"
        f" and is {result.over_torch:.2f} times as fast as torch's best.\n{result.plan}",
        highlight=False,
        soft_wrap=True,
    )
    if out is not None:
        out.write_text(json.dumps(result.to_json(), indent=1) + "\n")
