"""`headrace doctor run`: the bottleneck of a training script, and what to change."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace_doctor.cli.progress import INTERRUPTED, STANDARD_OUTPUT, JsonFile, check_outputs, give_json

if TYPE_CHECKING:
    from rich.console import Console

    from headrace_doctor.doctor.diagnosis import Report
    from headrace_doctor.examine import Job


def run(
    command: Annotated[list[str], typer.Argument(help="The script and its arguments.")],
    module: Annotated[
        bool, typer.Option("-m", help="Run a library module as a script, like `python -m`.")
    ] = False,
    steps: Annotated[
        int | None, typer.Option(min=5, help="Unchanged steps to measure. Default: as many as take 4 s.")
    ] = None,
    attempt: Annotated[
        bool, typer.Option("--try", help="Apply the top recommendation, run again and compare.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Hide the script's own output.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Print what is being measured, on a terminal or not.")
    ] = False,
    json_file: JsonFile = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts to this file.")] = None,
) -> None:
    """Finds the bottleneck of a training script, which runs unmodified, and what to change.

    The script is stopped once everything is measured: ordinary steps, steps on repeated batches, then its
    loader alone. The weights it has learned by then are meaningless. Options of the script come after its
    name.

    Exit codes: 0 examined; 1 the script failed, or took too few steps; 2 wrong
    usage; 130 interrupted by Ctrl-C; 143 ended by SIGTERM, as is the script.
    """
    from rich.console import Console

    printed = json_file == STANDARD_OUTPUT
    console = Console(stderr=printed)
    quiet = quiet or printed
    if not module and not Path(command[0]).is_file():
        raise typer.BadParameter(f"{command[0]} isn't a file; give a script, or -m and a module's name.")
    check_outputs(json_file, html)
    # After these checks: it takes seconds to import.
    from headrace_doctor.doctor.text import print_diagnosis
    from headrace_doctor.examine import Job

    job = Job(command, module, steps)
    errors = Console(stderr=True)
    progress = partial(announce, errors) if verbose or errors.is_terminal else None
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        diagnosis = examined(job, quiet, console, progress)
        if attempt:
            diagnosis = with_attempt(diagnosis, job, quiet, console)
    except KeyboardInterrupt as interrupt:
        console.print("Interrupted: there is no diagnosis.")
        raise typer.Exit(INTERRUPTED) from interrupt
    finally:
        signal.signal(signal.SIGTERM, before)
    if html is not None:
        html.write_text(diagnosis.to_html(), encoding="utf-8")
    if not give_json(diagnosis.to_json(), json_file):
        return
    print_diagnosis(console, diagnosis)
    for path in (json_file, html):
        if path is not None:
            console.print(f"wrote {path}", highlight=False, markup=False)


def announce(console: Console, phase: str) -> None:
    """Prints what is being measured."""
    from headrace_doctor.doctor.wording import measured

    if text := measured(phase):
        console.print(f"measuring {text}", style="dim", highlight=False, markup=False)


def examined(
    job: Job, quiet: bool, console: Console, progress: Callable[[str], None] | None = None
) -> Report:
    """The diagnosis of a job. Ends the command if there is none."""
    from headrace_doctor.doctor.diagnosis import diagnose
    from headrace_doctor.errors import DoctorError

    status, observation, output = job.run(quiet=quiet, progress=progress or (lambda _: None))
    try:
        if observation is None:
            raise DoctorError(f"{job.command[0]} ended with status {status} before anything was measured.")
        return diagnose(observation)
    except DoctorError as error:
        if quiet and output:
            console.print(output[-2000:], highlight=False, markup=False)
        console.print(str(error), style="red", highlight=False, markup=False)
        raise typer.Exit(1) from error


def with_attempt(diagnosis: Report, job: Job, quiet: bool, console: Console) -> Report:
    """The diagnosis, with the measured gain of its first advice that can be applied automatically."""
    from headrace_doctor.doctor.case import seconds_of

    def noted(*notes: str) -> Report:
        return replace(diagnosis, notes=(*diagnosis.notes, *notes))

    advice = next((one for one in diagnosis.advice if one.settings), None)
    if advice is None:
        return noted("nothing was tried: no advice can be applied automatically")
    console.print(f"running it again, with {advice.summary}", highlight=False, markup=False)
    status, observation, _ = replace(job, **advice.applied_to(diagnosis)).run(quiet=quiet)
    seconds = None if observation is None else seconds_of(observation)
    if observation is None or not seconds:
        return noted(f"the attempt ended with status {status}")
    if observation.refused:
        return noted(*observation.notes)
    tried = replace(advice, measured=diagnosis.seconds_per_sample / seconds)
    all_advice = tuple(tried if one is advice else one for one in diagnosis.advice)
    return replace(noted(*observation.notes), advice=all_advice)
