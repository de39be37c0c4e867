"""The `headrace` command: one file per verb.

A verb imports what does its work only when it is called, because torch alone takes seconds to import and
`headrace --help` needs none of it.
"""

from typing import Annotated

import typer

import headrace
from headrace.cli.doctor import doctor
from headrace.cli.index import index
from headrace.cli.info import info
from headrace.cli.pack import pack
from headrace.cli.top import top
from headrace.cli.train import train
from headrace.cli.tune import tune
from headrace.cli.verify import verify

# Unexpected errors are printed as Python prints them: typer would add a hundred lines of source and boxes.
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {headrace.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Command-line tools for Headrace data loading."""


app.command()(index)
app.command()(pack)
app.command()(verify)
app.command()(info)
app.command()(tune)
app.command()(top)
app.command()(train)
app.add_typer(doctor, name="doctor")


def main() -> None:
    """The entry point of the console script."""
    app()
