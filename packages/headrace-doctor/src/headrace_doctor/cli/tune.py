"""`headrace tune`: the settings that make a loader fastest."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headrace_doctor.cli.progress import INTERRUPTED, STANDARD_OUTPUT, JsonFile, check_outputs, give_json
from headrace_doctor.errors import ConfigError

if TYPE_CHECKING:
    from headrace_doctor.tune import TuneReport

SCRIPT_FAILED = 1


def tune(
    target: Annotated[
        str, typer.Argument(help="A script, or FILE.py:NAME of a loader or of a function that returns one.")
    ],
    args: Annotated[list[str] | None, typer.Argument(help="The script's own arguments.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds to measure each setting.")] = 3.0,
    number: Annotated[
        int, typer.Option("--loader", min=1, help="Tune the N-th loader that the script iterates over.")
    ] = 1,
    threads: Annotated[
        bool, typer.Option("--threads", help="Also try worker threads: only for a thread-safe dataset.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Finds the settings that make a loader fastest, for torch's DataLoader and for Headrace's.

    A script runs, unmodified, until it starts to iterate over its loader. Options of the script itself come
    after its name.

    Exit codes: 0 measured; 1 the script failed; 2 wrong usage, or no such loader; 130 interrupted by Ctrl-C.
    """
    check_outputs(json_file)
    printed = json_file == STANDARD_OUTPUT
    prints = redirect_stdout(sys.stderr) if printed else nullcontext()
    with prints, _errors_of(target.partition(":")[0]):
        report = _tried(_loader(target, args or [], number), seconds, threads)
    if give_json(report.to_json(), json_file):
        _print(Console(), report)


@contextmanager
def _errors_of(script: str) -> Iterator[None]:
    """Ends the command at an error of the script, with the traceback that Python would print."""
    try:
        yield
    except (typer.BadParameter, typer.Exit):
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        frames, place = error.__traceback__, Path(script).resolve()
        while frames is not None and Path(frames.tb_frame.f_code.co_filename).resolve() != place:
            frames = frames.tb_next
        traceback.print_exception(type(error), error, frames)
        raise typer.Exit(SCRIPT_FAILED) from None


def _tried(loader: Any, seconds: float, threads: bool) -> TuneReport:
    from headrace_doctor.tune import tune as try_settings

    try:
        with Console(stderr=True).status("trying settings") as status:
            show = lambda what: status.update(f"trying {what}")  # noqa: E731
            return try_settings(loader, seconds=seconds, threads=threads, progress=show)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def _print(console: Console, report: TuneReport) -> None:
    table = Table(box=None, header_style="bold")
    for heading in ("loader", "samples/s", "first batch"):
        table.add_column(heading, justify="left" if heading == "loader" else "right", overflow="fold")
    for trial in report.trials:
        table.add_row(trial.code(), f"{trial.samples_per_second:,.0f}", f"{trial.first_batch_seconds:.2f} s")
    console.print(table)
    best = report.best()
    for name, trial in best.items():
        ratio = trial.samples_per_second / max(best["torch"].samples_per_second, 1e-9)
        title = "torch" if name == "torch" else f"Headrace, {ratio:.2f} times as fast"
        console.print(f"\nbest of {title}:\n  {trial.code()}", highlight=False, soft_wrap=True)
    advice = report.advice()
    if advice is not None:
        console.print(f"\n{advice}", highlight=False, soft_wrap=True)


def _loader(target: str, args: list[str], number: int) -> Any:
    from headrace_doctor.examine import run_script
    from headrace_doctor.tune import capture

    path, _, name = target.partition(":")
    if not Path(path).is_file():
        raise typer.BadParameter(f"{path} isn't a file; give a script, or FILE.py:NAME.")
    if name:
        sys.argv = [path, *args]
        return _named(Path(path), name)
    loader = capture(lambda: run_script([path, *args]), number)
    if loader is None:
        raise typer.BadParameter(f"{path} ended without iterating over {number} DataLoader(s).")
    return loader


def _named(path: Path, name: str) -> Any:
    sys.path.insert(0, str(path.resolve().parent))  # as Python itself does it for a script
    sys.modules.pop(path.stem, None)
    target = getattr(importlib.import_module(path.stem), name, None)
    if target is None:
        raise typer.BadParameter(f"{path} has no {name}.")
    return target() if callable(target) else target
