"""`headrace train`: the ImageNet recipe."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console

from headrace.cli.progress import INTERRUPTED
from headrace.errors import HeadraceError
from headrace.recipes.config import Recipe, option

# EX_TEMPFAIL of sysexits.h: nothing is wrong, start the same command again.
PREEMPTED = 75
FAILED, USAGE = 1, 2


def train(**options: Any) -> None:
    """Trains an image classifier with the usual ImageNet recipe.

    On one GPU: headrace train DATA --precision bf16 --channels-last

    On eight: torchrun --nproc-per-node=8 -m headrace train DATA --batch-size 2048 …

    Ctrl-C, SIGTERM and SIGUSR1 stop it after the current step, with a checkpoint. The same command with
    --resume auto resumes with the next image, also on another number of GPUs.

    Exit codes: 0 trained; 75 stopped by SIGTERM or SIGUSR1: run it again with --resume auto; 130
    stopped by Ctrl-C; 2 wrong usage, or missing data; 1 any other error.
    """
    from headrace.recipes import train as run

    try:
        outcome = run(Recipe(**options))
    except (HeadraceError, OSError) as error:
        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        usage = isinstance(error, (ValueError, PermissionError, FileExistsError, NotADirectoryError))
        raise typer.Exit(USAGE if usage else FAILED) from error
    if outcome.stopped_by is not None:
        raise typer.Exit(INTERRUPTED if outcome.stopped_by == "SIGINT" else PREEMPTED)


def _parameters() -> Iterator[inspect.Parameter]:
    """The attributes of a Recipe as parameters that typer understands."""
    hints = get_type_hints(Recipe)
    for field in dataclasses.fields(Recipe):
        info: Any = typer.Option(option(field.name), **field.metadata)
        default = field.default
        if default is dataclasses.MISSING:
            help_text = "Folder with train and val, each of class folders or a pack."
            info, default = typer.Argument(metavar="DATA", help=help_text), inspect.Parameter.empty
        annotation: Any = Annotated[hints[field.name], info]
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(field.name, kind, default=default, annotation=annotation)


# Each option is described once, by the Recipe.
train.__signature__ = inspect.Signature(list(_parameters()))  # type: ignore[attr-defined]
train.__annotations__ = {parameter.name: parameter.annotation for parameter in _parameters()}
