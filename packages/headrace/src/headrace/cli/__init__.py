"""The `headrace` command: one file per verb. Other packages add verbs by entry points of `headrace.verbs`.

A verb imports what does its work only when it is called, because torch alone takes seconds to import and
`headrace --help` needs none of it.
"""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated

import typer

import headrace
from headrace.cli.index import index
from headrace.cli.info import info
from headrace.cli.pack import pack
from headrace.cli.run import explain, run
from headrace.cli.train import train
from headrace.cli.verify import verify

# Exit code of wrong usage.
USAGE = 2
# Verbs of the package headrace-doctor, with what is said of them if it isn't installed.
OF_THE_DOCTOR = ("doctor", "top", "tune")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {headrace.__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Command-line tools for Headrace data loading."""


def _missing(context: typer.Context) -> None:
    """Needs the package headrace-doctor."""
    typer.echo(f"headrace {context.info_name} needs the doctor: pip install headrace-doctor", err=True)
    raise typer.Exit(USAGE)


def command(others: Mapping[str, EntryPoint]) -> typer.Typer:
    """The command with its own verbs and with others by their names."""
    # Unexpected errors are printed as Python prints them: typer would add a hundred lines of source.
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback()(options)
    # Options that follow a training command belong to it.
    of_commands = {"allow_interspersed_args": False, "ignore_unknown_options": True}
    app.command(context_settings=of_commands)(run)
    app.command(context_settings=of_commands)(explain)
    for verb in (index, pack, verify, info, train):
        app.command()(verb)
    for name in sorted(others):
        verb = others[name].load()
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name)
        else:
            app.command(name, context_settings=of_commands if name == "tune" else None)(verb)
    anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    for name in OF_THE_DOCTOR:
        if name not in others:
            app.command(name, context_settings=anything)(_missing)
    return app


app = command({entry.name: entry for entry in entry_points(group="headrace.verbs")})


def main() -> None:
    """The entry point of the console script."""
    app()
