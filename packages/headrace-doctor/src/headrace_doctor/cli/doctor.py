"""`headrace doctor`: data-loading bottlenecks of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace_doctor.cli.doctor_data import data
from headrace_doctor.cli.doctor_run import run
from headrace_doctor.cli.progress import BAD_RECORDS, OF_SCRIPTS, JsonFile, check_outputs, failing, give_json

doctor = typer.Typer(invoke_without_command=True)
doctor.command()(data)
doctor.command(context_settings=OF_SCRIPTS)(run)


@doctor.callback()
def machine(
    context: typer.Context,
    paths: Annotated[
        list[Path] | None,
        typer.Option("--path", help="A folder or file whose storage is measured; give one for each."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Finds data-loading bottlenecks: of this machine, of a dataset (data) or of a training script (run).

    Without a command it examines this machine: usable cores, memory, /dev/shm, open
    files, decoding speed, whether torch reaches the GPUs, and with --path the
    storage of the data, which is only read. This takes about 10 seconds.

    Exit codes: 0 nothing is bad; 1 something should be fixed; 2 wrong usage, or
    a path that cannot be read.
    """
    if context.invoked_subcommand is not None:
        return
    from headrace_doctor.doctor.host import examine
    from headrace_doctor.doctor.text import print_checkup
    from headrace_doctor.measure.survey import survey

    check_outputs(json_file)
    with failing("doctor", Console(stderr=True)):
        with Console(stderr=True).status("measuring") as status:
            measured = survey(paths or (), progress=status.update)
        checkup = examine(measured)
        report = give_json(checkup.to_json(), json_file)
    if report:
        print_checkup(Console(), checkup)
    if not checkup.healthy:
        raise typer.Exit(BAD_RECORDS)
