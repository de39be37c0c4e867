"""headrace doctor run: what starves a training script, and what to change."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.progress import INTERRUPTED

if TYPE_CHECKING:
    from rich.console import Console

    from headrace.doctor.records import Diagnosis
    from headrace.examine import Job


def run(
    command: Annotated[list[str], typer.Argument(help="The script and its arguments.")],
    module: Annotated[bool, typer.Option("-m", help="It is a module.")] = False,
    steps: Annotated[
        int | None, typer.Option(min=5, help="To measure as they are; as many as 4 s take, if not said.")
    ] = None,
    attempt: Annotated[
        bool, typer.Option("--try", help="Run it again with the first advice that can be tried, and measure.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Don't show the script's own output.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the diagnosis here.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts here.")] = None,
) -> None:
    """Runs a training script, unmodified, and says what starves its steps and what to change.

    The script is ended once all is measured: it makes some steps as ever, some on repeated batches, and then
    its loader is measured alone. What it has learned by then is of no use. Options of the script come after
    its name.

    Exit codes: 0 it was examined; 1 it failed, or made too few steps; 2 wrong
    usage; 130 interrupted.
    """
    from rich.console import Console

    from headrace.doctor.text import print_diagnosis
    from headrace.examine import Job

    console = Console()
    if not module and not Path(command[0]).is_file():
        raise typer.BadParameter(f"{command[0]} isn't a file; give a script, or -m and a module's name.")
    check_outputs(json_file, html)
    job = Job(command, module, steps)
    try:
        diagnosis = examined(job, quiet, console)
        if attempt:
            diagnosis = with_attempt(diagnosis, job, quiet, console)
    except KeyboardInterrupt as interrupt:
        console.print("interrupted: nothing was found out")
        raise typer.Exit(INTERRUPTED) from interrupt
    if json_file is not None:
        json_file.write_text(json.dumps(diagnosis.to_json(), indent=1) + "\n")
    if html is not None:
        html.write_text(diagnosis.to_html(), encoding="utf-8")
    print_diagnosis(console, diagnosis)
    for path in (json_file, html):
        if path is not None:
            console.print(f"wrote {path}", highlight=False, markup=False)


def check_outputs(*paths: Path | None) -> None:
    """Ends the command at once where a report couldn't be written after minutes of measuring."""
    for path in paths:
        try:
            if path is not None:
                path.touch()
        except OSError as error:
            raise typer.BadParameter(f"{path} can't be written: {error.strerror}.") from error


def examined(job: Job, quiet: bool, console: Console) -> Diagnosis:
    """The diagnosis of a job; ends the command where there is none."""
    from headrace.doctor.diagnosis import diagnose
    from headrace.errors import HeadraceError
    from headrace.measure.child import run_examined

    with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as folder:
        job.save(Path(folder))
        status, observation = run_examined(Path(folder), job.settings, quiet=quiet)
        output = (Path(folder) / "output.txt").read_text(errors="replace")
    try:
        if observation is None:
            raise HeadraceError(f"{job.command[0]} ended with status {status} before anything was measured.")
        return diagnose(observation)
    except HeadraceError as error:
        if quiet and output:
            console.print(output[-2000:], highlight=False, markup=False)
        console.print(str(error), style="red", highlight=False, markup=False)
        raise typer.Exit(1) from error


def with_attempt(diagnosis: Diagnosis, job: Job, quiet: bool, console: Console) -> Diagnosis:
    """The diagnosis, its first advice that can be tried with what came of it."""
    from headrace.measure.child import run_examined

    advice = next((one for one in diagnosis.advice if one.settings), None)
    if advice is None:
        return replace(diagnosis, notes=(*diagnosis.notes, "nothing was tried: no advice can be, by itself"))
    console.print(f"running it again, with {advice.summary}", highlight=False, markup=False)
    with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as folder:
        replace(job, settings=advice.settings, subject=diagnosis.where).save(Path(folder))
        status, observation = run_examined(Path(folder), advice.settings, quiet=quiet)
    measured = None if observation is None else pace_of(observation)
    if measured is None:
        return replace(diagnosis, notes=(*diagnosis.notes, f"the try ended with status {status}"))
    before = 1 / diagnosis.seconds_per_sample
    tried = replace(advice, measured=measured / before)
    notes = diagnosis.notes + tuple(observation.notes if observation else ())
    return replace(
        diagnosis, advice=tuple(tried if one is advice else one for one in diagnosis.advice), notes=notes
    )


def pace_of(observation: Any) -> float | None:
    """Samples per second of the actual phase, starts of epochs included."""
    from headrace.doctor.candidates import seconds_of

    seconds = seconds_of(observation)
    return 1 / seconds if seconds else None
